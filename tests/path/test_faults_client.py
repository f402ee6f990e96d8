"""Clients that misbehave: slow, gone, impatient, or sending what nobody can read."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.deadline import DEADLINE_S
from tests.path.conftest import Gateway, Start
from tests.path.fake_engine import (
    DONE,
    FakeEngine,
    chunk,
    finish,
    replies,
    stalls_after,
    streams,
)
from tests.path.faults import CLIENT, counted, fault, outcomes
from tests.path.test_cancellation import ASK, ONE_SLOT, OTHER, STREAM, leave

PATHS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}]},
    "/v1/completions": {"prompt": "hi"},
    "/v1/messages": {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 5},
    "/v1/responses": {"input": "hi"},
    "/v1/embeddings": {"input": "hi"},
}
PART = chunk(content="x" * 2**16)
MANY_PARTS = 1_000
MOST_HELD_BYTES = 24 * 2**20
"""Between an engine and a client that does not read: the buffers of four sockets, and ours."""


def raw_request(body: bytes, path: str = "/v1/chat/completions", headers: str = "") -> bytes:
    return f"POST {path} HTTP/1.1\r\nHost: h\r\n{headers}Content-Length: {len(body)}\r\n\r\n".encode() + body


@asynccontextmanager
async def connected(gateway: Gateway) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.app.port, limit=2**20)
    async with asyncio.timeout(DEADLINE_S):
        yield reader, writer
    writer.close()


async def status_and_body(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """Of one answer that has a Content-Length."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
    length = int(head.partition("content-length: ")[2].partition("\r\n")[0])
    return int(head.split()[1]), await reader.readexactly(length)


@fault(CLIENT, "reads slowly", "the engine is slowed down; buffers are bounded", outcomes("answered"))
async def test_a_client_that_does_not_read_slows_the_engine_and_then_gets_everything(
    start: Start, engine: FakeEngine
) -> None:
    engine.plays = [streams([PART] * MANY_PARTS + [finish(), DONE])]
    gateway = await start(engine)
    async with gateway.post(STREAM) as response:
        call = await engine.has_seen(1)
        sent = -1
        while sent < len(call.sent):  # until nothing more goes out
            sent = len(call.sent)
            await asyncio.sleep(0.2)
        assert sent < MOST_HELD_BYTES < MANY_PARTS * len(PART)
        assert await response.content.read() == PART * MANY_PARTS + finish() + DONE


@fault(
    CLIENT,
    "closes its half of the connection",
    "it counts as gone: the engine's call is aborted",
    outcomes("client_gone"),
)
async def test_a_client_that_closes_its_half_has_gone(start: Start, engine: FakeEngine) -> None:
    engine.plays = [stalls_after()]
    gateway = await start(engine)
    async with connected(gateway) as (_, writer):
        writer.write(raw_request(orjson.dumps(ASK)))
        await engine.has_seen(1)
        writer.write_eof()
        await gateway.is_empty()
    assert await counted(gateway, outcomes("client_gone")) == 1


@fault(
    CLIENT,
    "breaks its connection, in any phase",
    "the engine's call is aborted, its slot is free",
    outcomes("client_gone"),
)
@pytest.mark.parametrize("parts", [(), (chunk(content="half"),)], ids=["before the answer", "in the answer"])
async def test_a_reset_by_the_client_stops_the_engine(
    start: Start, engine: FakeEngine, parts: tuple[bytes, ...]
) -> None:
    engine.plays = [stalls_after(*parts)]
    gateway = await start(engine)
    async with connected(gateway) as (_, writer):
        writer.write(raw_request(orjson.dumps(STREAM)))
        await engine.has_seen(1)
        writer.transport.abort()
        await gateway.is_empty()
    assert await counted(gateway, outcomes("client_gone")) == 1


