"""Engines that fail in ways that no status says: what is no answer, what does not fit, what changes meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import aiohttp
import orjson
import pytest
from aiohttp import web

from gateway.core.sse import MAX_EVENT_BYTES
from tests.deadline import DEADLINE_S
from tests.path.conftest import Gateway, Start
from tests.path.fake_engine import (
    DONE,
    Call,
    FakeEngine,
    Play,
    chunk,
    cuts_after,
    error,
    finish,
    replies,
    streams,
    usage,
)
from tests.path.faults import ENGINE, counted, fault, faults, outcomes
from tests.path.secured import by, keys
from tests.path.test_faults import ASK, STREAM, pair, receipt
from tests.path.test_limits import LONG, used
from tests.path.toolkit import Bench, Says

HTML = {"Content-Type": "text/html"}
GIANT = [b"data: " + b"x" * 2**20, *[b"x" * 2**20] * (MAX_EVENT_BYTES // 2**20)]
IN_TURN = {"placement": "benchmarks.simulation.placement:round_robin"}


async def is_replaced_unseen(gateway: Gateway, body: Mapping[str, object], kind: str) -> None:
    answer = await gateway.ask(body)
    assert answer.status == 200
    assert b"hello" in answer.body
    assert sum(len(engine.calls) for engine in gateway.engines) == 2
    assert await counted(gateway, faults(kind)) == 1
    await gateway.is_empty()


@fault(
    ENGINE, "refuses connections", "another replica, unseen; no turn for it until a poll works", faults("refused")
)
async def test_an_engine_that_refuses_connections_is_counted_and_left(start: Start) -> None:
    first, second = FakeEngine(), FakeEngine()
    gateway = await start(first, second, policy=IN_TURN)
    await first.stop()
    for n in range(4):
        answer = await gateway.ask({"model": "m", "messages": [{"role": "user", "content": f"task {n}"}]})
        assert answer.status == 200
    assert await counted(gateway, faults("refused")) == 1


@fault(ENGINE, "resets before the first byte", "another replica, unseen", faults("reset"))
async def test_a_reset_before_the_first_byte_is_counted(start: Start) -> None:
    gateway, *_ = await pair(start, cuts_after(b""))
    await is_replaced_unseen(gateway, STREAM, "reset")


@fault(ENGINE, "resets during its answer", "the client's stream is reset, and clients retry", faults("reset"))
async def test_a_reset_in_an_answer_is_counted(start: Start) -> None:
    gateway, *_ = await pair(start, cuts_after(chunk(content="half")))
    answer = await gateway.ask(STREAM)
    assert answer.is_cut
    assert await counted(gateway, faults("reset")) == 1
    assert await counted(gateway, outcomes("engine_cut")) == 1


@fault(
    ENGINE,
    "sends bytes that are no HTTP in its answer",
    "the client's stream is reset, and clients retry; its bytes are not logged",
    faults("reset"),
)
async def test_nonsense_in_an_answer_is_counted(start: Start) -> None:
    async def play(call: Call) -> None:
        await call.write(chunk(content="half"))
        await is_read.wait()
        assert call._request.transport is not None
        call._request.transport.write(b"nonsense\r\n")

    is_read = asyncio.Event()
    gateway, *_ = await pair(start, play)
    async with gateway.post(STREAM) as response:
        assert await response.content.readany() == chunk(content="half")
        is_read.set()
        with pytest.raises(aiohttp.ClientPayloadError):
            await response.read()
    assert await counted(gateway, faults("reset")) == 1
    assert await counted(gateway, outcomes("engine_cut")) == 1


@fault(ENGINE, "ends its stream without a finish", "the client's stream is reset", faults("no_end"))
async def test_a_clean_end_without_a_finish_is_counted(start: Start) -> None:
    gateway, *_ = await pair(start, streams([chunk(content="half")]))
    assert (await gateway.ask(STREAM)).is_cut
    assert await counted(gateway, faults("no_end")) == 1


DEEP = b'{"a":' * 300 + b"1" + b"}" * 300
DEEP_ANSWERS = {
    "/v1/chat/completions": (
        b'{"id":"c","model":"m","choices":[{"index":0,"message":{"role":"assistant","content":"x","x":%s}}]}',
        [b'data: {"id":"c","choices":[{"index":0,"delta":{"content":"x","x":%s}}]}\n\n'],
    ),
    "/v1/messages": (
        b'{"id":"c","type":"message","content":[{"type":"tool_use","id":"t","name":"f","input":%s}]}',
        [
            b'data: {"type":"message_start","message":{"id":"c","model":"m","usage":{"input_tokens":1}}}\n\n',
            b'data: {"type":"content_block_start","index":0,"content_block":{"type":"tool_use","id":"t",'
            b'"name":"f","input":%s}}\n\n',
        ],
    ),
    "/v1/responses": (
        b'{"id":"resp_1","object":"response","status":"completed","output":[{"type":"message","x":%s}]}',
        [b'data: {"type":"response.output_item.done","output_index":0,"item":{"type":"message","x":%s}}\n\n'],
    ),
}


@fault(
    ENGINE,
    "nests its answer deeper than anything writes",
    "passed on, or 502 where it has to be read or changed; during its answer the client's stream is reset",
    faults("no_answer"),
)
@pytest.mark.parametrize("path", DEEP_ANSWERS)
@pytest.mark.parametrize("silent_queue_s", [0, 90])
@pytest.mark.parametrize("with_tools", [False, True])
async def test_an_answer_that_is_too_deep_to_be_written_again_is_a_fault_of_the_engine(
    start: Start, engine: FakeEngine, path: str, silent_queue_s: float, with_tools: bool
) -> None:
    tools = {"tools": Bench().settings()} if with_tools else {}
    gateway = await start(engine, stream={"silent_queue_s": silent_queue_s}, **tools)
    whole, events = DEEP_ANSWERS[path]
    ask = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}], "input": "hi"}
    for stream in (False, True):
        parts = [event.replace(b"%s", DEEP) for event in events]
        engine.otherwise = streams(parts) if stream else replies(200, whole.replace(b"%s", DEEP))
        answer = await gateway.ask(ask | {"stream": stream}, path)
        assert answer.status in (200, 502)
        assert b"The gateway failed" not in answer.body
        await gateway.is_empty()
    assert await counted(gateway, outcomes("gateway_error")) == 0


@fault(ENGINE, "drips byte by byte", "each event is sent once it is complete", outcomes("answered"))
async def test_a_drip_of_bytes_arrives_whole(start: Start, engine: FakeEngine) -> None:
    whole = b"".join([chunk(content="drip"), finish(), DONE])
    engine.plays = [streams(whole[n : n + 1] for n in range(len(whole)))]
    gateway = await start(engine)
    assert (await gateway.ask(STREAM)).body == whole


@fault(ENGINE, "status 200 and an error as first event", "another replica, unseen", faults("error"))
@pytest.mark.parametrize("body", [ASK, STREAM], ids=["plain", "stream"])
async def test_an_error_under_status_200_is_no_answer(start: Start, body: dict[str, object]) -> None:
    told = error("out of memory", 500)
    play = streams([b"data: " + orjson.dumps(told) + b"\n\n"]) if body is STREAM else replies(200, told)
    gateway, *_ = await pair(start, play)
    await is_replaced_unseen(gateway, body, "error")


@fault(ENGINE, "an error in the middle of its stream", "the error is passed on, then a reset", faults("error"))
async def test_an_error_in_the_middle_is_counted(start: Start, engine: FakeEngine) -> None:
    told = b"data: " + orjson.dumps(error("out of memory", 500)) + b"\n\n"
    engine.plays = [streams([chunk(content="half"), told, DONE])]
    gateway = await start(engine)
    answer = await gateway.ask(STREAM)
    assert answer.is_cut
    assert answer.body == chunk(content="half") + told
    assert await counted(gateway, faults("error")) == 1


@fault(ENGINE, "429, 503 or 529", "another replica, unseen", faults("full"))
@pytest.mark.parametrize("status", [429, 503, 529])
async def test_a_full_engine_is_counted_and_is_no_broken_one(start: Start, status: int) -> None:
    gateway, *_ = await pair(start, replies(status, error("full", status)))
    await is_replaced_unseen(gateway, ASK, "full")


@fault(ENGINE, "all are full, with `Retry-After`", "its status, and its `Retry-After`", outcomes("engine_refused"))
@pytest.mark.parametrize("status", [429, 503])
async def test_how_long_a_full_engine_asks_to_wait_is_passed_on(
    start: Start, engine: FakeEngine, status: int
) -> None:
    engine.plays = [replies(status, error("full", status), **{"Retry-After": "17"})]
    answer = await (gateway := await start(engine)).ask(ASK)
    assert (answer.status, answer.headers["Retry-After"]) == (status, "17")
    assert await counted(gateway, outcomes("engine_refused")) == 1


@fault(ENGINE, "all are full, without `Retry-After`", "its status, `Retry-After: 5`", outcomes("engine_refused"))
@pytest.mark.parametrize("retry_after", ["", "soon", "nan", "-3"])
async def test_a_full_engine_that_names_no_time_gets_a_usual_one(
    start: Start, engine: FakeEngine, retry_after: str
) -> None:
    engine.plays = [replies(429, error("full", 429), **({"Retry-After": retry_after} if retry_after else {}))]
    assert (await (await start(engine)).ask(ASK)).headers["Retry-After"] == "5"


@fault(ENGINE, "500, 502 or 504", "another replica, unseen; none left: its own error", faults("status"))
@pytest.mark.parametrize("status", [500, 502, 504])
async def test_a_broken_engine_is_counted(start: Start, status: int) -> None:
    gateway, *_ = await pair(start, replies(status, error("boom", status)))
    await is_replaced_unseen(gateway, ASK, "status")


@fault(ENGINE, "refuses the gateway's key", "another replica; none left: 502 with the reason", faults("key"))
async def test_a_refused_key_is_counted(start: Start) -> None:
    gateway, *_ = await pair(start, replies(401, error("bad key", 401)))
    await is_replaced_unseen(gateway, ASK, "key")


NO_ANSWERS = {
    "html": (replies(200, b"<html>Welcome to the proxy</html>", **HTML), ASK),
    "html for a stream": (replies(200, b"<html>Welcome to the proxy</html>", **HTML), STREAM),
    "a stream that was not asked for": (streams([chunk(content="no"), finish(), DONE]), ASK),
    "a list": (replies(200, b"[1, 2]"), ASK),
    "bytes that are no UTF-8": (replies(200, b'{"choices": "\xff\xfe"}'), ASK),
    "nothing": (replies(200, b""), ASK),
    "an empty stream": (streams([b""]), STREAM),
}


@fault(ENGINE, "wrong content type, or a body that is no JSON", "another replica, unseen", faults("no_answer"))
@pytest.mark.parametrize(("play", "body"), NO_ANSWERS.values(), ids=NO_ANSWERS)
async def test_status_200_without_an_answer_is_replaced_unseen(
    start: Start, play: Play, body: dict[str, object]
) -> None:
    gateway, *_ = await pair(start, play)
    await is_replaced_unseen(gateway, body, "no_answer")


@fault(
    ENGINE, "wrong content type, and no other replica", "502 that names the content type", outcomes("engine_cut")
)
async def test_no_answer_of_the_only_engine_is_a_502(start: Start, engine: FakeEngine) -> None:
    engine.plays = [replies(200, b"<html>", **HTML)]
    answer = await (await start(engine)).ask(ASK)
    assert answer.status == 502
    assert b"no JSON object (Content-Type: text/html" in answer.body


@fault(
    ENGINE, "ends its last event without an empty line", "read and passed on like any other", outcomes("answered")
)
@pytest.mark.parametrize("last", [finish(), DONE], ids=["finish", "end marker"])
async def test_the_last_event_of_a_stream_needs_no_empty_line(
    start: Start, engine: FakeEngine, last: bytes
) -> None:
    parts = [chunk(content="hello"), *([finish()] if last is DONE else []), last.rstrip()]
    engine.plays = [streams(parts)]
    gateway = await start(engine)
    answer = await gateway.ask(STREAM)
    assert (answer.body, answer.is_cut) == (b"".join(parts), False)
    assert await counted(gateway, outcomes("answered")) == 1


async def test_usage_that_only_the_gateway_asked_for_stays_hidden_at_the_end_too(
    start: Start, engine: FakeEngine
) -> None:
    engine.plays = [streams([chunk(content="hello"), finish(), usage().rstrip()])]
    assert (await (await start(engine)).ask(STREAM)).body == chunk(content="hello") + finish()


LOOSE = {
    "half a pair": rb'"\ud800 \uD83D\uDE00"',
    "a number that is none": b'NaN, "more": -Infinity',
    "a number that is too large": b"1e999",
}
"""Values that Python's parser reads, and strict parsers do not."""
USAGE = b'"usage": {"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9}'


