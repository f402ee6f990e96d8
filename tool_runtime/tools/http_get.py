"""Reads a page of an allowed host, at public addresses only. Each connection and each redirect is checked."""

from __future__ import annotations

import asyncio
import codecs
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from ipaddress import ip_address, ip_network
from typing import Any

from yarl import URL

from tool_runtime.execution import in_thread
from tool_runtime.loading import read_options
from tool_runtime.tools import GRACE_S
from tool_runtime.types import Context, Effect, Json, Limits, Refused, Tool, ToolError
from tool_runtime.web import Reply, Resolver, fetch, page_text, refusal

MAX_REDIRECTS = 5
_REDIRECTS = {301, 302, 303, 307, 308}
_HTML = {"text/html", "application/xhtml+xml"}
_TEXT = ("json", "xml", "yaml", "javascript", "x-ndjson", "toml")
"""Endings of the content types that are text, beside `text/...`."""
_CHARSETS = ("utf", "ascii", "iso8859", "cp", "gb", "big5", "euc", "shift_jis", "koi8")
"""Beginnings of the names of charsets. Python has other codecs that are no charsets, some of them slow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpGetOptions:
    """Settings of `http_get`."""

    hosts: tuple[str, ...]
    """`docs.example.com`, `*.example.com` for all hosts below it, `*` for all; `name:port` for an unusual port."""
    private_networks: tuple[str, ...] = ()
    """Networks such as 10.1.0.0/16 that are not public and yet allowed."""
    max_bytes: int = 1_000_000
    """Length at which a page is cut."""
    timeout_s: float = 20.0
    """Longest time of a call, redirects included."""

    def __post_init__(self) -> None:
        for network in self.private_networks:
            ip_network(network)


def build(settings: Mapping[str, Any]) -> Tool:
    """Raises ValueError."""
    options = read_options(HttpGetOptions, settings, "http_get")
    return Tool(
        name="http_get",
        description="Read a web page or file by HTTP GET. Gives its text; of HTML pages without the markup.",
        parameters={
            "type": "object",
            "properties": {"url": {"type": "string", "description": "http:// or https://", "maxLength": 4096}},
            "required": ["url"],
            "additionalProperties": False,
        },
        run=Getter(options).run,
        effect=Effect.READ_ONLY,
        limits=Limits(timeout_s=options.timeout_s + GRACE_S),
        source="builtin",
    )


@dataclass(frozen=True, slots=True)
class Getter:
    """Runs the calls. A resolver of None stands for aiohttp's own."""

    options: HttpGetOptions
    resolver: Resolver | None = None

    async def run(self, arguments: Json, context: Context) -> str:
        url: str = arguments["url"]
        try:
            async with asyncio.timeout(self.options.timeout_s):
                reply = await self._followed(_parsed(url))
                text = await in_thread(partial(_text, reply))
        except TimeoutError:
            raise ToolError(f"{url} was not read within {self.options.timeout_s:g} s") from None
        if reply.status >= 400:
            raise ToolError(f"{reply.url} answered {reply.status}\n\n{text}")
        cut = f"\n[cut: only the first {self.options.max_bytes} bytes were read]" if reply.is_cut else ""
        return f"{reply.url}\n\n{text}{cut}"

    async def _followed(self, url: URL) -> Reply:
        refuses = partial(refusal, allowed=[ip_network(network) for network in self.options.private_networks])
        for _ in range(MAX_REDIRECTS + 1):
            self._check(url)
            reply = await fetch(url, max_bytes=self.options.max_bytes, refuses=refuses, resolver=self.resolver)
            if reply.status not in _REDIRECTS or not reply.location:
                return reply
            url = _parsed(reply.location, url)
        raise ToolError(f"more than {MAX_REDIRECTS} redirects, the last to {url}")

    def _check(self, url: URL) -> None:
        """Raises Refused."""
        written = (url.host_subcomponent or "").lower()
        host = written.rstrip(".")
        if url.scheme not in ("http", "https") or not host:
            raise Refused(f"{url} is refused: only http:// and https:// are read")
        if host.rpartition(".")[2][:1].isdigit() and not _is_address(written):
            raise Refused(f"{url.host} is refused: an IPv4 address is written as four decimal numbers")
        if url.raw_user is not None or url.raw_password is not None:
            raise Refused(f"{url.host} is refused: an address with a user name or password is not read")
        if not any(_is_meant(entry, host, url) for entry in self.options.hosts):
            raise Refused(f"{url.origin()} is refused: allowed are {', '.join(self.options.hosts) or 'no hosts'}")


def _is_meant(entry: str, host: str, url: URL) -> bool:
    name, _, port = entry.lower().partition(":")
    if not (str(url.port) == port if port else url.is_default_port()):
        return False
    return name in ("*", host) or (name.startswith("*.") and host.endswith(name[1:]))


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def _parsed(text: str, base: URL | None = None) -> URL:
    """Raises Refused."""
    try:
        return (base.join(URL(text)) if base else URL(text)).with_fragment(None)
    except ValueError as error:
        raise Refused(f"{text!r} is no address: {error}") from None


def _text(reply: Reply) -> str:
    kind = reply.content_type
    if not kind.startswith("text/") and not kind.endswith(_TEXT):
        raise ToolError(f"{reply.url} is no text but {kind}")
    text = reply.body.decode(_charset(reply.charset), "replace")
    return page_text(text) if kind in _HTML else text


def _charset(name: str) -> str:
    try:
        known = codecs.lookup(name).name
    except (LookupError, ValueError):
        return "utf-8"
    return known if known.startswith(_CHARSETS) else "utf-8"
