"""Laws of reading usage: the prompt is the whole prompt in every dialect."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.engines.base import usage_of
from policies.types import Usage

# As answered by vLLM 0.32 and Dynamo 1.6.1.
CASES: list[tuple[dict[str, Any], Usage | None]] = [
    (
        {"usage": {"prompt_tokens": 11, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 8}}},
        Usage(11, 8, 1),
    ),
    (
        {"usage": {"prompt_tokens": 811, "completion_tokens": 1, "prompt_tokens_details": None}},
        Usage(811, None, 1),
    ),
    (
        {
            "type": "response.completed",
            "response": {
                "usage": {"input_tokens": 9, "input_tokens_details": {"cached_tokens": 4}, "output_tokens": 2}
            },
        },
        Usage(9, 4, 2),
    ),
    (
        {
            "type": "message_delta",
            "usage": {
                "input_tokens": 1,
                "output_tokens": 2,
                "cache_creation_input_tokens": 0,
                "cache_read_input_tokens": 688,
            },
        },
        Usage(689, 688, 2),
    ),
    (
        {
            "usage": {
                "input_tokens": 5,
                "cache_creation_input_tokens": 3,
                "cache_read_input_tokens": 2,
                "output_tokens": 1,
            }
        },
        Usage(10, 2, 1),
    ),
    (
        {"type": "message_start", "message": {"usage": {"input_tokens": 11, "output_tokens": 0}}},
        Usage(11, None, 0),
    ),
    ({"usage": {"prompt_tokens": 3, "total_tokens": 3}}, Usage(3, None, None)),
    ({"choices": [], "usage": None}, None),
    ({"type": "response.created", "response": {"usage": None}}, None),
    ({"usage": "none"}, None),
]


@pytest.mark.parametrize(("event", "usage"), CASES)
def test_usage_is_read_in_every_dialect(event: dict[str, Any], usage: Usage | None) -> None:
    assert usage_of(event) == usage
