"""HTTP for tools: which addresses they may connect to, one bounded request, the readable text of a page."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from html import unescape
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Any, TypeAlias

import aiohttp
from aiohttp.abc import AbstractResolver
from yarl import URL

from tool_runtime.types import Refused, ToolError

Network = IPv4Network | IPv6Network
Resolver: TypeAlias = AbstractResolver

# ---- addresses: public ones, and the private networks that the operator names

# IANA's registries of special-purpose addresses, and a cloud's metadata address that is not link-local.
# `ipaddress.is_global` cannot take its place: its answer differs between the supported Pythons.
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
"""The only IPv6 range for hosts of the internet. Every other range is local in some way."""
_NAT64 = IPv6Network("64:ff9b::/96")


def refusal(address: str, allowed: Collection[Network] = ()) -> str | None:
    """Return why a connection to an address is not allowed. None: it is.

    `address` is that of a socket, so it is in the standard form: a resolver has already read the decimal, octal
    and hexadecimal forms.
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
    """Return the IPv4 address that an IPv6 address reaches: mapped, 6to4, or through NAT64."""
    if isinstance(address, IPv4Address):
        return None
    if address in _NAT64:
        return IPv4Address(int(address) & 0xFFFF_FFFF)
    return address.ipv4_mapped or address.sixtofour


# ---- one request: without cookies or proxy, no redirect followed, bounded in size

USER_AGENT = "turngate-tool/1"


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer of a server."""

    status: int
    url: URL
    content_type: str
    charset: str
    location: str
    body: bytes
    is_cut: bool
    """Whether the body exceeded the limit."""


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
    """Send one request and return its answer. The caller bounds the time.

    `refuses` gets the very address of each connection, whatever name or number it came from, so a name cannot
    change its meaning between the check and the connection. Raises Refused with the reason that it returns,
    ToolError if there is no answer.
    """
    sockets = _CheckedSockets(refuses)
    connector = aiohttp.TCPConnector(
        resolver=resolver, use_dns_cache=False, force_close=True, socket_factory=sockets.open
    )
    session = aiohttp.ClientSession(
        connector=connector, cookie_jar=aiohttp.DummyCookieJar(), timeout=aiohttp.ClientTimeout()
    )
    headers = {"User-Agent": USER_AGENT, **(headers or {})}
    try:
        async with (
            session,
            session.request(method, url, headers=headers, json=json, allow_redirects=False) as response,
        ):
            return await _reply(url, response, max_bytes)
    except (aiohttp.ClientError, OSError, ValueError) as error:
        if sockets.refusal:
            raise Refused(sockets.refusal) from None
        raise ToolError(f"{url.host} did not answer: {error or type(error).__name__}") from None


class _CheckedSockets:
    """Opens the sockets of one request, to allowed addresses only."""

    def __init__(self, refuses: Callable[[str], str | None]) -> None:
        self._refuses = refuses
        self.refusal = ""
        """Why a socket was not opened. Empty: none was refused."""

    def open(self, info: tuple[int, int, int, str, tuple[Any, ...]]) -> socket.socket:
        family, kind, protocol, _, address = info
        if reason := self._refuses(str(address[0])):
            self.refusal = reason
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


# ---- the readable text of an HTML page
#
# Not a parser: it reads each character a fixed number of times, whatever the page. A page can make the parser of
# the standard library take minutes.

_TAG = re.compile(r"<([/!?a-zA-Z][^<>]*)>")
_NAME = re.compile(r"/?[a-z][^\s/>]*")
_UNSEEN = {"script", "style", "noscript", "template", "svg", "iframe", "object"}
_BREAKS = {
    *("address", "article", "aside", "blockquote", "br", "dd", "div", "dl", "dt", "fieldset", "figcaption"),
    *("figure", "footer", "form", "h1", "h2", "h3", "h4", "h5", "h6", "header", "hr", "li", "main", "nav", "ol"),
    *("p", "pre", "section", "table", "title", "tr", "ul"),
}
_MARKS = {"li": "- ", "h1": "# ", "h2": "## ", "h3": "### ", "title": "Title: ", "td": " ", "th": " "}


def page_text(html: str) -> str:
    """Return title, headings, paragraphs and list items as lines of text, without scripts and styles."""
    lines = (re.sub(r"\s+", " ", unescape(line)).strip() for line in "".join(_pieces(html)).split("\n"))
    return "\n".join(line for line in lines if line.strip("-# "))


def _pieces(html: str) -> Iterator[str]:
    """Yield the text between tags, with a line feed where a tag breaks the line."""
    unseen = ""
    parts = iter(_TAG.split("".join(_without_comments(html))))
    for text in parts:
        if not unseen:
            yield re.sub(r"\s+", " ", text)
        name = _name(next(parts, ""))
        if unseen:
            unseen = "" if name == f"/{unseen}" else unseen
        elif name in _UNSEEN:
            unseen = name
        elif name.removeprefix("/") in _BREAKS:
            yield "\n"
        if not unseen:
            yield _MARKS.get(name, "")


def _name(tag: str) -> str:
    found = _NAME.match(tag.lower())
    return found[0] if found else ""


def _without_comments(html: str) -> Iterator[str]:
    at = 0
    while (start := html.find("<!--", at)) >= 0:
        yield html[at:start]
        end = html.find("-->", start)
        at = len(html) if end < 0 else end + 3
    yield html[at:]