def loose_answer(value: bytes, text: bytes = b"hello") -> bytes:
    choice = b'{"index": 0, "message": {"role": "assistant", "content": "%b", "x": %b}, "finish_reason": "stop"}'
    return b'{"id": "c", "choices": [%b], %b}' % (choice % (text, value), USAGE)


@fault(
    ENGINE,
    "a whole answer with half a surrogate pair, NaN or Infinity",
    "passed on unchanged; one of 256 KiB or more is not read, and charged by its length",
    outcomes("answered"),
)
@pytest.mark.parametrize("text", [b"hello", b"x" * 2**18], ids=["small", "large"])
@pytest.mark.parametrize("value", LOOSE.values(), ids=LOOSE)
async def test_an_answer_that_is_loose_json_passes_unchanged(
    start: Start, engine: FakeEngine, value: bytes, text: bytes
) -> None:
    engine.plays = [replies(200, loose_answer(value, text))]
    gateway = await start(engine, keys=keys("a", limits={"budget_tokens": 10**6, **LONG}))
    answer = await gateway.ask(ASK, **by("a"))
    assert (answer.status, answer.body) == (200, loose_answer(value, text))
    charged = 9 if len(text) < 2**18 else len(answer.body) // 4
    assert await used(gateway, "budget_tokens") == pytest.approx(charged, rel=0.1)