@fault(CLIENT, "breaks off in the middle of its body", "no engine is called", outcomes("client_gone"))
async def test_a_body_that_is_never_finished_is_asked_of_nobody(start: Start, engine: FakeEngine) -> None:
    gateway = await start(engine)
    async with connected(gateway) as (_, writer):
        writer.write(raw_request(orjson.dumps(ASK))[:-5])
        await writer.drain()
        writer.close()
        async with asyncio.timeout(DEADLINE_S):
            while not await counted(gateway, outcomes("client_gone")):
                await asyncio.sleep(0.01)
    assert engine.calls == []


@fault(CLIENT, "gives up waiting and retries", "it keeps its place in the queue", outcomes("client_gone"))
async def test_a_retry_keeps_the_place_of_the_request_that_was_given_up(start: Start, engine: FakeEngine) -> None:
    engine.plays = [stalls_after(until=(go_on := asyncio.Event()), then=streams([finish(), DONE]))]
    gateway = await start(engine, policy=ONE_SLOT | {"name": "turns"})
    running = gateway.begin(OTHER | {"stream": True})
    await engine.has_seen(1)
    impatient = gateway.begin(STREAM, X_Turngate_Session="impatient")
    await gateway.until(lambda: gateway.num_waiting == 1)
    later = gateway.begin(
        {"model": "m", "messages": [{"role": "user", "content": "came later"}]}, X_Turngate_Session="later"
    )
    await gateway.until(lambda: gateway.num_waiting == 2)
    await leave(gateway, impatient)
    await gateway.until(lambda: gateway.num_waiting == 1)
    again = gateway.begin(STREAM, X_Turngate_Session="impatient")
    await gateway.until(lambda: gateway.num_waiting == 2)
    go_on.set()
    await asyncio.gather(running, again, later)
    assert [call.body["messages"][0]["content"] for call in engine.calls] == ["another task", "hi", "came later"]


@fault(CLIENT, "pipelines requests", "each is answered, in order", outcomes("answered"))
async def test_pipelined_requests_are_answered_in_order(start: Start, engine: FakeEngine) -> None:
    engine.plays = [replies(200, {"choices": [], "id": f"answer {n}"}) for n in range(3)]
    gateway = await start(engine)
    async with connected(gateway) as (reader, writer):
        writer.write(raw_request(orjson.dumps(ASK)) * 3)
        answers = [await status_and_body(reader) for _ in range(3)]
    assert [orjson.loads(body)["id"] for _, body in answers] == ["answer 0", "answer 1", "answer 2"]
    await gateway.is_empty()


@fault(CLIENT, "sends a giant body", "413 before it is read", outcomes("bad_request"))
@pytest.mark.parametrize("is_chunked", [False, True], ids=["with its length", "in chunks"])
async def test_a_body_above_the_limit_is_refused(start: Start, engine: FakeEngine, is_chunked: bool) -> None:
    gateway = await start(engine, limits={"body_bytes": 1000})
    body = orjson.dumps(ASK | {"user": "x" * 1000})

    async def parts() -> AsyncIterator[bytes]:
        yield body

    data: Any = parts() if is_chunked else body
    async with gateway.client.post(gateway.url("/v1/chat/completions"), data=data) as response:
        assert response.status == 413
        assert "limits.body_bytes" in (await response.json())["error"]["message"]
    assert await counted(gateway, outcomes("bad_request")) == 1
    assert engine.calls == []


@fault(CLIENT, "sends a body that is no JSON", "400 with the position", outcomes("bad_request"))
@pytest.mark.parametrize(
    "raw", [b"", b"{", b"\xff\xfe", b"[1]", b"null", b'"x"', b'{"a":1e999}', b'{"a":"\xed\xa0\x80"}']
)
async def test_a_body_that_is_no_json_object_is_a_400(start: Start, engine: FakeEngine, raw: bytes) -> None:
    gateway = await start(engine)
    async with gateway.client.post(gateway.url("/v1/chat/completions"), data=raw) as response:
        assert response.status == 400
        assert (await response.json())["error"]["type"] == "invalid_request_error"
    assert await counted(gateway, outcomes("bad_request")) == 1


