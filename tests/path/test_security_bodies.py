"""Hostile requests: what is too long, too deep, too many, packed or ambiguous is refused, or means one thing."""

from __future__ import annotations

import asyncio
import gzip
import json
import zlib
from typing import Any
from unittest.mock import patch

import orjson
import pytest

from tests.deadline import DEADLINE_S
from tests.path.conftest import Gateway, Start
from tests.path.fake_engine import FakeEngine
from tests.path.faults import CLIENT, fault, outcomes
from tests.path.secured import by, keys
from tests.path.toolkit import Bench

ASK: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
PATHS = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/v1/embeddings", "/tokenize")
DEPTHS = (250, 1_020, 20_000)


async def sent(gateway: Gateway, raw: bytes, path: str = PATHS[0], **headers: str) -> tuple[int, bytes]:
    named = {"Content-Type": "application/json"} | {n.replace("_", "-"): v for n, v in headers.items()}
    async with gateway.client.post(gateway.url(path), data=raw, headers=named) as response:
        return response.status, await response.read()


def deep(depth: int, opening: bytes = b"[", closing: bytes = b"]") -> bytes:
    return opening * depth + b"1" + closing * depth


BODIES = (
    b'{"model":"m","messages":[{"role":"user","content":%s}]}',
    b'{"model":"m","messages":[{"role":"user","content":"x"}],"tools":[{"type":"function","function":{"name":"f","parameters":%s}}]}',
    b'{"model":"m","messages":[{"role":"user","content":"x"},{"role":"assistant","tool_calls":[{"id":"c","function":%s}]}]}',
    b'{"model":"m","max_tokens":1,"messages":[{"role":"user","content":"x"}],"metadata":%s,"stream_options":%s}',
    b'{"model":"m","max_tokens":1,"system":%s,"messages":[{"role":"user","content":[{"type":"text","text":%s}]}]}',
    b'{"model":"m","input":%s,"prompt":%s}',
    b'{"model":"m","input":"x","prompt":"x","messages":[{"role":"user","content":"x"}],"stream":true,"nvext":%s}',
    b"%s",
)


@pytest.mark.parametrize("with_tools", [False, True])
async def test_a_deeply_nested_body_is_answered_or_refused_and_never_an_error_of_ours(
    start: Start, engine: FakeEngine, with_tools: bool
) -> None:
    gateway = await start(engine, **({"tools": Bench().settings()} if with_tools else {}))
    for path in PATHS:
        for template in BODIES:
            for depth in DEPTHS:
                for value in (deep(depth), deep(depth, b'{"a":', b"}")):
                    raw = template.replace(b"%s", value)
                    status, told = await sent(gateway, raw, path)
                    assert status in (200, 400, 404, 413), (path, template, depth, status, told)
                    if status != 200:
                        assert orjson.loads(told)["error"]["message"]
    assert (await sent(gateway, orjson.dumps(ASK)))[0] == 200


WRITTEN_AGAIN = (
    *(
        b'"stream_options":{"x":%s}',
        b'"nvext":{"dp_rank":1,"x":%s}',
        b'"vllm_xargs":{"kv_transfer_params":1,"x":%s}',
    ),
    *(b'"rid":%s', b'"request_id":[%s]', b'"models":["m"],"lora_path":%s', b'"metadata":{"x":%s}', b'"text":%s'),
    *(b'"reasoning":%s', b'"tool_choice":%s', b'"stop":%s', b'"n":%s', b'"max_tokens":%s', b'"thinking":{"x":%s}'),
    b'"tools":[{"type":"custom","name":"f","format":{"type":"grammar"},"function":{},"x":%s}]',
)
"""Members of a body that an engine, or the opening of a stream, may need changed. `%s`: a deep value."""


@pytest.mark.parametrize("silent_queue_s", [0, 90])
@pytest.mark.parametrize("kind", ["vllm", "sglang", "dynamo"])
async def test_what_is_read_and_too_deep_to_be_written_again_is_no_error_of_ours(
    start: Start, engine: FakeEngine, kind: str, silent_queue_s: float
) -> None:
    keyed = keys("a", models=["m"])
    gateway = await start(engine, kind=kind, keys=keyed, stream={"silent_queue_s": silent_queue_s})
    ask = {"model": "m", "input": "hi", "prompt": "hi", "messages": [{"role": "user", "content": "hi"}]}
    for path in PATHS:
        for member in WRITTEN_AGAIN:
            for stream in (False, True):
                raw = orjson.dumps(ask | {"stream": stream})[:-1] + b"," + member + b"}"
                status, answer = await sent(
                    gateway, raw.replace(b"%s", deep(300, b'{"a":', b"}")), path, **by("a")
                )
                assert status in (200, 400, 403), (path, member, status, answer)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("key", [b'"k%d":1,', b'"model":"alias",'])
