"""Of an answer that is too much to be read in a step the outline is read, and the client gets all of it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import orjson
import pytest

from benchmarks.fuzz.targets import FuzzedGateway
from gateway.core import fields, pieces
from gateway.core.fields import Json
from gateway.core.reply import MOST_CALLS, Reply
from gateway.core.sse import EventTooLong
from gateway.core.sse import event as sse_event
from gateway.dialects import BY_PATH
from gateway.dialects.rounds import RoundCall
from gateway.engines.openai import OpenAI
from gateway.request import stream_relay, upstream_response
from gateway.request.inprocess import InProcessResponder
from gateway.request.stream_relay import EVENT_LINES, EVENT_VALUES, READ_BYTES, StreamRelay
from gateway.request.upstream_request import Call
from policies.types import Usage
from tests.fuzz.shapes import (
    ANSWERS,
    CHAT,
    COMPLETIONS,
    MESSAGES,
    NAMES,
    RESPONSES,
    SHORT,
    SPOKEN,
    block,
    chat_answer,
    event,
    message_answer,
    messages_stream,
    raw_of,
    response_answer,
    tool_use,
)

COUNTED = {"prompt_tokens": 7, "completion_tokens": 5, "input_tokens": 7, "output_tokens": 5}
LONG = "word " * (READ_BYTES // 5 + 1)


@pytest.fixture(autouse=True)
def logs_again() -> Iterator[None]:
    """The gateway of the fuzzer switches logging off."""
    yield
    logging.disable(logging.NOTSET)


@contextmanager
def parses() -> Iterator[list[int]]:
    """The bytes that each call of a parser gets meanwhile."""
    parsed_bytes = [0]

    class Counting:
        JSONDecodeError, JSONEncodeError = orjson.JSONDecodeError, orjson.JSONEncodeError
        dumps = staticmethod(orjson.dumps)

        @staticmethod
        def loads(text: Any) -> Any:
            parsed_bytes.append(len(text))
            return orjson.loads(text)

    with patch.object(fields, "orjson", Counting), patch.object(pieces, "orjson", Counting):
        yield parsed_bytes


def relay_of(path: str, reply: Reply) -> StreamRelay:
    return StreamRelay(BY_PATH[path], OpenAI(), reply, Call("POST", "", (), None))


def relayed(path: str, events: list[bytes]) -> Reply:
    """The reply of a stream that comes to the client as it is, and is whole."""
    reply = Reply()
    relay = relay_of(path, reply)
    assert b"".join(map(relay.feed, events)) + relay.rest() == b"".join(events)
    assert relay.has_finished or relay.is_done
    return reply


def in_the_middle(path: str, what: bytes) -> list[bytes]:
    events = SPOKEN[path](["Hello ", "you"])
    return [*events[: len(events) // 2], what, *events[len(events) // 2 :]]


def too_much() -> dict[str, bytes]:
    """Events of any format that are not read."""
    return {
        "letters": sse_event(orjson.dumps({"choices": [{"delta": {"content": LONG}}], "x": LONG})),
        "values": sse_event(b'{"x":[' + b"1," * EVENT_VALUES + b"1]}"),
        "lists": sse_event(b'{"x":[' + b"[]," * EVENT_VALUES + b"1]}"),
        "lists in lists": sse_event(b'{"x":[' + (b"[" * 1_100 + b"]" * 1_100 + b",") * 1_000 + b"1]}"),
        "lines": b"data: {\n" + b"data: \n" * 10 * EVENT_LINES + b"data: }\n\n",
        "line ends": b"data: {}\r" + b"id: 1\r" * 20_000 + b"\r\n",
        "no JSON": sse_event(b'{"x":' + b"[1," * EVENT_VALUES),
        "no object": sse_event(b"[" + b"1," * EVENT_VALUES + b"1]"),
    }


@pytest.mark.parametrize("path", NAMES)
def test_long_texts_and_calls_of_an_ordinary_event_are_read(path: str) -> None:
    text = LONG[: READ_BYTES // 2]
    assert relayed(path, SPOKEN[path]([text, "\n"])).text == text + "\n"


@pytest.mark.parametrize("what", too_much())
@pytest.mark.parametrize("path", NAMES)
def test_an_event_that_is_too_much_goes_by_and_its_bytes_count(path: str, what: str) -> None:
    passed = too_much()[what]
    with parses() as parsed_bytes:
        reply = relayed(path, in_the_middle(path, passed))
    assert reply.text == "Hello you"
    assert reply.num_other_chars >= len(passed)
    assert max(parsed_bytes) < 1_000


ENDS: dict[str, Json] = {
    RESPONSES: {
        "type": "response.completed",
        "response": response_answer([{"type": "message", "content": LONG}]) | {"usage": COUNTED},
    },
    MESSAGES: {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": COUNTED, "x": LONG},
    CHAT: {"choices": [{"index": 0, "delta": {}, "logprobs": LONG}], "usage": COUNTED},
    COMPLETIONS: {"choices": [{"index": 0, "text": "", "logprobs": LONG}], "usage": COUNTED},
}


@pytest.mark.parametrize("path", NAMES)
def test_an_end_that_is_too_much_says_that_it_is_the_end_and_what_it_took(path: str) -> None:
    *begun, end = SPOKEN[path](["Hello"])
    events = [*begun, sse_event(orjson.dumps(ENDS[path])), *([] if path == RESPONSES else [end])]
    reply = relayed(path, events)
    assert (reply.text, reply.usage) == ("Hello", Usage(7, None, 5))


@pytest.mark.parametrize("path", NAMES)
def test_an_error_that_is_too_much_is_an_error(path: str) -> None:
    failed = {"type": "error", "error": {"message": "no room", "type": "server_error"}, "x": LONG}
    relay = relay_of(path, Reply())
    relay.feed(sse_event(orjson.dumps(failed)))
    assert relay.failure is not None
    assert relay.failure.message == "no room"


def test_what_repeats_the_request_is_no_text_of_the_answer() -> None:
    begun = event("response.created", response={"id": "r", "instructions": LONG})
    reply = Reply()
    relay = StreamRelay(BY_PATH[RESPONSES], OpenAI(), reply, Call("POST", "", (), begun))
    assert relay.feed(begun) == b""
    assert reply.num_other_chars == 0
    assert relay.feed(event("response.output_text.delta", output_index=0, delta="a")).startswith(begun)


def test_where_calls_of_the_gateway_s_tools_may_be_in_it_it_is_a_fault() -> None:
    format_ = BY_PATH[CHAT].tool_format()
    assert format_ is not None
    completed: list[RoundCall] = []
    answer = format_.new_answer(lambda name: True, completed.append)
    relay = StreamRelay(
        BY_PATH[CHAT], OpenAI(), Reply(), Call("POST", "", (), None), answer.round(1, must_end=False)
    )
    with pytest.raises(EventTooLong, match="tools"):
        relay.feed(too_much()["values"])


def test_pieces_of_a_long_stream_are_parsed_a_few_at_a_time() -> None:
    piece = "piece " * 100
    with parses() as parsed_bytes:
        reply = relayed(CHAT, SPOKEN[CHAT]([piece] * 5_000))
    assert reply.text == piece * 5_000
    assert max(parsed_bytes) < 300_000


# ---- answers that are not streamed


def answer_of(path: str, text: str, more: Json) -> Json:
    made: dict[str, Callable[[], Json]] = {
        CHAT: lambda: chat_answer({"content": text}),
        COMPLETIONS: lambda: {"id": "c", "choices": [{"index": 0, "text": text, "finish_reason": "stop"}]},
        RESPONSES: lambda: response_answer(
            [{"type": "message", "content": [{"type": "output_text", "text": text}]}]
        ),
        MESSAGES: lambda: message_answer([{"type": "text", "text": text}]),
    }
    return made[path]() | {"model": "m", "usage": COUNTED} | more


def replied(path: str, raw: bytes, settings: Json | None = None) -> tuple[InProcessResponder, Reply, list[int]]:
    """What the client gets, what was read, and the bytes that each call of a parser got."""
    replies: list[Reply] = []
    read_into = stream_relay.read_into

    def noted(reply: Reply, *more: Any) -> None:
        read_into(reply, *more)
        replies.append(reply)

    gateway = FuzzedGateway(settings if settings is not None else {"tools": {}})
    with patch.object(upstream_response, "read_into", noted), parses() as parsed_bytes:
        answer = gateway.ask(path, raw_of(SHORT[path]), [b"\2\1" + raw] * 3)
    gateway.close()
    return answer, replies[-1] if replies else Reply(), parsed_bytes


@pytest.mark.parametrize("path", NAMES)
def test_a_large_answer_is_read_whole(path: str) -> None:
    text = LONG[: READ_BYTES // 2]
    raw = orjson.dumps(answer_of(path, text, {}))
    answer, reply, _ = replied(path, raw)
    assert (answer.status, answer.body) == (200, raw)
    assert (reply.text, reply.usage) == (text, Usage(7, None, 5))


@pytest.mark.parametrize("what", ["letters", "values"])
@pytest.mark.parametrize("path", NAMES)
def test_an_answer_that_is_too_much_goes_by_and_its_usage_counts(path: str, what: str) -> None:
    more: Json = {"x": LONG} if what == "letters" else {"x": [[]] * 200_000}
    raw = orjson.dumps(answer_of(path, "Hello", more))
    assert what == "letters" or len(raw) < READ_BYTES
    answer, reply, parsed_bytes = replied(path, raw)
    assert (answer.status, answer.body) == (200, raw)
    assert (reply.text, reply.model, reply.usage) == ("", "m", Usage(7, None, 5))
    assert reply.is_complete
    assert max(parsed_bytes) < 1_000


USAGE = orjson.dumps(COUNTED)


@pytest.mark.parametrize(
    ("end", "is_read"),
    [
        (b',"usage":%b}' % USAGE, True),
        (b', "usage" : %b , "x": null}\n' % USAGE, True),
        (b',"usage":{"prompt_tokens":99},"usage":%b}' % USAGE, True),
        (b',"usage":%b,"x":"%b"}' % (USAGE, b"x" * 30_000), True),
        (b',"usage":%b,"x":"%b"}' % (USAGE, b"x" * 70_000), False),
        (b',"x":",\\"usage\\":{\\"prompt_tokens\\":7}"}', False),
        (b',"usage":null}', False),
        (b',"usage":{"prompt_tokens":}}', False),
        (b',"usage":' + b'{"a":' * 10_000 + b"1" + b"}" * 10_001, False),
        (b"}", False),
    ],
)
@pytest.mark.parametrize("path", NAMES)
def test_of_an_answer_that_is_too_long_for_an_outline_the_usage_at_its_end_counts(
    path: str, end: bytes, is_read: bool
) -> None:
    made = answer_of(path, LONG, {})
    del made["usage"]
    raw = orjson.dumps(made)[:-1] + end
    with patch.object(upstream_response, "OUTLINED_BYTES", READ_BYTES):
        answer, reply, _ = replied(path, raw)
    assert (answer.status, answer.body) == (200, raw)
    assert reply.charge == (Usage(7, None, 5) if is_read else Usage(None, None, len(raw) // 4))


@pytest.mark.parametrize("raw", [b"{" + b" " * READ_BYTES, b"[" + b" " * READ_BYTES + b"]"])
def test_what_is_no_object_is_no_answer_however_long(raw: bytes) -> None:
    answer, _, _ = replied(CHAT, raw)
    assert answer.status == 502


def test_an_answer_that_is_too_much_to_be_searched_for_calls_of_the_gateway_s_tools_is_a_502() -> None:
    raw = orjson.dumps(answer_of(CHAT, LONG, {}))
    answer, _, _ = replied(CHAT, raw, {})
    assert answer.status == 502
    assert b"tools" in answer.body


@pytest.mark.parametrize("name", [name for name, (_, path, _) in ANSWERS.items() if "calls" in name])
def test_no_more_calls_are_read_than_any_model_makes(name: str) -> None:
    _, path, made = ANSWERS[name]
    _, reply, _ = replied(path, orjson.dumps(made(4 * MOST_CALLS)))
    assert len(reply.tool_calls) == MOST_CALLS


def test_no_more_calls_of_a_stream_are_read_than_any_model_makes() -> None:
    calls = [piece for at in range(2 * MOST_CALLS) for piece in block(at, tool_use(at), [])]
    assert len(relayed(MESSAGES, messages_stream(calls, "tool_use")).tool_calls) == MOST_CALLS
