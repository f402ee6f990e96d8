"""Laws of reading and writing failures in each format."""

from __future__ import annotations

import orjson
import pytest

from gateway.core.errors import Failure
from gateway.core.fields import Json
from gateway.core.sse import data_of
from gateway.dialects import BY_PATH

CHAT, RESPONSES, MESSAGES = BY_PATH["/v1/chat/completions"], BY_PATH["/v1/responses"], BY_PATH["/v1/messages"]
FULL = Failure(429, "rate_limit_error", "Too many agents.", retry_after_s=11.2)
BROKEN = Failure(502, "server_error", "The engine broke.", code="engine_cut")


def data(event: bytes) -> Json:
    parsed: Json = orjson.loads(data_of(event) or b"null")
    return parsed


def test_openai_errors_have_their_four_fields() -> None:
    expected = {"message": "The engine broke.", "type": "server_error", "param": None, "code": "engine_cut"}
    assert orjson.loads(CHAT.error_body(BROKEN)) == {"error": expected}
    assert data(CHAT.error_event(BROKEN)) == {"error": expected}


def test_anthropic_errors_have_its_types() -> None:
    types = {
        400: "invalid_request_error",
        401: "authentication_error",
        404: "not_found_error",
        429: "rate_limit_error",
    }
    types |= {500: "api_error", 502: "api_error", 503: "overloaded_error", 529: "overloaded_error"}
    for status, kind in types.items():
        body = orjson.loads(MESSAGES.error_body(Failure(status, "?", "m")))
        assert body == {"type": "error", "error": {"type": kind, "message": "m"}}
    assert MESSAGES.error_event(FULL).startswith(b"event: error\n")


def test_a_failed_responses_stream_tells_codex_when_to_retry() -> None:
    event = data(RESPONSES.error_event(FULL))
    assert event["type"] == "response.failed"
    assert event["response"]["error"] == {
        "code": "rate_limit_exceeded",
        "message": "Too many agents. Please try again in 12s.",
    }


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"])
@pytest.mark.parametrize("failure", [FULL, BROKEN, Failure(400, "invalid_request_error", "m")])
def test_what_we_write_as_an_error_is_read_as_one(path: str, failure: Failure) -> None:
    dialect = BY_PATH[path]
    read = dialect.is_error(data(dialect.error_event(failure)))
    assert read is not None
    assert (read.status // 100, read.kind) == (failure.status // 100, failure.kind)
    assert read.message.startswith(failure.message)


@pytest.mark.parametrize(
    ("path", "event", "status"),
    [
        # vLLM, as recorded: an admission rejection inside a 200.
        ("/v1/chat/completions", {"error": {"message": "m", "type": "ServiceUnavailableError", "code": 503}}, 503),
        ("/v1/chat/completions", {"object": "error", "message": "m", "type": "BadRequestError", "code": 400}, 400),
        ("/v1/chat/completions", {"error": {"message": "m", "type": "Overloaded"}}, 503),
        ("/v1/chat/completions", {"error": "m"}, 500),
        ("/v1/messages", {"type": "error", "error": {"type": "overloaded_error", "message": "m"}}, 503),
        ("/v1/responses", {"type": "error", "code": "rate_limit_exceeded", "message": "m"}, 429),
        ("/v1/responses", {"type": "error", "error": {"code": 503, "message": "m"}}, 503),
        (
            "/v1/responses",
            {"type": "response.failed", "response": {"error": {"code": "server_error", "message": "m"}}},
            500,
        ),
    ],
)
def test_engine_errors_in_a_stream_are_seen(path: str, event: Json, status: int) -> None:
    failure = BY_PATH[path].is_error(event)
    assert failure is not None
    assert (failure.status, failure.message) == (status, "m")


@pytest.mark.parametrize(
    ("path", "event"),
    [
        ("/v1/chat/completions", {"choices": [], "error": None}),
        ("/v1/responses", {"type": "response.completed", "response": {"error": None}}),
        ("/v1/responses", {"object": "response", "error": None}),
        ("/v1/messages", {"type": "ping"}),
    ],
)
def test_ordinary_events_are_no_errors(path: str, event: Json) -> None:
    assert BY_PATH[path].is_error(event) is None
