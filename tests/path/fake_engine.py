"""A real HTTP server that looks like a vLLM to the monitor and answers each call by a script of the test."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any

import orjson
from aiohttp import web

from tests.deadline import DEADLINE_S

MAX_HEAD_BYTES = 2**17
"""More than the gateway takes: what it passes on is for its tests to judge."""


class Call:
    """One request at the engine, and the means to answer it."""

    def __init__(self, request: web.Request, raw: bytes) -> None:
        self.headers = request.headers
        self.path = request.path_qs
        self.raw = raw
        self.body: Any = orjson.loads(raw) if raw else None
        self._request = request
        self._response: web.StreamResponse | None = None
        self.sent = bytearray()

    async def start(
        self,
        status: int = 200,
        content_type: str = "text/event-stream",
        headers: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        if self._response is not None:
            return
        self._response = web.StreamResponse(status=status, headers={"Content-Type": content_type, **headers})
        await self._response.prepare(self._request)

    async def write(self, data: bytes) -> None:
        await self.start()
        assert self._response is not None
        await self._response.write(data)
        self.sent += data

    async def end(self) -> web.StreamResponse:
        assert self._response is not None
        await self._response.write_eof()
        return self._response

    async def reply(self, status: int, body: bytes | dict[str, Any], **headers: str) -> web.StreamResponse:
        raw = body if isinstance(body, bytes) else orjson.dumps(body)
        response = web.Response(
            status=status,
            body=raw,
            headers={"Content-Type": "application/json"} | headers,
        )
        self.sent += raw
        return response

    def cut(self) -> None:
        """As a crash looks from outside."""
        assert self._request.transport is not None
        self._request.transport.abort()


Play = Callable[[Call], Awaitable[web.StreamResponse | None]]
"""How one call goes. Returning None leaves the answer without an end."""


def chunk(**delta: Any) -> bytes:
    return _event({"choices": [{"index": 0, "delta": delta, "finish_reason": None}]})


def finish(reason: str = "stop") -> bytes:
    return _event({"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]})


def usage(prompt_tokens: int = 7, cached_tokens: int = 0) -> bytes:
    about = {"prompt_tokens": prompt_tokens, "completion_tokens": 2, "total_tokens": prompt_tokens + 2}
    return _event({"choices": [], "usage": about | {"prompt_tokens_details": {"cached_tokens": cached_tokens}}})


DONE = b"data: [DONE]\n\n"


def _event(more: dict[str, Any]) -> bytes:
    frame = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    return b"data: " + orjson.dumps(frame | more) + b"\n\n"


def completion(text: str = "hello") -> dict[str, Any]:
    message = {"role": "assistant", "content": text}
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9},
    }


def error(message: str, status: int, kind: str = "server_error", param: str | None = None) -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "param": param, "code": status}}


async def answers(call: Call) -> web.StreamResponse | None:
    """A short whole answer, streamed or not, as vLLM gives it."""
    if not call.body.get("stream"):
        return await call.reply(200, completion())
    asked = (call.body.get("stream_options") or {}).get("include_usage")
    for event in [chunk(role="assistant"), chunk(content="hello"), finish(), *([usage()] if asked else []), DONE]:
        await call.write(event)
    return await call.end()


def streams(parts: Iterable[bytes]) -> Play:
    """Exactly these bytes, one write each, and a clean end; also the rest of a stream that has begun."""

    async def play(call: Call) -> web.StreamResponse:
        await call.start()
        for part in parts:
            await call.write(part)
        return await call.end()

    return play


def replies(status: int, body: bytes | dict[str, Any], **headers: str) -> Play:
    async def play(call: Call) -> web.StreamResponse:
        return await call.reply(status, body, **headers)

    return play


def cuts_after(*parts: bytes) -> Play:
    """These bytes, if any, then the connection breaks."""

    async def play(call: Call) -> None:
        for part in parts:
            await call.write(part)
        call.cut()

    return play


def stalls_after(*parts: bytes, then: Play | None = None, until: asyncio.Event | None = None) -> Play:
    """These bytes, if any, then silence until the event; `then` goes on."""

    async def play(call: Call) -> web.StreamResponse | None:
        for part in parts:
            await call.write(part)
        await (until or asyncio.Event()).wait()
        return await then(call) if then is not None else None

    return play


@dataclass
class FakeEngine:
    """Scripted by `plays`, one per call in the order of arrival; then `otherwise`."""

    model: str = "m"
    capacity_tokens: int = 1_000_000
    max_model_len: int = 32_768
    num_slots: int = 1_000_000
    """Of which its counts tell, and nothing else."""
    more_pages: dict[str, bytes] = field(default_factory=dict)
    lacks: frozenset[str] = frozenset()
    """Paths that it answers with 404, as FastAPI does."""
    plays: list[Play] = field(default_factory=list)
    otherwise: Play = answers
    calls: list[Call] = field(default_factory=list)
    num_running: int = 0
    port: int = 0
    host: str = "127.0.0.1"

    async def start(self, port: int = 0) -> None:
        self._changed = asyncio.Condition()
        server = web.Server(
            self._answer,  # type: ignore[arg-type]
            handler_cancellation=True,
            access_log=None,
            max_line_size=MAX_HEAD_BYTES,
            max_field_size=MAX_HEAD_BYTES,
        )
        self._runner = web.ServerRunner(server, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, self.host, port)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        await self._runner.cleanup()

    async def has_seen(self, num_calls: int) -> Call:
        """The call of this number, as soon as it has come."""
        await self._until(lambda: len(self.calls) >= num_calls)
        return self.calls[num_calls - 1]

    async def is_idle(self) -> None:
        """Returns once no call is running."""
        await self._until(lambda: self.num_running == 0)

    async def _until(self, is_so: Callable[[], bool]) -> None:
        async with asyncio.timeout(DEADLINE_S), self._changed:
            await self._changed.wait_for(is_so)

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        if request.path in self._pages:
            return web.Response(body=self._pages[request.path]())
        if request.path in self.lacks or request.path in ("/openapi.json", "/kv_event_sources", "/server_info"):
            return web.json_response({"detail": "Not Found"}, status=404)
        call = Call(request, await request.read())
        play = self.plays.pop(0) if self.plays else self.otherwise
        await self._count(+1, call)
        try:
            response = await play(call)
        finally:
            await asyncio.shield(asyncio.ensure_future(self._count(-1)))
        return response if response is not None else web.Response()

    async def _count(self, change: int, call: Call | None = None) -> None:
        async with self._changed:
            self.num_running += change
            if call is not None:
                self.calls.append(call)
            self._changed.notify_all()

    @property
    def _pages(self) -> dict[str, Callable[[], bytes]]:
        row = {"id": self.model, "object": "model", "max_model_len": self.max_model_len}
        blocks = self.capacity_tokens // 16
        metrics = (
            f'vllm:cache_config_info{{block_size="16",num_gpu_blocks="{blocks}",engine="0"}} 1\n'
            f'vllm:num_requests_running{{engine="0"}} {min(self.num_running, self.num_slots)}\n'
            f'vllm:num_requests_waiting{{engine="0"}} {max(0, self.num_running - self.num_slots)}\n'
        )
        return {
            "/v1/models": lambda: orjson.dumps({"object": "list", "data": [row]}),
            "/metrics": metrics.encode,
            "/version": lambda: b'{"version":"0.32.0"}',
            **{path: partial(bytes, page) for path, page in self.more_pages.items()},
        }
