"""Laws of OpenAI-compatible servers, rented and own."""

from __future__ import annotations

import pytest

from gateway.engines.kinds import parse_address
from gateway.engines.openai import OpenAI


@pytest.mark.parametrize(
    ("url", "api_key", "is_rented"),
    [
        ("openai://", "key", True),
        ("openai://", None, True),
        ("openai+https://openrouter.ai/api/v1", "key", True),
        ("openai+https://llm.example.org/v1", None, False),
        ("openai://gpu1:8080", "key", False),
        ("openai://gpu1:8080", None, False),
    ],
)
def test_a_server_is_rented_where_it_is_openai_or_wants_a_key_over_tls(
    url: str, api_key: str | None, is_rented: bool
) -> None:
    assert OpenAI().is_rented(parse_address(url, api_key=api_key)) is is_rented