async def test_a_body_of_more_keys_than_any_api_has_is_refused(
    start: Start, engine: FakeEngine, path: str, key: bytes
) -> None:
    """Also where one is repeated: 8 MB of `"model"` held the event loop for three seconds."""
    gateway = await start(engine, models={"aliases": {"alias": "m"}})
    body = b'"model":"alias","messages":[{"role":"user","content":"x"}],"input":"x","prompt":"x"}'
    for num, status in ((900, 200), (1_100, 400), (60_000, 400)):
        keys = b"".join(key % at if b"%" in key else key for at in range(num))
        answered, told = await sent(gateway, b"{" + keys + body, path)
        assert (answered, b"more than 1024 keys" in told) == (status, status == 400)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("unit", [b"[],", b'{"a":1},', b"1,", b'"\\"",'])
async def test_a_body_of_too_many_values_is_refused_before_it_is_parsed(
    start: Start, engine: FakeEngine, path: str, unit: bytes
) -> None:
    """Text with as many commas and brackets in it is no such body."""
    gateway = await start(engine, limits={"values": 10_000})
    beside = b'{"model":"m","messages":[{"role":"user","content":"x"}],"input":"x","prompt":"x","stop":'
    with patch("gateway.request.payload.orjson.loads", side_effect=AssertionError("it was parsed")):
        status, told = await sent(gateway, beside + b"[" + unit * 20_000 + b"1]}", path)
    assert (status, b"limits.values" in told) == (400, True)
    text = orjson.dumps((b"[" + unit * 20_000).decode())
    assert (await sent(gateway, beside + text + b"}", path))[0] == 200


async def test_a_body_is_refused_while_it_is_too_long_not_after(start: Start, engine: FakeEngine) -> None:
    gateway = await start(engine, limits={"body_bytes": 1_000})
    status, told = await sent(gateway, orjson.dumps(ASK | {"user": "x" * 2_000}))
    assert (status, b"limits.body_bytes" in told) == (413, True)
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.app.port)
    writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
    for _ in range(4):  # and no end
        writer.write(b"200\r\n" + b"x" * 512 + b"\r\n")
    assert b" 413 " in await asyncio.wait_for(reader.readline(), DEADLINE_S)
    writer.close()


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (ASK | {"messages": ASK["messages"] * 6}, "messages"),
        (ASK | {"tools": [{"type": "function", "function": {"name": "f"}}] * 3}, "tools"),
    ],
)
async def test_too_many_messages_or_tools_are_refused_by_name(
    start: Start, engine: FakeEngine, body: dict[str, Any], param: str
) -> None:
    gateway = await start(engine, limits={"messages": 5, "tools": 2})
    answer = await gateway.ask(body)
    error = orjson.loads(answer.body)["error"]
    assert (answer.status, error["param"]) == (400, param)
    assert f"limits.{param}" in error["message"]
    assert engine.calls == []


@pytest.mark.parametrize("coding", ["gzip", "deflate", "br", "zstd", "gzip, gzip", "GZIP"])
@pytest.mark.parametrize("path", [PATHS[0], "/v1/messages", "/v1/files"])
async def test_a_packed_body_is_refused_unopened(start: Start, engine: FakeEngine, coding: str, path: str) -> None:
    gateway = await start(engine)
    bomb = gzip.compress(b" " * 10_000_000) if "gzip" in coding.lower() else zlib.compress(b" " * 10_000_000)
    status, told = await sent(gateway, bomb, path, Content_Encoding=coding)
    assert status == 415
    assert b"Content-Encoding" in told
    assert engine.calls == []


