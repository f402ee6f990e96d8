"""One pool of connections to the gateway: sends JSON, reads JSON, and raises failures as `AgentFailed`."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from email.utils import parsedate_to_datetime
from io import BytesIO
from typing import Any

import aiohttp
import orjson
from aiohttp.abc import AbstractResolver, ResolveResult

from batch_agent.results import BadAnswer, ConnectError, HTTPStatusError
from tool_runtime.types import Json

CONNECT_S = 30.0
SILENCE_S = 700.0
"""Longer than a plain answer of the gateway may take (590 s), and than an engine may pause in a stream (300 s)."""
LOOK_S = 10.0
"""Longest time of a request that finds out whether the gateway answers."""
NOT_THERE = frozenset((502, 503, 504, *range(520, 528), 530))
"""Statuses with which proxies report a server behind them that they cannot reach."""
_PASSING = frozenset((408, 425, 429, 500, 502, 503, 504, 529))
_LARGE_BYTES = 1 << 20
"""aiohttp blocks the event loop on larger bodies, unless it can read them in parts."""

Answer = tuple[bytes, Mapping[str, str]]
AddressInfo = tuple[Any, Any, int, str, tuple[Any, ...]]
"""As `socket.getaddrinfo` gives it."""


class Connection:
    """A pool of connections. It is an async context: leaving it closes the pool."""

    def __init__(
        self,
        base_url: str,
        api_key: str = "",
        *,
        silence_s: float | None = SILENCE_S,
        wall_clock: Callable[[], float] = time.time,
        get_addresses: Callable[..., list[AddressInfo]] = socket.getaddrinfo,
    ) -> None:
        """`base_url` ends in /v1. After `silence_s` an answer counts as lost. None: never."""
        self.base_url = base_url.rstrip("/")
        self._headers = {"Content-Type": "application/json", "User-Agent": "batch-agent"}
        if api_key:
            self._headers["Authorization"] = f"Bearer {api_key}"
        self._silence_s = silence_s
        self._wall_clock = wall_clock
        self._get_addresses = get_addresses

    async def __aenter__(self) -> Connection:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=0, resolver=_Resolver(self._get_addresses), socket_factory=probed_socket
            ),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S, sock_read=self._silence_s),
            headers=self._headers,
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    def post(self, path: str, body: Json, headers: Mapping[str, str]) -> Awaitable[Answer]:
        """Return body and headers of a whole answer with status 200. Raises HTTPStatusError, ConnectError."""
        sent = bytes(memoryview(orjson.dumps(body)))  # a copy: the original has room for ten times as much
        return self._request("POST", path, BytesIO(sent) if len(sent) > _LARGE_BYTES else sent, headers)

    async def models(self) -> list[str]:
        """Return the names of the served models. Raises HTTPStatusError, ConnectError, BadAnswer."""
        raw, _ = await self._request("GET", "/models", None, {})
        return [model["id"] for model in json_object(raw).get("data") or ()]

    async def tools(self) -> list[Json]:
        """Return the gateway's list of its tools. Empty: the server is another gateway. Raises as `models`."""
        try:
            raw, _ = await self._request("GET", "/turngate/tools", None, {})
        except HTTPStatusError as error:
            if error.status == 404:
                return []
            raise
        return list(json_object(raw).get("tools") or ())

    async def problem(self) -> str | None:
        """Return why the gateway does not answer. None: it answers, with any status."""
        try:
            async with asyncio.timeout(LOOK_S):
                await self._request("GET", "/models", None, {})
        except HTTPStatusError as error:
            return f"{self.base_url} answers {error}" if error.status in NOT_THERE else None
        except ConnectError as error:
            return str(error)
        except TimeoutError:
            return f"{self.base_url} does not answer"
        return None

    async def _request(
        self, method: str, path: str, data: bytes | BytesIO | None, headers: Mapping[str, str]
    ) -> Answer:
        try:
            async with self._session.request(method, self.base_url + path, data=data, headers=headers) as response:
                raw = await response.read()
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise ConnectError(f"nothing answers at {self.base_url}: {_reason(error)}", was_sent=False) from None
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise ConnectError(f"{self.base_url}: {str(error) or type(error).__name__}") from None
        if response.status == 200:
            return raw, response.headers
        raise self._refusal(response.status, raw, response.headers)

    def _refusal(self, status: int, raw: bytes, headers: Mapping[str, str]) -> HTTPStatusError:
        try:
            content: Any = orjson.loads(raw)
        except orjson.JSONDecodeError:
            content = raw.decode(errors="replace")
        # OpenAI's 429 for an empty account does not pass.
        is_passing = status in _PASSING and "insufficient_quota" not in str(content)
        return HTTPStatusError(status, error_text(content), is_passing, self._retry_after_s(headers))

    def _retry_after_s(self, headers: Mapping[str, str]) -> float | None:
        try:
            if (ms := headers.get("Retry-After-Ms")) is not None:
                return max(0.0, float(ms) / 1000)
            after = headers.get("Retry-After", "").strip()
            if after.replace(".", "", 1).isdigit():
                return float(after)
            return max(0.0, parsedate_to_datetime(after).timestamp() - self._wall_clock()) if after else None
        except ValueError:
            return None


