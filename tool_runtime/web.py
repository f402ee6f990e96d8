"""Which network addresses a tool may connect to: public ones, and the private networks that the operator names."""

from __future__ import annotations

import socket
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Any, TypeAlias

import aiohttp
from aiohttp.abc import AbstractResolver
from yarl import URL

from tool_runtime.types import Refused, ToolError

Network = IPv4Network | IPv6Network

# IANA's registries of special-purpose addresses, and what clouds answer metadata on beside the link-local address.
# Our own list: `ipaddress.is_global` differs between the Pythons that we support.
_NOT_PUBLIC: tuple[tuple[Network, str], ...] = (
    (IPv4Network("0.0.0.0/8"), "this network"),
    (IPv4Network("10.0.0.0/8"), "private"),
    (IPv4Network("100.64.0.0/10"), "carrier-grade NAT"),
    (IPv4Network("127.0.0.0/8"), "loopback"),
    (IPv4Network("168.63.129.16/32"), "cloud metadata"),
    (IPv4Network("169.254.0.0/16"), "link-local"),
    (IPv4Network("172.16.0.0/12"), "private"),
    (IPv4Network("192.0.0.0/24"), "protocol assignments"),
    (IPv4Network("192.0.2.0/24"), "documentation"),
    (IPv4Network("192.88.99.0/24"), "6to4 relay"),
    (IPv4Network("192.168.0.0/16"), "private"),
    (IPv4Network("198.18.0.0/15"), "benchmarking"),
    (IPv4Network("198.51.100.0/24"), "documentation"),
    (IPv4Network("203.0.113.0/24"), "documentation"),
    (IPv4Network("224.0.0.0/4"), "multicast"),
    (IPv4Network("240.0.0.0/4"), "reserved"),
    (IPv6Network("2001::/23"), "protocol assignments"),
    (IPv6Network("2001:db8::/32"), "documentation"),
    (IPv6Network("3fff::/20"), "documentation"),
)
_GLOBAL_V6 = IPv6Network("2000::/3")
"""The only IPv6 range that is assigned to hosts of the internet; all else is local in some way."""
_NAT64 = IPv6Network("64:ff9b::/96")


def refusal(address: str, allowed: Collection[Network] = ()) -> str | None:
    """Why there may be no connection to an address; None if there may.

    `address` is what a socket is connected to, so it is in the standard form: a resolver has already read
    what was written in decimal, octal or hexadecimal.
    """
    outer = ip_address(address.partition("%")[0])
    reached = _embedded(outer) or outer
    if any(reached in network or outer in network for network in allowed):
        return None
    if isinstance(reached, IPv6Address) and reached not in _GLOBAL_V6:
        return f"{address} is no public address (local IPv6)"
    for network, name in _NOT_PUBLIC:
        if reached in network:
            return f"{address} is no public address ({name})"
    return None


def _embedded(address: IPv4Address | IPv6Address) -> IPv4Address | None:
    """The IPv4 address that is reached by an IPv6 one: mapped, 6to4, or through NAT64."""
    if isinstance(address, IPv4Address):
        return None
    if address in _NAT64:
        return IPv4Address(int(address) & 0xFFFF_FFFF)
    return address.ipv4_mapped or address.sixtofour


# ---- one HTTP request of a tool: no cookies, no proxy, no redirect followed, a limit on size and time

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