@pytest.mark.parametrize("value", LOOSE.values(), ids=LOOSE)
async def test_events_that_are_loose_json_pass_unchanged_and_end_an_answer(
    start: Start, engine: FakeEngine, value: bytes
) -> None:
    text = b'data: {"type":"response.output_text.delta","delta":"a","x":%b}\n\n' % value
    end = b'data: {"type":"response.completed","response":{"id":"r","status":"completed","x":%b}}\n\n' % value
    engine.plays = [streams([text, text, end])]
    answer = await (await start(engine)).ask({"model": "m", "input": "hi", "stream": True}, "/v1/responses")
    assert (answer.body, answer.is_cut) == (text + text + end, False)


@pytest.mark.parametrize("value", LOOSE.values(), ids=LOOSE)
async def test_an_answer_that_is_loose_json_may_call_tools(start: Start, engine: FakeEngine, value: bytes) -> None:
    bench = Bench()
    call = Says("I look.", (("call_1", "search", '{"q": "a"}'),)).body()
    first = orjson.dumps(call).replace(b'"usage":', b'"x":%b,"usage":' % value)
    engine.plays = [replies(200, first), replies(200, loose_answer(value))]
    answer = await (await start(engine, tools=bench.settings())).ask(ASK)
    assert answer.status == 200
    assert orjson.loads(answer.body)["choices"][0]["message"]["content"] == "I look.\n\nhello"
    assert bench.ran == [("search", {"q": "a"})]


