"""Laws of what a request must look like, over all conversation formats."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.fields import Json
from gateway.core.reply import Reply
from gateway.dialects import BY_PATH

CHAT, COMPLETIONS, RESPONSES, MESSAGES = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/messages",
)
ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["role", "content", "type", "text", "index", "delta", "function"]), inner
        )
    ),
    max_leaves=10,
)
KEYS = st.sampled_from(
    (
        "model",
        "stream",
        "messages",
        "input",
        "prompt",
        "tools",
        "system",
        "instructions",
        "stream_options",
        "functions",
        "choices",
        "type",
        "delta",
        "item",
        "response",
        "error",
        "object",
        "content_block",
        "content",
        "output",
        "status",
        "usage",
    )
)


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (CHAT, {}, "messages"),
        (CHAT, {"messages": None}, "messages"),
        (CHAT, {"messages": "hi"}, "messages"),
        (CHAT, {"messages": [{}, "hi"]}, "messages[1]"),
        (CHAT, {"messages": [], "model": 1}, "model"),
        (CHAT, {"messages": [], "stream": "true"}, "stream"),
        (CHAT, {"messages": [], "stream_options": True}, "stream_options"),
        (CHAT, {"messages": [], "tools": {}}, "tools"),
        (CHAT, {"messages": [], "tools": [1]}, "tools[0]"),
        (COMPLETIONS, {"prompt": 1}, "prompt"),
        (COMPLETIONS, {}, "prompt"),
        (RESPONSES, {"input": {}}, "input"),
        (RESPONSES, {"input": ["hi"]}, "input[0]"),
        (RESPONSES, {"previous_response_id": 1}, "previous_response_id"),
        (MESSAGES, {"system": 1, "messages": []}, "system"),
        (MESSAGES, {}, "messages"),
        ("/v1/embeddings", {"model": []}, "model"),
    ],
)
def test_a_wrong_field_is_named(path: str, body: Json, param: str) -> None:
    failure = BY_PATH[path].check(body)
    assert failure is not None
    assert (failure.status, failure.kind, failure.param) == (400, "invalid_request_error", param)
    assert f"`{param}`" in failure.message


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, {"model": "m", "messages": [{"role": "user"}], "stream": None, "tools": None, "unknown": object()}),
        (COMPLETIONS, {"prompt": [[1, 2]]}),
        (RESPONSES, {}),
        (RESPONSES, {"input": "hi", "tools": [{"type": "web_search"}]}),
        (MESSAGES, {"messages": [], "system": [{"type": "text", "text": "x"}]}),
        ("/v1/embeddings", {"input": 1}),
        ("/tokenize", {"messages": 1}),
    ],
)
def test_what_the_gateway_does_not_rely_on_passes(path: str, body: Json) -> None:
    assert BY_PATH[path].check(body) is None


@pytest.mark.parametrize("path", BY_PATH)
@given(body=st.dictionaries(KEYS, ANY, max_size=6))
def test_no_json_makes_a_reader_fail(path: str, body: dict[str, Any]) -> None:
    dialect = BY_PATH[path]
    if dialect.check(body) is None:
        dialect.script(body)
    dialect.wants_usage(body)
    dialect.asking_for_usage(body)
    dialect.max_tokens(body)
    dialect.stateful_id(body)
    dialect.is_asked_usage(body)
    dialect.is_error(body)
    dialect.read(body, Reply())
