"""The part of an HTTP server that both transports share: it guards a handler, and refuses ambiguous requests."""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Protocol

import orjson

from gateway.core.fields import excerpt
from gateway.core.transport import BodyBroken, Handler, HeaderList, Request, Responder

LOG = logging.getLogger(__name__)

MAX_HEAD_BYTES = 64 * 1024
"""Bound on a request's first line and headers together."""
MAX_HEADERS = 128
CANCEL_S = 1.0
"""Time that a cancelled handler has to end."""
_BACKLOG = 1024
_RST_ON_CLOSE = struct.pack("ii", 1, 0)


class Ending(Responder, Protocol):
    """A responder that knows whether its answer is whole."""

    has_ended: bool


async def serve(handler: Handler, request: Request, responder: Ending) -> None:
    """Run the handler. In any case the client gets one whole answer or a broken connection."""
    try:
        if request.headers.get("content-encoding", "identity").lower() != "identity":
            await refuse(responder, 415, "Send the request body without Content-Encoding.")
        else:
            await handler(request, responder)
            if not responder.has_started:
                await refuse(responder, 500, "The gateway gave no answer.")
    except BodyBroken as broken:
        await refuse(responder, 400, f"The request body is not whole: {broken}.")
    except ConnectionError:
        pass  # the client has gone
    except Exception:
        LOG.exception("the handler of %s %s failed", excerpt(request.method), excerpt(request.path))
        await refuse(responder, 500, "The gateway failed. Its log says why.")
    finally:
        if not responder.has_ended:
            responder.reset()


async def refuse(responder: Responder, status: int, message: str) -> None:
    """Answer with an error, unless an answer has started."""
    if not responder.has_started:
        with suppress(ConnectionError):
            await responder.reply(status, [("Content-Type", "application/json")], error_body(status, message))


def error_body(status: int, message: str) -> bytes:
    """Return the body of an error. Below the dialects, errors have OpenAI's shape."""
    kind = "server_error" if status >= 500 else "invalid_request_error"
    return orjson.dumps({"error": {"message": message, "type": kind, "param": None, "code": None}})


def origin_form(target: str, headers: Mapping[str, str]) -> str:
    """Return the path of a target that is a URL of the host that `Host` names. Any other target stays as it is:
    two servers could disagree on the host (RFC 9112, 3.2.2)."""
    scheme, _, rest = target.partition("://")
    authority, _, path = rest.partition("/")
    is_ours = scheme.lower() in ("http", "https") and authority.lower() == headers.get("host", "").lower()
    return f"/{path}" if authority and is_ours else target


def fault_of(version: str, target: str, header_list: HeaderList, headers: Mapping[str, str]) -> str | None:
    """Return why a request is refused that a parser accepts, or None: two servers could disagree on its target or
    its end (RFC 9112, sections 3.2, 6.1 and 6.3)."""
    if version not in ("1.1", "1.0"):
        return "only HTTP/1.1 and HTTP/1.0 are spoken here"
    if not target.startswith("/") and target != "*":
        return "the target must be a path, or a URL of the host that Host names"
    if len(header_list) > MAX_HEADERS:
        return f"it has more than {MAX_HEADERS} headers"
    if "host" not in headers and version == "1.1":
        return "it has no Host header"
    if (coding := headers.get("transfer-encoding")) is not None:
        if coding.lower() != "chunked" or version == "1.0":
            return "the only Transfer-Encoding is chunked, and HTTP/1.0 has none"
        if "content-length" in headers:
            return "it has both Content-Length and Transfer-Encoding"
    if len(headers) != len(header_list):
        for name in ("host", "content-length", "transfer-encoding"):
            if sum(key.lower() == name for key, _ in header_list) > 1:
                return f"it has more than one {name} header"
    return None


async def listening(
    factory: Callable[[], asyncio.BaseProtocol],
    host: str,
    port: int,
    reuse_port: bool,
    sock: socket.socket | None,
) -> asyncio.Server:
    """Listen, as `transport.Server.start` does."""
    loop = asyncio.get_running_loop()
    if sock is not None:
        return await loop.create_server(factory, sock=sock, backlog=_BACKLOG)
    return await loop.create_server(factory, host, port, backlog=_BACKLOG, reuse_port=reuse_port or None)


def port_of(listener: asyncio.Server) -> int:
    bound: int = listener.sockets[0].getsockname()[1]
    return bound


def with_rst_on_close(transport: asyncio.BaseTransport) -> None:
    """Make the close of a connection a reset, where an ordinary close would be a clean end of the answer."""
    transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RST_ON_CLOSE)