@pytest.mark.parametrize(
    "raw",
    [
        b'{"model":"other","model":"m","messages":[{"role":"user","content":"x"}]}',
        b'{"mod\\u0065l":"other","model":"m","messages":[{"role":"user","content":"x"}]}',
        b'{"model":"m","mod\\u0065l":"m","messages":[{"role":"user","content":"x"}],"stream":false,"stream":true}',
        b'{"model":"m","priority":-9,"priority":-5,"messages":[{"role":"user","content":"x"}]}',
        b'{"model":"m","pr\\u0069ority":-9,"messages":[{"role":"user","content":"x"}]}',
        b'{"priority":-9,"model":"m","pr\\u0069ority":-9,"messages":[{"role":"user","content":"x"}],"stream":true}',
    ],
)
async def test_a_field_that_is_written_twice_or_in_escapes_means_the_same_to_every_reader(
    start: Start, engine: FakeEngine, raw: bytes
) -> None:
    """First or last wins, depending on the reader: what was judged here must be what the engine reads."""
    gateway = await start(engine, keys=keys("a", models=["m"]))
    status, _ = await sent(gateway, raw, **by("a"))
    if status == 200:
        first_wins: dict[str, Any] = {}
        for key, value in members(engine.calls[0].raw):
            first_wins.setdefault(key, value)
        for key in ("model", "priority"):
            assert first_wins.get(key) == engine.calls[0].body.get(key) == ("m" if key == "model" else None)


def members(raw: bytes) -> list[tuple[str, Any]]:
    """Of the outermost object, in order, with repeats."""
    found: list[tuple[str, Any]] = []

    def read(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found[:] = pairs
        return dict(pairs)

    json.loads(raw, object_pairs_hook=read)
    return found


@pytest.mark.parametrize(
    "value", ["\\xff\\xfe", "é", "x" * 300, "\t", "\x7f", "%0d%0aSet-Cookie:%20a=b", "a\\u000d"]
)
@pytest.mark.parametrize(
    "name", ["X-Request-Id", "X-Turngate-Session", "X-Session-Id", "Authorization", "X-Turngate-Deadline-Ms"]
)
async def test_strange_header_values_make_no_header_of_an_answer_and_no_error(
    start: Start, engine: FakeEngine, name: str, value: str
) -> None:
    gateway = await start(engine)
    raw = value.encode("latin-1") if "\\x" not in value else b"\xff\xfe\x80"
    body = orjson.dumps(ASK)
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.app.port)
    head = (
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\n"
    )
    writer.write(head + name.encode() + b": " + raw + b"\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    answer = await asyncio.wait_for(reader.read(), DEADLINE_S)
    writer.close()
    status = int(answer.split(b" ", 2)[1])
    assert status in (200, 400), answer
    assert b"\nset-cookie" not in answer.lower()
    async with gateway.get("/v1/turngate/sessions") as response:
        assert response.status == 200


@pytest.mark.parametrize("extra", [b"X-A: b\r\n" * 5_000, b"X-A: " + b"b" * 200_000 + b"\r\n"])
async def test_headers_are_bounded(start: Start, engine: FakeEngine, extra: bytes) -> None:
    gateway = await start(engine)
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.app.port)
    writer.write(b"GET /v1/models HTTP/1.1\r\nHost: x\r\n" + extra + b"\r\n")
    assert b" 4" in await asyncio.wait_for(reader.readline(), DEADLINE_S)
    writer.close()


@fault(
    CLIENT,
    "begins large bodies and does not end them",
    "its key keeps its share of `limits.incoming_bytes`; further bodies of it wait, then 429; other keys go on",
    outcomes("rejected_queue_full"),
)
async def test_a_key_whose_bodies_never_end_keeps_its_share_and_no_other_key_waits(
    start: Start, engine: FakeEngine
) -> None:
    gateway = await start(engine, keys=keys("flood", "b"), limits={"incoming_bytes": 4 * 2**20})
    bearer = by("flood")["Authorization"]
    head = f"POST {PATHS[0]} HTTP/1.1\r\nHost: h\r\nAuthorization: {bearer}\r\nContent-Length: {2**20}\r\n\r\n"
    _, writer = await asyncio.open_connection("127.0.0.1", gateway.app.port)
    writer.write(head.encode() + b"x" * 2**19)
    held = gateway.app.parts.handler.bodies.held
    await gateway.until(lambda: held == {"key-flood": 2**20})
    large = ASK | {"user": "x" * 2**19}
    waiting = gateway.begin(large, **by("flood"))
    assert (await gateway.ask(large, **by("b"))).status == 200
    assert (await gateway.ask(ASK, **by("flood"))).status == 200
    assert not waiting.done()
    writer.close()
    async with asyncio.timeout(DEADLINE_S):
        assert (await waiting).status == 200
    assert held == {}
