"""Byte truth: what the client receives is what the engine sent, less exactly what only we had asked for."""

from __future__ import annotations

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.reply import Reply
from gateway.dialects import BY_PATH
from gateway.engines.base import Outgoing
from gateway.engines.kinds import adapter_of
from gateway.request.stream_relay import StreamRelay
from gateway.request.upstream_request import Call
from tests.path.conftest import Start
from tests.path.fake_engine import DONE, FakeEngine, chunk, completion, finish, replies, streams, usage

ASK = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
STREAM = ASK | {"stream": True}
TOOL_CALL = chunk(tool_calls=[{"index": 0, "id": "call_1", "function": {"name": "f", "arguments": '{"a": 1}'}}])

EVENTS = st.lists(
    st.sampled_from(
        [
            chunk(content="a"),
            chunk(content='"usage":{},\\n\\ndata: x'),
            TOOL_CALL,
            b": ping\n\n",
            b"data: not json\n\n",
            b'data: {"choices":[]}\n\n',
            b'event: x\r\ndata: {"choices": [{"delta":{}}]}\r\n\r\n',
        ]
    ),
    max_size=8,
)


def relay(hides_usage: bool) -> StreamRelay:
    call = Call("POST", "", (), b"", Outgoing(), hides_usage)
    return StreamRelay(BY_PATH["/v1/chat/completions"], adapter_of("vllm"), Reply(), call)


@given(before=EVENTS, after=EVENTS, rest=st.sampled_from([b"", b"data: half"]), data=st.data())
def test_however_the_stream_is_cut_only_the_usage_event_is_missing(
    before: list[bytes], after: list[bytes], rest: bytes, data: st.DataObject
) -> None:
    sent = b"".join([chunk(role="assistant"), *before, usage(), *after, finish(), DONE, rest])
    cuts = sorted(data.draw(st.lists(st.integers(0, len(sent)), max_size=6)))
    parts = [sent[a:b] for a, b in zip([0, *cuts], [*cuts, len(sent)], strict=True)]
    for hides_usage in (True, False):
        one = relay(hides_usage)
        received = b"".join(one.feed(part) for part in parts) + one.rest()
        assert received == (sent.replace(usage(), b"") if hides_usage else sent)
        assert one.is_done


def test_what_dynamo_was_asked_for_is_taken_out_of_each_event_again() -> None:
    call = Call("POST", "", (), b"", Outgoing(reads_back=True), hides_usage=True)
    reply = Reply()
    one = StreamRelay(BY_PATH["/v1/chat/completions"], adapter_of("dynamo"), reply, call)
    events = [chunk(role="assistant"), chunk(content='},"nvext":{'), finish()]
    worker = b',"nvext":{"worker_id":{"decode_worker_id":18446744073709551557,"decode_dp_rank":0}}}\n\n'
    sent = b"".join(event.removesuffix(b"}\n\n") + worker for event in [*events, usage()]) + DONE
    received = b"".join(one.feed(sent[i : i + 50]) for i in range(0, len(sent), 50))
    assert received == b"".join(events) + DONE
    assert reply.served_by == "18446744073709551557"


async def test_a_stream_arrives_byte_for_byte_without_the_usage_that_we_asked_for(
    start: Start, engine: FakeEngine
) -> None:
    events = [chunk(role="assistant"), chunk(content="h\u00e9"), TOOL_CALL, finish("tool_calls")]
    whole = b"".join([*events, usage(), DONE])
    engine.plays = [streams([whole[i : i + 7] for i in range(0, len(whole), 7)])]
    gateway = await start(engine)
    answer = await gateway.ask(STREAM)
    assert answer.body == b"".join([*events, DONE])
    assert answer.status == 200
    assert orjson.loads(engine.calls[0].raw)["stream_options"] == {"include_usage": True}


async def test_usage_that_the_client_asked_for_stays(start: Start, engine: FakeEngine) -> None:
    gateway = await start(engine)
    answer = await gateway.ask(STREAM | {"stream_options": {"include_usage": True}})
    assert answer.body == engine.calls[0].sent
    assert usage() in answer.body


async def test_a_body_arrives_byte_for_byte(start: Start, engine: FakeEngine) -> None:
    odd = orjson.dumps(completion(), option=orjson.OPT_INDENT_2) + b"\n  "
    engine.plays = [replies(200, odd)]
    gateway = await start(engine)
    answer = await gateway.ask(ASK)
    assert answer.body == odd
    assert answer.headers["Content-Type"] == "application/json"


async def test_the_request_reaches_the_engine_byte_for_byte_where_nothing_is_to_be_added(
    start: Start, engine: FakeEngine
) -> None:
    gateway = await start(engine, policy={"name": "passthrough"})
    raw = (
        b'{ "model":"m",\n "x_unknown": 1e5, "messages" : [{"role":"user","content":"\\u00e9"}], "x_unknown": 2 }'
    )
    async with gateway.client.post(gateway.url("/v1/chat/completions"), data=raw) as response:
        assert response.status == 200
    assert engine.calls[0].raw == raw


async def test_only_spliced_fields_differ_in_a_stream_request(start: Start, engine: FakeEngine) -> None:
    gateway = await start(engine)
    raw = b'{ "model":"m", "stream" : true,"messages" : [{"role":"user","content":"hi"}] }'
    async with gateway.client.post(gateway.url("/v1/chat/completions"), data=raw) as response:
        await response.read()
    assert engine.calls[0].raw.startswith(raw[:-2].rstrip())
    assert orjson.loads(engine.calls[0].raw) == orjson.loads(raw) | {"stream_options": {"include_usage": True}}


async def test_headers_travel_but_for_those_of_one_connection(start: Start, engine: FakeEngine) -> None:
    gateway = await start(engine)
    headers = {"X_Custom": "1", "Authorization": "Bearer client", "Connection": "keep-alive, X-Hop", "X_Hop": "1"}
    await gateway.ask(ASK, **headers, X_Session_Id="ses_1", X_Turngate_Session="own", traceparent="00-1")
    got = engine.calls[0].headers
    assert got["X-Custom"] == "1"
    assert got["X-Session-Id"] == "ses_1"
    assert got["traceparent"] == "00-1"
    assert got["Accept-Encoding"] == "identity"
    assert not {"Authorization", "X-Hop", "X-Turngate-Session"} & set(got)


async def test_session_ids_stay_away_from_engines_that_may_be_somebody_elses(
    start: Start, engine: FakeEngine
) -> None:
    gateway = await start(engine, kind="openai")
    await gateway.ask(ASK, X_Session_Id="ses_1", thread_id="t", X_Codex_Turn_Metadata="{}")
    assert not {"X-Session-Id", "thread-id", "X-Codex-Turn-Metadata"} & set(engine.calls[0].headers)


@pytest.mark.parametrize("body", [ASK, STREAM])
async def test_each_answer_carries_its_receipt(start: Start, engine: FakeEngine, body: dict[str, object]) -> None:
    gateway = await start(engine)
    answer = await gateway.ask(body, X_Request_Id="mine")
    assert answer.headers["X-Turngate-Engine"] == "e1"
    assert answer.headers["X-Request-Id"] == "mine"
    async with gateway.get("/v1/turngate/receipts/" + answer.headers["X-Turngate-Receipt"]) as response:
        told = await response.json()
    assert told["outcome"] == "answered"
    assert told["session"] == answer.headers["X-Turngate-Session"]
    assert told["prompt_tokens"] == 7