async def test_the_type_of_a_stream_may_be_written_in_any_case(start: Start, engine: FakeEngine) -> None:
    async def play(call: Call) -> web.StreamResponse | None:
        await call.start(content_type="Text/Event-Stream; charset=UTF-8")
        return await streams([chunk(content="hello"), finish(), DONE])(call)

    engine.plays = [play]
    answer = await (await start(engine)).ask(STREAM)
    assert answer.status == 200
    assert answer.body == bytes(engine.calls[0].sent)


@fault(ENGINE, "bytes that are no UTF-8 in a stream", "passed on unchanged", outcomes("answered"))
async def test_events_that_are_no_text_pass_unchanged(start: Start, engine: FakeEngine) -> None:
    odd = b'data: {"choices":[{"index":0,"delta":{"content":"\xff\xfe\x80"}}]}\n\n'
    engine.plays = [streams([odd, finish(), DONE])]
    assert (await (await start(engine)).ask(STREAM)).body == odd + finish() + DONE


@fault(ENGINE, "a giant line before its answer", "another replica; 8 MiB are held at most", faults("too_long"))
async def test_an_event_that_does_not_fit_is_replaced_unseen(start: Start) -> None:
    gateway, *_ = await pair(start, streams(GIANT))
    await is_replaced_unseen(gateway, STREAM, "too_long")


