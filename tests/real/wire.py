"""A gateway between two recordings: what a raw client sent and received, and what the engine was sent and sent."""

import asyncio
import json
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp

from tests.real.gateway import Gateway, engine_url, gateway
from tests.real.shim import Exchange, Headers, shim
from tests.real.shim import Shim as Tap

JSON_TYPE = {"Content-Type": "application/json"}


@dataclass(frozen=True)
class Seen:
    """One request on both sides of the gateway."""

    status: int
    headers: Headers
    received: bytes
    """By the client."""
    calls: tuple[Exchange, ...]
    """Of the gateway to the engine for it, in order."""

    @property
    def asked(self) -> bytes:
        """The body that the engine got."""
        (call,) = self.calls
        return call.received.body

    @property
    def answered(self) -> bytes:
        """The bytes that the engine sent."""
        (call,) = self.calls
        return call.response_body

    @property
    def engine_headers(self) -> dict[str, str]:
        """That the engine got; names in lower case."""
        return {name.lower(): value for name, value in self.calls[-1].received.headers}


@dataclass(frozen=True)
class Wire:
    gateway: Gateway
    tap: Tap
    engine_url: str
    """The way past the gateway."""
    model: str

    async def send(self, path: str, body: bytes | dict[str, Any], **headers: str) -> Seen:
        """`body` goes out as it is, or as compact JSON; header names with `_` for the dash."""
        raw = body if isinstance(body, bytes) else json.dumps(body, separators=(",", ":")).encode()
        request_id = uuid.uuid4().hex
        sent = JSON_TYPE | {"X-Request-Id": request_id} | {n.replace("_", "-"): v for n, v in headers.items()}
        url = self.gateway.base_url + path
        async with (
            aiohttp.ClientSession(auto_decompress=False) as session,
            session.post(url, data=raw, headers=sent) as response,
        ):
            received = await response.read()
        return Seen(response.status, tuple(response.headers.items()), received, self.calls(request_id))

    def calls(self, request_id: str) -> tuple[Exchange, ...]:
        """Of the gateway to the engine for the client's request of that id."""
        return tuple(call for call in self.tap.exchanges if _request_id(call).endswith(request_id))

    async def ended_posts(self) -> list[Exchange]:
        """The gateway's calls, once none is under way: a client does not wait for its session to be closed."""
        async with asyncio.timeout(60):
            while not (posts := self._posts()) or not all(call.ended_s for call in posts):
                await asyncio.sleep(0.02)
        return posts

    def _posts(self) -> list[Exchange]:
        return [call for call in self.tap.exchanges if call.received.method == "POST"]


def _request_id(call: Exchange) -> str:
    """Of a client with a key it is scoped by the tenant, in front of the client's own."""
    return next((value for name, value in call.received.headers if name.lower() == "x-request-id"), "")


@asynccontextmanager
async def long_answer(base_url: str, model: str) -> AsyncIterator[aiohttp.ClientResponse]:
    """Holds a slot of the gateway from its first bytes on; close it to give the slot back. The engine goes on at
    its own speed, read or not, so this fills the context of the models: 32,768 tokens or more."""
    body = {"model": model, "messages": [{"role": "user", "content": "Count."}], "stream": True}
    url = base_url + "/v1/chat/completions"
    async with (
        aiohttp.ClientSession() as session,
        session.post(url, json=body | {"max_tokens": 32_000, "ignore_eos": True}) as response,
    ):
        assert response.status == 200
        await response.content.readany()
        yield response


@asynccontextmanager
async def wire(kind: str, base_url: str, model: str, **settings: Any) -> AsyncIterator[Wire]:
    """Taps the way between a gateway of these settings and the engine at `base_url`."""
    async with shim(base_url) as tap, gateway(engine_url(kind, tap.base_url), **settings) as front:
        yield Wire(front, tap, base_url, model)


def events(stream: bytes) -> list[bytes]:
    """A stream of engines that end lines with LF, cut after each empty line."""
    *parts, rest = stream.split(b"\n\n")
    assert rest == b"", f"the stream ends within an event: {rest!r}"
    return [part + b"\n\n" for part in parts]


def data_of(event: bytes) -> Any:
    """The JSON of its data line; None where it has none."""
    for line in event.splitlines():
        if line.startswith(b"data: {"):
            return json.loads(line.removeprefix(b"data: "))
    return None
