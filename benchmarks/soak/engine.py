"""An engine that looks like a vLLM, answers every wire format with nonsense, and fails in every way it can.

    python -m benchmarks.soak.engine --seed 1 --faults 0.2

Its one purpose is to be wrong at random: which call meets which fault is drawn from the seed.
"""

from __future__ import annotations

import argparse
import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, TypeAlias
from weakref import WeakSet

import orjson
from aiohttp import web

Json: TypeAlias = dict[str, Any]


def _sse(data: Json, name: str = "") -> bytes:
    return (f"event: {name}\n".encode() if name else b"") + b"data: " + orjson.dumps(data) + b"\n\n"


def _usage(body: Json) -> Json:
    num_tokens = len(orjson.dumps(body)) // 4
    return {"prompt_tokens": num_tokens, "completion_tokens": 8, "total_tokens": num_tokens + 8}


def _own_tool(body: Json) -> bool:
    """Whether a tool that its asker runs is to be called: offered, and not yet answered."""
    has_result = any(message.get("role") == "tool" for message in body.get("messages", ())[-1:])
    return bool(body.get("tools")) and not has_result


def _chat_message(body: Json) -> tuple[Json, str]:
    if _own_tool(body):
        function = {"name": body["tools"][0]["function"]["name"], "arguments": '{"q":"a"}'}
        call = {"index": 0, "id": "call_1", "type": "function", "function": function}
        return {"role": "assistant", "content": None, "tool_calls": [call]}, "tool_calls"
    return {"role": "assistant", "content": "words " * 8}, "stop"


def chat_body(body: Json) -> Json:
    message, finish = _chat_message(body)
    choice = {"index": 0, "message": message, "finish_reason": finish}
    about = {"id": "c", "object": "chat.completion", "created": 1, "model": body["model"]}
    return about | {"choices": [choice], "usage": _usage(body)}


