"""Events that are known by their bytes leave the same reply, and the same bytes, as events that are parsed."""

from __future__ import annotations

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.fields import Json
from gateway.core.reply import Reply
from gateway.core.sse import event
from gateway.dialects import BY_PATH
from gateway.engines.openai import OpenAI
from gateway.request.stream_relay import Deltas, StreamRelay, read_into
from gateway.request.upstream_request import Call

CHAT = "/v1/chat/completions"
TEXTS = st.lists(st.text(st.characters(codec="utf-8"), max_size=8), max_size=30)


def chat_event(delta: Json, finish: str | None = None, **more: object) -> Json:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
    return {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice], **more}


def events_of(path: str, texts: list[str]) -> list[Json]:
    """The deltas of one streamed answer."""
    if path == CHAT:
        first = {"role": "assistant", "content": ""}
        return [chat_event(first), *(chat_event({"content": text}) for text in texts), chat_event({}, "stop")]
    if path == "/v1/completions":
        return [{"choices": [{"index": 0, "text": text, "finish_reason": None}]} for text in texts]
    if path == "/v1/messages":
        kind = "content_block_delta"
        return [{"type": kind, "index": 0, "delta": {"type": "text_delta", "text": text}} for text in texts]
    kind = "response.output_text.delta"
    return [{"type": kind, "delta": text, "sequence_number": number} for number, text in enumerate(texts)]


def relayed(path: str, raw: list[bytes]) -> tuple[bytes, Reply]:
    reply = Reply()
    relay = StreamRelay(BY_PATH[path], OpenAI(), reply, Call("POST", "", (), None))
    out = b"".join(map(relay.feed, raw)) + relay.rest()
    return out, reply


def parsed(path: str, events: list[Json]) -> Reply:
    reply = Reply()
    for one in events:
        read_into(reply, one, BY_PATH[path], OpenAI())
    return reply


@pytest.mark.parametrize("path", [CHAT, "/v1/completions", "/v1/messages", "/v1/responses"])
@given(texts=TEXTS, cut=st.integers(1, 400))
def test_a_stream_reads_the_same_with_and_without_parsing_each_event(
    path: str, texts: list[str], cut: int
) -> None:
    events = events_of(path, texts)
    raw = [event(orjson.dumps(one)) for one in events]
    whole = b"".join(raw)
    for chunks in (raw, [whole], [whole[at : at + cut] for at in range(0, len(whole), cut)]):
        out, reply = relayed(path, chunks)
        assert out == whole
        assert reply == parsed(path, events)


@given(TEXTS)
def test_arguments_of_several_tool_calls_go_each_to_its_own(texts: list[str]) -> None:
    events = [chat_event({"content": "first "}), chat_event({"content": "a word"})]
    for index in range(2):
        start = {"index": index, "id": f"call_{index}", "function": {"name": "read", "arguments": ""}}
        events.append(chat_event({"tool_calls": [start]}))
        for text in texts:
            events.append(chat_event({"tool_calls": [{"index": index, "function": {"arguments": text}}]}))
    events.append(chat_event({}, "tool_calls"))
    assert relayed(CHAT, [event(orjson.dumps(one)) for one in events])[1] == parsed(CHAT, events)


def test_an_event_that_says_more_than_its_text_is_read() -> None:
    usage = {"prompt_tokens": 3, "completion_tokens": 2}
    events = [chat_event({"content": text}) for text in ("a", "b", "c")]
    events += [chat_event({"content": "d"}, "length"), chat_event({"content": "e"}, usage=usage)]
    reply = relayed(CHAT, [event(orjson.dumps(one)) for one in events])[1]
    assert (reply.text, reply.finish_reason, reply.usage.output_tokens) == ("abcde", "length", 2)


@pytest.mark.parametrize("piece", [b'x","role":"user', b"x\\", b'\\"', b'x"}}]}\n\ndata: {"content":"'])
def test_what_might_end_the_text_is_parsed(piece: bytes) -> None:
    reply = Reply()
    deltas = Deltas(reply)
    deltas.fold()
    reply.written.append("a")
    deltas.learn(b'data: {"content":"a"}\n\n')
    other = b'data: {"content":"' + piece + b'"}\n\n'
    assert deltas.take([b'data: {"content":"b"}\n\n', other, b'data: {"content":"c"}\n\n']) == 1
    assert deltas.take([other]) == 0


def test_pieces_that_are_no_text_are_passed_on_and_left_out() -> None:
    good, bad = event(orjson.dumps(chat_event({"content": "a"}))), b"\xff\xfe"
    out, reply = relayed(CHAT, [good, good.replace(b'"a"', b'"' + bad + b'"'), event(b"[DONE]")])
    assert bad in out
    assert reply.text == "a"