@fault(
    CLIENT,
    "sends half a surrogate pair, NaN, Infinity, or UTF-16",
    "400 with the position: no engine but a Python one would read it, and its tokenizer takes no half pair",
    outcomes("bad_request"),
)
@pytest.mark.parametrize("value", [rb'"\ud800"', b"NaN", b"-Infinity"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
async def test_a_body_of_loose_json_is_a_400(
    start: Start, engine: FakeEngine, value: bytes, encoding: str
) -> None:
    raw = b'{"model": "m", "messages": [], "user": %b}' % value
    gateway = await start(engine)
    data = raw.decode().encode(encoding)
    async with gateway.client.post(gateway.url("/v1/chat/completions"), data=data) as response:
        assert response.status == 400
        assert "line 1, column" in (await response.json())["error"]["message"]
    assert await counted(gateway, outcomes("bad_request")) == 1


@fault(
    CLIENT,
    "sends a byte order mark before its body",
    "answered; engines get the body without it",
    outcomes("answered"),
)
@pytest.mark.parametrize("text", ["hi", "x" * 2**19], ids=["small", "large"])
async def test_a_byte_order_mark_is_left_out(start: Start, engine: FakeEngine, text: str) -> None:
    gateway = await start(engine)
    raw = orjson.dumps({"model": "m", "messages": [{"role": "user", "content": text}]})
    async with gateway.client.post(gateway.url("/v1/chat/completions"), data=b"\xef\xbb\xbf" + raw) as response:
        assert response.status == 200
    assert engine.calls[0].raw == raw


@fault(CLIENT, "nests its body deeply", "answered, or 400 beyond the depth of the parser", outcomes("bad_request"))
@pytest.mark.parametrize("depth", [50, 200, 900, 2_000, 100_000])
@pytest.mark.parametrize("path", PATHS)
async def test_a_deeply_nested_body_is_answered_or_refused(
    start: Start, engine: FakeEngine, path: str, depth: int
) -> None:
    gateway = await start(engine)
    for opening, closing in ((b"[", b"]"), (b'{"a":', b"}")):
        nested = opening * depth + b"1" + closing * depth
        for key in (b"metadata", b"messages", b"input", b"prompt", b"tools"):
            body = orjson.dumps({"model": "m"} | PATHS[path])[:-1] + b',"' + key + b'":' + nested + b"}"
            async with gateway.client.post(gateway.url(path), data=body) as response:
                assert response.status in (200, 400), await response.text()


FIELDS = (
    *("model", "stream", "stream_options", "messages", "input", "prompt", "tools", "tool_choice", "system"),
    *("max_tokens", "max_completion_tokens", "max_output_tokens", "n", "user", "metadata", "instructions"),
    *("previous_response_id", "prompt_cache_key", "conversation", "functions", "priority", "nvext", "store"),
)
LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8)
)
KEYS = st.sampled_from(
    ["role", "content", "type", "text", "tool_calls", "function", "name", "id", "arguments", "input"]
)
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4), max_leaves=8
)


@fault(
    CLIENT,
    "sends the wrong type in any field",
    "400 that names the field, or the engine's own",
    outcomes("bad_request"),
)
async def test_no_value_in_any_field_is_a_fault_of_ours(start: Start, engine: FakeEngine) -> None:
    gateway = await start(engine)
    loop = asyncio.get_running_loop()
    asked = 0

    async def ask(path: str, body: dict[str, Any]) -> None:
        nonlocal asked
        asked += 1
        async with gateway.client.post(gateway.url(path), data=json.dumps(body)) as response:
            told = await response.text()
            assert response.status in (200, 400, 404, 501), told

    @settings(max_examples=120, suppress_health_check=list(HealthCheck))
    @given(
        st.sampled_from(sorted(PATHS)), st.dictionaries(st.sampled_from(FIELDS), VALUES, min_size=1, max_size=3)
    )
    def every(path: str, fields: dict[str, Any]) -> None:
        asyncio.run_coroutine_threadsafe(ask(path, {"model": "m"} | PATHS[path] | fields), loop).result(DEADLINE_S)

    await asyncio.to_thread(every)
    assert asked >= 50
    assert await counted(gateway, outcomes("gateway_error")) == 0
