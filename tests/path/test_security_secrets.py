"""Keys and prompts are in no log, whatever is wrong with the request or the answer that they come in, at any level
and over each transport: what cannot be read is quoted by nobody."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, suppress

import aiohttp
import orjson
import pytest

from tests.path.broken import BODY, BROKEN, CHUNK, CHUNKED, SECRET, SIZED, S, sent
from tests.path.conftest import Start
from tests.path.fake_engine import FakeEngine
from tests.path.secured import keys

OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
ASK = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
EVENTS = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
EVENT = b'data: {"choices":[{"index":0,"delta":{"content":"a"}}]}\n\n'
ANSWERS: Mapping[str, bytes] = {
    "no status": S + b"\r\n\r\n",
    "a bad status": b"HTTP/1.1 " + S + b" OK\r\n\r\n",
    "a header without a colon": OK + S + b"\r\n\r\n",
    "a control character in a header": OK + b"X: \x01" + S + b"\r\n\r\n",
    "too long a header": OK + b"X: " + S * 3_000 + b"\r\n\r\n",
    "a bad length": OK + b"Content-Length: " + S + b"\r\n\r\n" + BODY,
    "a bad chunk size": OK + CHUNKED + S + b"\r\n" + BODY,
    "a chunk without its end": OK + CHUNKED + b"5\r\n" + BODY,
    "a body that breaks off": OK + b"Content-Length: 100000\r\n\r\n" + BODY,
    "a body that is no answer": OK + SIZED + BODY,
    "no JSON": OK + b"Content-Length: %d\r\n\r\n" % len(S) + S,
    "a stream that is none": EVENTS + CHUNKED + CHUNK + b"0\r\n\r\n",
    "an error that quotes": b"HTTP/1.1 400 Bad\r\n" + SIZED + BODY,
    "an error in a stream": EVENTS
    + b"Connection: close\r\n\r\ndata: "
    + orjson.dumps({"error": {"message": SECRET, "code": 500}})
    + b"\n\n",
}
"""Of an engine."""


class Everything(logging.Handler):
    """Whatever any logger of the process is told, in full."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(f"{logging.Formatter().format(record)} {record.__dict__}")


@pytest.fixture
def everything() -> Iterator[Everything]:
    root, handler = logging.getLogger(), Everything()
    handlers, level = list(root.handlers), root.level
    root.handlers = [handler]
    root.setLevel(logging.DEBUG)  # loggers remember which levels are off until it is called
    yield handler
    root.handlers = handlers
    root.setLevel(level)


async def test_what_is_wrong_with_a_request_is_logged_without_it(
    start: Start, engine: FakeEngine, everything: Everything, monkeypatch: pytest.MonkeyPatch
) -> None:
    asyncio.get_running_loop().set_debug(True)
    monkeypatch.setattr("asyncio.constants.DEBUG_STACK_DEPTH", 1)  # a stack holds lines of code, and takes long
    for section in ({}, {"keys": keys("a")}):
        gateway = await start(engine, **section)
        for name, raw in BROKEN.items():
            await sent(gateway.app.port, raw)
            await sent(gateway.app.port, raw, ends=True)
            assert not [line for line in everything.said if SECRET in line], name
    assert everything.said


@asynccontextmanager
async def engine_that(
    plays: Callable[[asyncio.StreamWriter], Awaitable[None]],
) -> AsyncIterator[list[dict[str, str]]]:
    """An engine that answers a call by writing bytes; the gateway's settings for it."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            head = await reader.readuntil(b"\r\n\r\n")
            if head.startswith(b"GET /v1/models"):
                writer.write(OK + b"Content-Length: 23\r\nConnection: close\r\n\r\n" + b'{"data": [{"id": "m"}]}')
            elif head.startswith(b"GET"):
                writer.write(b"HTTP/1.1 404 No\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            else:
                await plays(writer)
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    yield [{"url": f"vllm://127.0.0.1:{server.sockets[0].getsockname()[1]}", "name": "e1"}]
    server.close()


async def test_what_is_wrong_with_an_answer_is_logged_without_it(start: Start, everything: Everything) -> None:
    answer = b""

    async def play(writer: asyncio.StreamWriter) -> None:
        writer.write(answer)

    async with engine_that(play) as engines:
        gateway = await start(engines=engines)
        for name, answer in ANSWERS.items():  # noqa: B007 - `play` writes it
            for streams in (False, True):
                told = await gateway.ask(ASK | {"stream": streams})
                receipt = told.headers.get("X-Turngate-Receipt")
                async with gateway.get(f"/v1/turngate/receipts/{receipt}") as response:
                    everything.said.append(await response.text())
                assert not [line for line in everything.said if SECRET in line], (name, streams)
    assert len(everything.said) > len(ANSWERS)


@pytest.mark.parametrize("begins", [S, b"5", b"fff"], ids=["bad size", "bad end", "cut"])
async def test_what_is_wrong_with_the_rest_of_an_answer_is_logged_without_it(
    start: Start, everything: Everything, begins: bytes
) -> None:
    is_relayed = asyncio.Event()

    async def play(writer: asyncio.StreamWriter) -> None:
        writer.write(EVENTS + CHUNKED + b"%x\r\n%b\r\n" % (len(EVENT), EVENT))
        await is_relayed.wait()
        writer.write(begins + b"\r\n" + BODY)

    async with engine_that(play) as engines:
        gateway = await start(engines=engines)
        async with gateway.post(ASK | {"stream": True}) as response:
            assert await response.content.readany() == EVENT
            is_relayed.set()
            with pytest.raises(aiohttp.ClientPayloadError):
                await response.read()
        await gateway.is_empty()
        async with gateway.get(f"/v1/turngate/receipts/{response.headers['X-Turngate-Receipt']}") as receipt:
            told = await receipt.json()
    assert told["outcome"] == "engine_cut"
    assert "engine broke off" in str(told["notes"])
    assert SECRET not in str(told)
    assert not [line for line in everything.said if SECRET in line]
