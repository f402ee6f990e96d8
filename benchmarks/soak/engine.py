"""An engine that looks like a vLLM, answers every wire format with nonsense, and fails in every way it can.

    python -m benchmarks.soak_engine --seed 1 --faults 0.2

It is asked for nothing but to be wrong at random: which call meets which fault is drawn from the seed.
"""

from __future__ import annotations

import argparse
import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import TypeAlias
from weakref import WeakSet

import orjson
from aiohttp import web

from benchmarks.soak.answers import BODIES, EVENTS, Json

CAPACITY_BLOCKS = 2_000
GIANT_BYTES = 17 * 2**20
"""More than the gateway takes for one event of a stream."""
LONGEST_S = 30.0
"""Of a silence: by then the gateway has long given up."""
OUTAGE_S = (0.5, 4.0)


class SoakEngine:
    """Serves one model until it is cancelled; `faults` is the share of calls that go wrong."""

    def __init__(self, seed: int, faults: float, model: str = "m") -> None:
        self._chance = random.Random(seed)
        self._faults = faults
        self._model = model
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
            await asyncio.sleep(self._chance.uniform(5, 25))
            if self._faults:
                site = await self._outage(runner, site)

    async def _outage(self, runner: web.ServerRunner, site: web.TCPSite) -> web.TCPSite:
        """For a while it is away (and comes back with nothing cached), has no metrics, or serves another model."""
        for_s = self._chance.uniform(*OUTAGE_S)
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
            return await self._turn(Call(request, body, self._chance))
        except ConnectionError:
            return web.Response()
        finally:
            self._running -= 1

    async def _turn(self, call: Call) -> web.StreamResponse:
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


class Call:
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


Fault: TypeAlias = Callable[[Call], Awaitable[web.StreamResponse]]


async def reset_before(call: Call) -> web.StreamResponse:
    call.cut()
    return web.Response()


async def reset_after(call: Call) -> web.StreamResponse:
    response = await call.half()
    call.cut()
    return response


async def half_open(call: Call) -> web.StreamResponse:
    await asyncio.sleep(LONGEST_S)
    return await reset_before(call)


async def stall(call: Call) -> web.StreamResponse:
    response = await call.half()
    await asyncio.sleep(LONGEST_S)
    call.cut()
    return response


async def drip(call: Call) -> web.StreamResponse:
    whole = b"".join(call.events())
    if not call.is_stream:
        return await call.answer()
    return await call.stream([whole[n : n + 7] for n in range(0, min(len(whole), 700), 7)] + [whole[700:]], 0.01)


async def error_event(call: Call) -> web.StreamResponse:
    error = {"error": {"message": "out of memory", "type": "InternalServerError", "code": 500}}
    if not call.is_stream:
        return _error(500, "out of memory")
    keep = call.chance.choice((0, 2))
    return await call.stream([*call.events()[:keep], b"data: " + orjson.dumps(error) + b"\n\n"])


async def full(call: Call) -> web.StreamResponse:
    headers = {"Retry-After": "1"} if call.chance.random() < 0.5 else {}
    return _error(call.chance.choice((429, 503, 529)), "full", headers)


async def broken(call: Call) -> web.StreamResponse:
    return _error(call.chance.choice((500, 502, 504)), "broken")


async def wrong_type(call: Call) -> web.StreamResponse:
    return web.Response(text="<html>Welcome to the proxy</html>", content_type="text/html")


async def no_text(call: Call) -> web.StreamResponse:
    garbage = b'data: {"choices":[{"index":0,"delta":{"content":"\xff\xfe\x80"}}]}\n\n'
    if not call.is_stream:
        return web.Response(body=b'{"choices": [\xff\xfe]}', content_type="application/json")
    events = call.events()
    return await call.stream([*events[:1], garbage, *events[1:]])


async def giant_line(call: Call) -> web.StreamResponse:
    if not call.is_stream:
        return await call.answer()
    part = b"x" * 2**16
    return await call.stream([*call.events()[:1], b"data: ", *[part] * (GIANT_BYTES // len(part))])


async def no_finish(call: Call) -> web.StreamResponse:
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
    given = arguments.parse_args()
    asyncio.run(SoakEngine(given.seed, given.faults).serve())


if __name__ == "__main__":
    main()
