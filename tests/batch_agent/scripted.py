"""A real HTTP server that stands for gateway or engine: a function of the test answers each request."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import orjson
from aiohttp import web

from tests.deadline import DEADLINE_S

Json = dict[str, Any]


class Asked:
    """One request."""

    def __init__(self, number: int, path: str, headers: Any, body: Json) -> None:
        self.number = number
        """From 0, in order of arrival."""
        self.path = path
        self.headers = headers
        self.body = body

    @property
    def messages(self) -> list[Json]:
        return list(self.body["messages"])

    @property
    def last(self) -> Json:
        return self.messages[-1]

    @property
    def task(self) -> str:
        """The first user message."""
        return next(str(message["content"]) for message in self.messages if message["role"] == "user")

    @property
    def num_turns(self) -> int:
        """Answers of the model so far."""
        return sum(message["role"] == "assistant" for message in self.messages)


Script = Callable[[Asked], Any]
"""Gives a message, a whole `web.Response`, or an awaitable of one."""


def says(text: str) -> Json:
    return {"role": "assistant", "content": text}


def calls(name: str, arguments: str, id_: str = "call_000000001") -> Json:
    """One tool call."""
    function = {"name": name, "arguments": arguments}
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": id_, "type": "function", "function": function}],
    }


def completion(message: Json, finish_reason: str | None = None, **usage: int) -> Json:
    reason = finish_reason or ("tool_calls" if message.get("tool_calls") else "stop")
    counted = {"prompt_tokens": 10, "completion_tokens": 2} | usage
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [{"index": 0, "message": message, "finish_reason": reason}],
        "usage": counted,
    }


def refusal(status: int, message: str, **headers: str) -> web.Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return web.json_response(
        {"error": {"message": message, "type": "x", "code": status}}, status=status, headers=named
    )


class Scripted:
    """Serves chat completions and a model list, and looks like a vLLM to the gateway's monitor."""

    def __init__(self) -> None:
        self.script: Script = lambda asked: says("hello")
        self.tools: list[Json] | None = None
        """Of the gateway; None: it is none of ours."""
        self.asked: list[Asked] = []
        self.num_running = 0
        self.most_running = 0
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def start(self) -> None:
        self._changed = asyncio.Condition()
        server = web.Server(self._answer, handler_cancellation=True, access_log=None)  # type: ignore[arg-type]
        self._runner = web.ServerRunner(server, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        await self._runner.cleanup()

    async def until(self, is_so: Callable[[], bool]) -> None:
        """Returns once it is so of what was asked and what runs."""
        async with asyncio.timeout(DEADLINE_S), self._changed:
            await self._changed.wait_for(is_so)

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        if request.method == "GET":
            return self._page(request.path)
        raw = await request.read()
        asked = Asked(len(self.asked), request.path, request.headers, orjson.loads(raw))
        await self._note(+1, asked)
        try:
            given = self.script(asked)
            given = await given if isinstance(given, Awaitable) else given
        finally:
            await asyncio.shield(asyncio.ensure_future(self._note(-1)))
        if isinstance(given, web.StreamResponse):
            return given
        return web.json_response(given if "choices" in given else completion(given))

    async def _note(self, change: int, asked: Asked | None = None) -> None:
        async with self._changed:
            self.num_running += change
            self.most_running = max(self.most_running, self.num_running)
            if asked is not None:
                self.asked.append(asked)
            self._changed.notify_all()

    def _page(self, path: str) -> web.Response:
        match path:
            case "/v1/models":
                return web.json_response({"object": "list", "data": [{"id": "m", "max_model_len": 32_768}]})
            case "/metrics":
                return web.Response(text='vllm:cache_config_info{block_size="16",num_gpu_blocks="62500"} 1\n')
            case "/version":
                return web.json_response({"version": "0.32.0"})
            case "/v1/turngate/tools" if self.tools is not None:
                return web.json_response({"tools": self.tools})
        return web.json_response({"detail": "Not Found"}, status=404)