def chat_events(body: Json, chance: random.Random) -> Iterator[bytes]:
    about = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": body["model"]}
    message, finish = _chat_message(body)
    yield _sse(about | {"choices": [{"index": 0, "delta": {"role": "assistant"}, "finish_reason": None}]})
    for _ in range(chance.randint(1, 12) if finish == "stop" else 1):
        yield _sse(about | {"choices": [{"index": 0, "delta": message, "finish_reason": None}]})
    yield _sse(about | {"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]})
    if (body.get("stream_options") or {}).get("include_usage"):
        yield _sse(about | {"choices": [], "usage": _usage(body)})
    yield b"data: [DONE]\n\n"


def _num_prompts(body: Json) -> int:
    return len(body["prompt"]) if isinstance(body["prompt"], list) else 1


def completions_body(body: Json) -> Json:
    choices = [{"index": n, "text": "words", "finish_reason": "stop"} for n in range(_num_prompts(body))]
    about = {"id": "c", "object": "text_completion", "created": 1, "model": body["model"]}
    return about | {"choices": choices, "usage": _usage(body)}


def completions_events(body: Json, chance: random.Random) -> Iterator[bytes]:
    about = {"id": "c", "object": "text_completion", "created": 1, "model": body["model"]}
    for finish in (None, "stop"):
        for n in range(_num_prompts(body)):
            yield _sse(about | {"choices": [{"index": n, "text": "words", "finish_reason": finish}]})
    yield b"data: [DONE]\n\n"


def messages_body(body: Json) -> Json:
    about = {"id": "msg_1", "type": "message", "role": "assistant", "model": body["model"]}
    usage = {"input_tokens": 9, "output_tokens": 8}
    return about | {"content": [{"type": "text", "text": "words"}], "stop_reason": "end_turn", "usage": usage}


def messages_events(body: Json, chance: random.Random) -> Iterator[bytes]:
    message = messages_body(body) | {"content": [], "stop_reason": None}
    yield _sse({"type": "message_start", "message": message}, "message_start")
    block = {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
    yield _sse(block, "content_block_start")
    for _ in range(chance.randint(1, 12)):
        delta = {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "words "}}
        yield _sse(delta, "content_block_delta")
    yield _sse({"type": "content_block_stop", "index": 0}, "content_block_stop")
    ended = {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 8}}
    yield _sse(ended, "message_delta")
    yield _sse({"type": "message_stop"}, "message_stop")


def responses_body(body: Json) -> Json:
    content = [{"type": "output_text", "text": "words", "annotations": []}]
    item = {"type": "message", "id": "i", "role": "assistant", "status": "completed", "content": content}
    about = {"id": "resp_1", "object": "response", "status": "completed", "model": body["model"]}
    return about | {"output": [item], "usage": {"input_tokens": 9, "output_tokens": 8, "total_tokens": 17}}


def responses_events(body: Json, chance: random.Random) -> Iterator[bytes]:
    begun = responses_body(body) | {"status": "in_progress", "output": []}
    yield _sse({"type": "response.created", "response": begun}, "response.created")
    for _ in range(chance.randint(1, 12)):
        yield _sse({"type": "response.output_text.delta", "delta": "words "}, "response.output_text.delta")
    yield _sse({"type": "response.completed", "response": responses_body(body)}, "response.completed")


BODIES: dict[str, Callable[[Json], Json]] = {
    "/v1/chat/completions": chat_body,
    "/v1/completions": completions_body,
    "/v1/messages": messages_body,
    "/v1/responses": responses_body,
}
EVENTS: dict[str, Callable[[Json, random.Random], Iterator[bytes]]] = {
    "/v1/chat/completions": chat_events,
    "/v1/completions": completions_events,
    "/v1/messages": messages_events,
    "/v1/responses": responses_events,
}


CAPACITY_BLOCKS = 2_000
GIANT_BYTES = 17 * 2**20
"""More than the gateway takes for one event of a stream."""
LONGEST_S = 30.0
"""Of a silence: by then the gateway has long given up."""
OUTAGE_S = (0.5, 4.0)


class SoakEngine:
    """Serves one model until it is cancelled; `faults` is the share of calls that go wrong. `pace`: by how much
    outages come sooner and end sooner."""

    def __init__(self, seed: int, faults: float, model: str = "m", pace: float = 1.0) -> None:
        self._chance = random.Random(seed)
        self._faults = faults
        self._model = model
        self._pace = pace
        self._lacks: set[str] = set()
        self._shown_model = model
        self._running = 0
        self._port = 0
        self._transports = WeakSet[asyncio.Transport]()

    async def serve(self) -> None:
        """Prints where it listens, and has an outage now and then."""
        server = web.Server(self._answer, handler_cancellation=True, access_log=None)
        runner = web.ServerRunner(server, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0, reuse_address=True)
        await site.start()
        self._port = runner.addresses[0][1]
        print(f"--engine vllm://127.0.0.1:{self._port}", flush=True)
        while True:
            await asyncio.sleep(self._chance.uniform(5, 25) / self._pace)
            if self._faults:
                site = await self._outage(runner, site)

    async def _outage(self, runner: web.ServerRunner, site: web.TCPSite) -> web.TCPSite:
        """For a while it is away (and comes back with nothing cached), has no metrics, or serves another model."""
        for_s = self._chance.uniform(*OUTAGE_S) / self._pace
        match self._chance.choice(("away", "metrics", "swapped")):
            case "away":
                await site.stop()
                for transport in [*self._transports]:
                    transport.abort()
                await asyncio.sleep(for_s)
                site = web.TCPSite(runner, "127.0.0.1", self._port, reuse_address=True)
                await site.start()
            case "metrics":
                self._lacks = {"/metrics"}
                await asyncio.sleep(for_s)
                self._lacks = set()
            case _:
                self._shown_model = "another-model"
                await asyncio.sleep(for_s)
                self._shown_model = self._model
        return site

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        transport = request.transport
        assert transport is not None
        self._transports.add(transport)
        if request.path in ("/v1/models", "/metrics", "/version"):
            return self._page(request.path)
        body = orjson.loads(await request.read()) if request.method == "POST" else {}
        if request.path not in EVENTS:
            return web.json_response({"detail": "Not Found"}, status=404)
        if body.get("model") != self._shown_model:
            return _error(404, f"The model {body.get('model')} does not exist.")
        self._running += 1
        try:
            return await self._turn(EngineCall(request, body, self._chance))
        except ConnectionError:
            return web.Response()
        finally:
            self._running -= 1

    async def _turn(self, call: EngineCall) -> web.StreamResponse:
        if self._chance.random() >= self._faults:
            return await call.answer()
        names, weights = zip(*((fault, weight) for fault, weight in FAULTS), strict=True)
        fault: Fault = self._chance.choices(names, weights)[0]
        return await fault(call)

    def _page(self, path: str) -> web.Response:
        if path in self._lacks:
            return _error(500, "no metrics now")
        if path == "/version":
            return web.json_response({"version": "0.32.0"})
        if path == "/v1/models":
            row = {"id": self._shown_model, "object": "model", "max_model_len": 32_768}
            return web.json_response({"object": "list", "data": [row]})
        text = (
            f'vllm:cache_config_info{{block_size="16",num_gpu_blocks="{CAPACITY_BLOCKS}",engine="0"}} 1\n'
            f'vllm:num_requests_running{{engine="0"}} {self._running}\n'
            'vllm:num_requests_waiting{engine="0"} 0\n'
        )
        return web.Response(text=text)


class EngineCall:
    """One request, and the means to answer it well or badly."""

    def __init__(self, request: web.BaseRequest, body: Json, chance: random.Random) -> None:
        self.request = request
        self.body = body
        self.chance = chance
        self.is_stream = body.get("stream") is True

    async def answer(self) -> web.StreamResponse:
        await asyncio.sleep(self.chance.uniform(0, 0.1))
        if not self.is_stream:
            return web.json_response(BODIES[self.request.path](self.body))
        return await self.stream(self.events(), self.chance.uniform(0, 0.05))

    def events(self) -> list[bytes]:
        return list(EVENTS[self.request.path](self.body, self.chance))

    async def stream(self, events: list[bytes], pause_s: float = 0.0, ends: bool = True) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(self.request)
        for event in events:
            await response.write(event)
            await asyncio.sleep(pause_s)
        if ends:
            await response.write_eof()
        return response

    async def half(self) -> web.StreamResponse:
        """The first half of an answer, and no end."""
        if self.is_stream:
            events = self.events()
            return await self.stream(events[: len(events) // 2], 0.01, ends=False)
        whole = orjson.dumps(BODIES[self.request.path](self.body))
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        response.content_length = len(whole)
        await response.prepare(self.request)
        await response.write(whole[: len(whole) // 2])
        return response

    def cut(self) -> None:
        if self.request.transport is not None:
            self.request.transport.abort()


Fault: TypeAlias = Callable[[EngineCall], Awaitable[web.StreamResponse]]


async def reset_before(call: EngineCall) -> web.StreamResponse:
    call.cut()
    return web.Response()


async def reset_after(call: EngineCall) -> web.StreamResponse:
    response = await call.half()
    call.cut()
    return response


async def half_open(call: EngineCall) -> web.StreamResponse:
    await asyncio.sleep(LONGEST_S)
    return await reset_before(call)


async def stall(call: EngineCall) -> web.StreamResponse:
    response = await call.half()
    await asyncio.sleep(LONGEST_S)
    call.cut()
    return response


async def drip(call: EngineCall) -> web.StreamResponse:
    whole = b"".join(call.events())
    if not call.is_stream:
        return await call.answer()
    return await call.stream([whole[n : n + 7] for n in range(0, min(len(whole), 700), 7)] + [whole[700:]], 0.01)


async def error_event(call: EngineCall) -> web.StreamResponse:
    error = {"error": {"message": "out of memory", "type": "InternalServerError", "code": 500}}
    if not call.is_stream:
        return _error(500, "out of memory")
    keep = call.chance.choice((0, 2))
    return await call.stream([*call.events()[:keep], b"data: " + orjson.dumps(error) + b"\n\n"])


async def full(call: EngineCall) -> web.StreamResponse:
    headers = {"Retry-After": "1"} if call.chance.random() < 0.5 else {}
    return _error(call.chance.choice((429, 503, 529)), "full", headers)


async def broken(call: EngineCall) -> web.StreamResponse:
    return _error(call.chance.choice((500, 502, 504)), "broken")


async def wrong_type(call: EngineCall) -> web.StreamResponse:
    return web.Response(text="<html>Welcome to the proxy</html>", content_type="text/html")


async def no_text(call: EngineCall) -> web.StreamResponse:
    garbage = b'data: {"choices":[{"index":0,"delta":{"content":"\xff\xfe\x80"}}]}\n\n'
    if not call.is_stream:
        return web.Response(body=b'{"choices": [\xff\xfe]}', content_type="application/json")
    events = call.events()
    return await call.stream([*events[:1], garbage, *events[1:]])


async def giant_line(call: EngineCall) -> web.StreamResponse:
    if not call.is_stream:
        return await call.answer()
    part = b"x" * 2**16
    return await call.stream([*call.events()[:1], b"data: ", *[part] * (GIANT_BYTES // len(part))])


async def no_finish(call: EngineCall) -> web.StreamResponse:
    if not call.is_stream:
        return await call.answer()
    return await call.stream(call.events()[:2])


FAULTS: tuple[tuple[Fault, float], ...] = (
    (reset_before, 3),
    (reset_after, 3),
    (half_open, 1),
    (stall, 1),
    (drip, 3),
    (error_event, 3),
    (full, 4),
    (broken, 3),
    (wrong_type, 1),
    (no_text, 2),
    (giant_line, 0.05),
    (no_finish, 2),
)


def _error(status: int, message: str, headers: dict[str, str] | None = None) -> web.Response:
    error = {"message": message, "type": "server_error", "param": None, "code": status}
    return web.json_response({"error": error}, status=status, headers=headers)


def main() -> None:
    arguments = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    arguments.add_argument("--seed", type=int, default=1)
    arguments.add_argument("--faults", type=float, default=0.2, help="share of calls that fail (%(default)s)")
    arguments.add_argument("--pace", type=float, default=1.0, help="of outages (%(default)s)")
    given = arguments.parse_args()
    asyncio.run(SoakEngine(given.seed, given.faults, pace=given.pace).serve())


if __name__ == "__main__":
    main()