@fault(
    ENGINE,
    "comments without end before its answer",
    "another replica; 1 MiB of them is held at most",
    faults("too_long"),
)
@pytest.mark.parametrize(
    "comment", [b": ping\n\n", b":" + b"x" * 2**18 + b"\n\n", b"\n\n"], ids=["short", "long", "empty"]
)
async def test_comments_that_do_not_end_are_replaced_unseen(start: Start, comment: bytes) -> None:
    many = comment * (1 + 4 * 2**20 // len(comment))
    gateway, *_ = await pair(start, streams([many, chunk(content="late"), finish(), DONE]))
    await is_replaced_unseen(gateway, STREAM, "too_long")


async def test_what_an_engine_sends_on_arrival_may_be_as_long_as_the_request(
    start: Start, engine: FakeEngine
) -> None:
    begun = {"type": "response.created", "response": {"id": "r", "instructions": "x" * 900_000}}
    event = 2 * (b"event: response.created\ndata: " + orjson.dumps(begun) + b"\n\n")
    text = b'data: {"type":"response.output_text.delta","delta":"hello"}\n\n'
    end = b'data: {"type":"response.completed","response":{"id":"r","status":"completed"}}\n\n'
    engine.plays = [streams([b": ping\n\n" * 1_000, event, text, end])]
    ask = {"model": "m", "input": "hi", "instructions": "x" * 900_000, "stream": True}
    answer = await (await start(engine)).ask(ask, "/v1/responses")
    assert answer.body == b": ping\n\n" * 1_000 + event + text + end


MUCH = orjson.dumps({"id": "c", "usage": {"prompt_tokens": 7, "completion_tokens": 5}, "more": [[]] * 200_000})
MUCH_EVENT = b"data: " + MUCH + b"\n\n"


@fault(
    ENGINE,
    "an answer, or an event of it, of more than 2 MiB or of too many values",
    "passed on; its usage counts, its text is not read",
    outcomes("answered"),
)
@pytest.mark.parametrize("wants_stream", [False, True])
async def test_what_is_too_much_to_be_read_is_passed_on(
    start: Start, engine: FakeEngine, wants_stream: bool
) -> None:
    events = [chunk(content="half"), MUCH_EVENT, finish(), DONE]
    engine.plays = [streams(events) if wants_stream else replies(200, MUCH)]
    gateway = await start(engine)
    answer = await gateway.ask(STREAM if wants_stream else ASK)
    assert answer.body == (b"".join(events) if wants_stream else MUCH)
    told = await receipt(gateway, answer.headers)
    assert (told["prompt_tokens"], told["output_tokens"]) == (7, 5)
    assert await counted(gateway, outcomes("answered")) == 1


@fault(
    ENGINE,
    "the same, where tools of the gateway may be called",
    "another replica, unseen; during its answer the client's stream is reset",
    faults("too_long"),
)
async def test_what_is_too_much_to_be_searched_for_calls_is_a_fault(start: Start, engine: FakeEngine) -> None:
    plays = [replies(200, MUCH)]
    second = FakeEngine()
    engine.plays = second.plays = plays
    gateway = await start(engine, second, tools=Bench().settings())
    await is_replaced_unseen(gateway, ASK, "too_long")
    plays.append(streams([chunk(content="half"), MUCH_EVENT, finish(), DONE]))
    answer = await gateway.ask(STREAM)
    assert (answer.is_cut, answer.body) == (True, chunk(content="half"))


@fault(ENGINE, "a giant line during its answer", "the client's stream is reset", faults("too_long"))
async def test_an_event_that_does_not_fit_ends_an_answer(start: Start, engine: FakeEngine) -> None:
    engine.plays = [streams([chunk(content="half"), *GIANT])]
    gateway = await start(engine)
    answer = await gateway.ask(STREAM)
    assert answer.is_cut
    assert answer.body == chunk(content="half")
    assert await counted(gateway, faults("too_long")) == 1


@fault(ENGINE, "model swapped", "another replica, unseen; the next poll learns of it", faults("no_model"))
async def test_a_model_that_is_gone_is_looked_for_elsewhere(start: Start) -> None:
    told = error("The model `m` does not exist.", 404, "NotFoundError", "model")
    gateway, *_ = await pair(start, replies(404, told))
    await is_replaced_unseen(gateway, ASK, "no_model")


@fault(ENGINE, "fails call after call", "its circuit opens: no turn for it, then a trial", faults("opened"))
async def test_a_replica_that_fails_again_and_again_is_left_alone(start: Start) -> None:
    first, second = FakeEngine(), FakeEngine()
    first.plays = [replies(500, error("boom", 500))] * 99
    probing = {"hints": False, "interval_s": 3600, "breaker_failures": 3}
    gateway = await start(first, second, policy=IN_TURN, probing=probing)
    for n in range(20):
        body = {"model": "m", "messages": [{"role": "user", "content": f"{n} " * 400}]}
        assert (await gateway.ask(body)).status == 200
    assert len(first.calls) == 3
    assert await counted(gateway, faults("opened")) == 1


async def test_a_circuit_half_open_takes_one_call_and_closes_when_it_works(start: Start) -> None:
    first, second = FakeEngine(), FakeEngine()
    first.plays = [replies(500, error("boom", 500))] * 2
    probing = {"hints": False, "interval_s": 0.02, "breaker_failures": 2, "breaker_open_s": 0.05}
    gateway = await start(first, second, policy=IN_TURN, probing=probing)

    async def asked(n: int) -> None:
        body = {"model": "m", "messages": [{"role": "user", "content": f"{n} " * 400}]}
        assert (await gateway.ask(body)).status == 200

    async with asyncio.timeout(DEADLINE_S):
        n = 0
        while len(first.calls) < 6:
            await asked(n := n + 1)
    assert await counted(gateway, faults("opened")) == 1
