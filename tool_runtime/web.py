"""One HTTP request of a tool: no cookies, no proxy, no redirect followed, a limit on size and time.

The only file here that imports aiohttp.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import aiohttp
from aiohttp.abc import AbstractResolver
from yarl import URL

from tool_runtime.types import Refused, ToolError

USER_AGENT = "turngate-tool/1"

Resolver: TypeAlias = AbstractResolver


@dataclass(frozen=True, slots=True)
class Reply:
    """What a server answered."""

    status: int
    url: URL
    content_type: str
    charset: str
    location: str
    body: bytes
    is_cut: bool
    """Whether there was more than the limit."""


async def fetch(
    url: URL,
    *,
    method: str = "GET",
    headers: Mapping[str, str] | None = None,
    json: Any = None,
    max_bytes: int,
    refuses: Callable[[str], str | None] = lambda address: None,
    resolver: Resolver | None = None,
) -> Reply:
    """Ask once; the caller bounds the time.

    `refuses` is asked of the very address that a connection goes to, whatever name or number it came from, so
    there is no time in which a name can come to mean another address. Raises Refused if it says why not,
    ToolError if there is no answer.
    """
    door = _Door(refuses)
    connector = aiohttp.TCPConnector(
        resolver=resolver, use_dns_cache=False, force_close=True, socket_factory=door.open
    )
    session = aiohttp.ClientSession(
        connector=connector, cookie_jar=aiohttp.DummyCookieJar(), timeout=aiohttp.ClientTimeout()
    )
    told = {"User-Agent": USER_AGENT, **(headers or {})}
    try:
        async with (
            session,
            session.request(method, url, headers=told, json=json, allow_redirects=False) as response,
        ):
            return await _reply(url, response, max_bytes)
    except (aiohttp.ClientError, OSError, ValueError) as error:
        if door.refused:
            raise Refused(door.refused) from None
        raise ToolError(f"{url.host} did not answer: {error or type(error).__name__}") from None


class _Door:
    """Makes the sockets of one request, if they may be."""

    def __init__(self, refuses: Callable[[str], str | None]) -> None:
        self._refuses = refuses
        self.refused = ""
        """Why one was not."""

    def open(self, info: tuple[int, int, int, str, tuple[Any, ...]]) -> socket.socket:
        family, kind, protocol, _, address = info
        if reason := self._refuses(str(address[0])):
            self.refused = reason
            raise PermissionError(reason)
        return socket.socket(family, kind, protocol)


async def _reply(url: URL, response: aiohttp.ClientResponse, max_bytes: int) -> Reply:
    body = await _read(response.content, max_bytes + 1)
    return Reply(
        status=response.status,
        url=url,
        content_type=response.content_type,
        charset=response.charset or "utf-8",
        location=response.headers.get("Location", ""),
        body=body[:max_bytes],
        is_cut=len(body) > max_bytes,
    )


async def _read(content: aiohttp.StreamReader, max_bytes: int) -> bytes:
    body = bytearray()
    while len(body) < max_bytes and (chunk := await content.read(min(max_bytes - len(body), 65_536))):
        body += chunk
    return bytes(body)
