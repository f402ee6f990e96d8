"""What strangers choose is neither kept nor logged whole: memory and disk are not theirs to fill."""

from __future__ import annotations

import asyncio
import gc
import io
import logging
import re
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from functools import _lru_cache_wrapper
from typing import Any, TypeAlias

import orjson
import pytest

from gateway.config.settings import Logging
from gateway.telemetry import logs
from tests.path.conftest import Gateway, Start
from tests.path.fake_engine import FakeEngine
from tests.path.secured import by, keys
from tests.transport.test_server_pipelining import body_of

CHAT, RESPONSES = "/v1/chat/completions", "/v1/responses"
LONG = 60_000
NUM = 6
LINE_BYTES = 2_000
MARK = "of-a-stranger/"
_MARKED = re.compile(r"of-a-stranger[/|]([\w-]+)[/|](\d)[/|]", re.IGNORECASE)
REMEMBERED = {"name_of_a_tool"}
"""The latest tools that were read are remembered, up to some bytes: see tests/sessions/test_identity.py."""
AT_ONCE = 10_000
"""Objects that are looked into."""
HOLDERS = 4
"""A client's connection and each one to the engine, of which three pages are read at once, may hold their last
request."""

Sent: TypeAlias = tuple[str, Mapping[str, str], Mapping[str, Any]]
"""Path, headers and body."""


def _in_header(name: str) -> Callable[[str], Sent]:
    return lambda text: (CHAT, {name: text}, {})


def _in_body(make: Callable[[str], Mapping[str, Any]]) -> Callable[[str], Sent]:
    return lambda text: (CHAT, {}, make(text))