class _Resolver(AbstractResolver):
    """Looks names up in threads of its own. The event loop would wait for its own threads at its end, and a lookup
    takes half a minute where the network is gone."""

    def __init__(self, get_addresses: Callable[..., list[AddressInfo]]) -> None:
        self._get_addresses = get_addresses

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        loop = asyncio.get_running_loop()
        found: asyncio.Future[list[AddressInfo]] = loop.create_future()

        def set_result(infos: list[AddressInfo], error: OSError | None) -> None:
            if not found.done():
                found.set_exception(error) if error is not None else found.set_result(infos)

        def look_up() -> None:
            infos, failed = list[AddressInfo](), None
            try:
                infos = self._get_addresses(host, port, family, socket.SOCK_STREAM, 0, socket.AI_ADDRCONFIG)
            except OSError as error:
                failed = error
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(set_result, infos, failed)

        threading.Thread(target=look_up, name="resolver", daemon=True).start()
        return [_resolved(host, info) for info in await found]

    async def close(self) -> None:
        pass


def _resolved(host: str, info: AddressInfo) -> ResolveResult:
    family, _, proto, _, address = info
    scope = f"%{address[3]}" if len(address) > 3 and address[3] else ""  # of a link-local address
    numeric = socket.AI_NUMERICHOST | socket.AI_NUMERICSERV
    return ResolveResult(
        hostname=host, host=f"{address[0]}{scope}", port=address[1], family=family, proto=proto, flags=numeric
    )


def probed_socket(info: AddressInfo) -> socket.socket:
    """Make a socket that notices a dead host, such as one without power, after a minute instead of `SILENCE_S`."""
    family, kind, proto, _, _ = info
    made = socket.socket(family, kind, proto)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, name):  # not on every system
            made.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return made


def _reason(error: aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError) -> str:
    """Return the error without the words that aiohttp and asyncio put around it."""
    if isinstance(error, aiohttp.ConnectionTimeoutError):
        return f"no connection within {CONNECT_S:g} s"
    cause, number = error.os_error, error.os_error.errno or 0
    return os.strerror(number) if number > 0 else cause.strerror or str(cause)


def json_object(raw: bytes) -> Json:
    """Raises BadAnswer."""
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError:
        body = None
    if not isinstance(body, dict):
        raise BadAnswer(f"the gateway answered what is no JSON object: {raw[:300].decode(errors='replace')}")
    return body


def error_text(body: Any) -> str:
    """Return the message of an error in OpenAI's envelope, or in Dynamo's bare object."""
    error = body.get("error", body) if isinstance(body, dict) else body
    return str(error.get("message", error) if isinstance(error, dict) else error)[:1000]
