"""Refuses web pages that reach a gateway without keys under a name of their own (DNS rebinding).

The name of a page `http://evil.example:8080` may be changed to point at this machine. Then the page and the
gateway are of one origin: its browser sends no `Origin`, and lets it read the answers. `Host` still has the
name. Such a name is one that a stranger can register. So an address, a name of one label and a name below a
reserved top-level domain pass: container networks and clusters use these.

A listener on loopback has no other names, unless they are listed. On another listener a program may come by any
name, and only browsers are refused under one that is not listed. Over plain HTTP they send `Sec-Fetch-*` to
loopback only, but always `Accept-Language`, which a page can change and cannot remove. Node's `fetch` sends
that too, together with `Sec-Fetch-Mode`, which a page cannot add.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from ipaddress import ip_address

from gateway.access.keys import Keys
from gateway.core.errors import Failure
from gateway.core.fields import excerpt
from gateway.core.transport import Handler, Request, Responder
from gateway.dialects import dialect_of
from gateway.request.handler import failed

RESERVED = frozenset(("localhost", "local", "internal", "test", "lan", "svc", "arpa"))
"""Top-level domains below which no name can be registered: RFC 6761, 6762 and 8375, ICANN's `internal`, and two
that routers and Kubernetes use and that are not delegated."""


MAX_HOST_CHARS = 261
"""A name has 253 characters at most (RFC 1035), and a port 6. Longer ones are not remembered either."""


@dataclass(frozen=True, slots=True)
class HostGuard:
    """The entry of one listener."""

    inner: Handler
    keys: Keys | None
    """The guard is off while these need a key. None: no key is ever needed."""
    hosts: tuple[str, ...]
    """Names and globs that are listed, and the name to listen on."""
    is_loopback: bool

    def handle(self, request: Request, responder: Responder) -> Awaitable[None]:
        """A `transport.Handler`."""
        if self.keys is None or self.keys.is_open:
            host = request.headers.get("host", "")
            is_foreign = len(host) > MAX_HOST_CHARS or not is_own(host, self.hosts)
            if is_foreign and (self.is_loopback or is_of_browser(request.headers)):
                return self._refuse(request, responder)
        return self.inner(request, responder)

    async def _refuse(self, request: Request, responder: Responder) -> None:
        host = excerpt(request.headers.get("host", ""))
        text = (
            f"Without keys this gateway does not answer to the name {host}. List it in listen.hosts, or configure"
        )
        failure = Failure(403, "permission_error", f"{text} `keys`.", code="foreign_host")
        await responder.reply(*failed(dialect_of(request.path), failure, ()))


@lru_cache(maxsize=64)
def is_own(host: str, listed: tuple[str, ...]) -> bool:
    """Whether a `Host` is no name that a stranger can register, or is listed. An empty one is HTTP/1.0's."""
    name = _name(host)
    if "." not in name or name.rpartition(".")[2] in RESERVED or any(fnmatchcase(name, one) for one in listed):
        return True
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def is_of_browser(headers: Mapping[str, str]) -> bool:
    """Whether a browser sent these headers, as far as a page cannot hide it."""
    if "origin" in headers or "sec-fetch-site" in headers:
        return True
    return "accept-language" in headers and "sec-fetch-mode" not in headers


def _name(host: str) -> str:
    """Return the host without its port, in lower case."""
    if host.startswith("["):
        address, _, rest = host[1:].partition("]")
        return host if rest and not rest.startswith(":") else address
    return host.partition(":")[0].rstrip(".").lower()