def _function(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": {}}}


def _called(call_id: str) -> dict[str, Any]:
    call = {"id": call_id, "type": "function", "function": {"name": "f", "arguments": "{}"}}
    return {
        "messages": [
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": call_id, "content": "ok"},
        ]
    }


PLACES: Mapping[str, Callable[[str], Sent]] = {
    **{
        name: _in_header(name)
        for name in (
            *(
                "X-Request-Id",
                "User-Agent",
                "X-Turngate-Session",
                "X-Turngate-Parent",
                "X-Session-Id",
                "Thread-Id",
            ),
            *(
                "X-Dynamo-Session-Id",
                "X-Claude-Code-Session-Id",
                "Traceparent",
                "Tracestate",
                "Origin",
                "X-Api-Key",
            ),
            *("X-Turngate-Prompt-Errors", "X-Turngate-Deadline-Ms", "X-Stainless-Retry-Count", "Cookie", "Expect"),
        )
    },
    "name of a header": lambda text: (CHAT, {text.replace("/", "|"): "a"}, {}),
    "path": lambda text: (f"/{text}", {}, {}),
    "path of a model": lambda text: (f"/v1/models/{text}", {}, {}),
    "path of a receipt": lambda text: (f"/v1/turngate/receipts/{text}", {}, {}),
    "path of an answer": lambda text: (f"{RESPONSES}/{text}", {}, {}),
    "query": lambda text: (f"{CHAT}?{text}", {}, {}),
    "model": _in_body(lambda text: {"model": text}),
    "prompt_cache_key": _in_body(lambda text: {"prompt_cache_key": text, "tools": [_function("f")]}),
    "name of a tool": _in_body(lambda text: {"tools": [_function(text)]}),
    "name of an unknown tool": _in_body(lambda text: {"tool_choice": _function(text)}),
    "name of a speaker": _in_body(lambda text: {"messages": [{"role": "user", "name": text, "content": "hi"}]}),
    "role": _in_body(lambda text: {"messages": [{"role": text, "content": "hi"}]}),
    "id of a call": _in_body(_called),
    "metadata": _in_body(lambda text: {"metadata": {"a": text}}),
    "user": _in_body(lambda text: {"user": text}),
    "a key of its own": _in_body(lambda text: {text: 1}),
    "a wrong stream": _in_body(lambda text: {"stream": text}),
    "previous_response_id": lambda text: (RESPONSES, {}, {"input": "hi", "previous_response_id": text}),
}


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    root, stream = logging.getLogger(), io.StringIO()
    handlers, level = list(root.handlers), root.level
    logs.setup(Logging(level="debug"), stream)
    yield stream
    root.handlers[:], root.level = handlers, level


class Client:
    """Sends bytes, and keeps nothing of them."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def __aenter__(self) -> Client:
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._gateway.app.port)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._writer.close()

    async def ask(self, path: str, headers: Mapping[str, str], body: Mapping[str, Any]) -> int:
        raw = orjson.dumps({"model": "m", "messages": [{"role": "user", "content": "hi"}], **body})
        lines = {"Host": "h", "Content-Type": "application/json", "Content-Length": str(len(raw))} | dict(headers)
        method = "POST" if path.partition("?")[0] in (CHAT, RESPONSES) else "GET"
        head = f"{method} {path} HTTP/1.1\r\n" + "".join(f"{n}: {v}\r\n" for n, v in lines.items())
        self._writer.write(head.encode() + b"\r\n" + raw)
        status = await self._reader.readline()
        await body_of(self._reader)
        for engine in self._gateway.engines:
            engine.calls.clear()
        return int(status.split()[1])


@asynccontextmanager
async def asking(start: Start, engine: FakeEngine, **sections: Any) -> AsyncIterator[Client]:
    gateway = await start(engine, keys=keys("a"), **sections)
    async with Client(gateway) as client:
        yield client


@pytest.mark.parametrize("is_known", [True, False], ids=["with a key", "without a key"])
async def test_nothing_that_a_stranger_chooses_is_kept_or_logged_whole(
    start: Start, engine: FakeEngine, log: io.StringIO, is_known: bool
) -> None:
    known = dict(by("a")) if is_known else {}
    async with asking(start, engine) as client:
        for place in PLACES:
            written = log.tell()
            for number in range(NUM):
                path, headers, body = PLACES[place](f"{MARK}{place.replace(' ', '_')}/{number}/".ljust(LONG, "x"))
                await client.ask(path, {**known, **headers}, body)
            assert log.tell() - written < NUM * LINE_BYTES, place
        del path, headers, body
        found = Counter(place for place, _ in alive())
    assert {place for place, num in found.items() if num > HOLDERS} <= REMEMBERED


def alive() -> set[tuple[str, str]]:
    """Place and number of each long text of a stranger that something in this process holds."""
    gc.unfreeze()  # frozen objects are not told: see tests/conftest.py
    for cache in gc.get_objects():
        if isinstance(cache, _lru_cache_wrapper) and cache.__module__.startswith(("yarl", "aiohttp")):
            cache.cache_clear()  # of the latest 128 URLs
    cache = None
    gc.collect()
    texts: dict[int, str | bytes | bytearray] = {}
    holders = gc.get_objects()
    gc.freeze()
    while holders:
        held = gc.get_referents(*holders[-AT_ONCE:])
        del holders[-AT_ONCE:]
        kinds = set(map(type, held))
        text_kinds = {kind for kind in kinds if issubclass(kind, str | bytes | bytearray)}
        untracked_kinds = {kind for kind in kinds if issubclass(kind, tuple | dict)}
        texts |= {id(one): one for one in held if type(one) in text_kinds and len(one) > LONG / 2}
        holders += [one for one in held if type(one) in untracked_kinds and not gc.is_tracked(one)]
    return {place for text in texts.values() for place in places_in(text)}


def places_in(text: str | bytes | bytearray) -> Iterator[tuple[str, str]]:
    for match in _MARKED.finditer(text if isinstance(text, str) else text.decode("latin-1")):
        yield match[1], match[2]


def test_a_text_that_is_held_is_found() -> None:
    held = [{"a": (MARK + "place/7/" + "x" * LONG,)}]
    assert ("place", "7") in alive()
    held.clear()
    assert ("place", "7") not in alive()
