"""The HTTP server over aiohttp: one handler for all paths, raw bodies, and resets that cannot look like an end."""

from __future__ import annotations

import asyncio
import logging
import socket
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from typing import Any

from aiohttp import HttpVersion11, web
from aiohttp.http_exceptions import HttpProcessingError
from multidict import CIMultiDict

from gateway.core.transport import BodyBroken, BodyTooLarge, Handler, HeaderList, by_name, sendable
from gateway.transport.edge import (
    CANCEL_S,
    MAX_HEAD_BYTES,
    error_body,
    fault_of,
    listening,
    origin_form,
    port_of,
    serve,
    with_rst_on_close,
)

LOG = logging.getLogger(__name__)


class _AboutErrors(logging.Logger):
    """Replaces aiohttp's own logger, which quotes bytes that it cannot read, and so keys and prompts."""

    def _log(self, level: int, msg: object, args: Any, exc_info: Any = None, *_: Any, **__: Any) -> None:
        error = exc_info if isinstance(exc_info, BaseException) else sys.exc_info()[1]
        if isinstance(error, HttpProcessingError | ConnectionError):
            LOG.debug("a request is no HTTP: %s", type(error).__name__)
        elif error is not None:
            LOG.error("aiohttp failed on a request: %s", type(error).__name__)


class _Connection(web.RequestHandler):
    """Refuses what is no HTTP as the gateway refuses other requests. aiohttp's own text quotes its bytes."""

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        super().handle_error(request, status, exc, message)  # logs it; raises where an answer has begun
        text = f"The request is refused: it is not valid HTTP ({type(exc).__name__})."
        if status >= 500:
            text = "The gateway failed. Its log says why."
        body = error_body(status, text)
        response = web.Response(status=status, body=body, content_type="application/json")
        response.force_close()
        return response


class _Connections(web.Server):
    def __call__(self) -> _Connection:
        return _Connection(self, loop=self._loop, **self._kwargs)


class AiohttpServer:
    """A `transport.Server`. The handler is cancelled when its client leaves."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self._running: set[asyncio.Task[None]] = set()
        self._server: web.Server | None = None
        self._listener: asyncio.Server | None = None

    async def start(
        self, host: str, port: int, *, reuse_port: bool = False, sock: socket.socket | None = None
    ) -> int:
        self._server = _Connections(
            self._answer,
            handler_cancellation=True,
            access_log=None,
            logger=_AboutErrors("aiohttp.server"),
            auto_decompress=False,
            max_line_size=MAX_HEAD_BYTES,
            max_field_size=MAX_HEAD_BYTES,
        )
        self._listener = await listening(self._server, host, port, reuse_port, sock)
        return port_of(self._listener)

    async def stop(self, grace_s: float) -> None:
        if self._server is None or self._listener is None:
            return
        self._listener.close()
        self._server.pre_shutdown()  # closes idle connections; busy ones close after their answer
        if self._running:
            _, late = await asyncio.wait(self._running, timeout=grace_s)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late, timeout=CANCEL_S)
        await self._server.shutdown(timeout=CANCEL_S)

    async def _answer(self, incoming: web.BaseRequest) -> web.StreamResponse:
        """Run the handler. Only `reply` and `end` end an answer cleanly."""
        responder = AiohttpResponder(incoming)
        request = AiohttpRequest(incoming)
        target = origin_form(incoming.raw_path, request.headers)
        if (fault := fault_of(_version(incoming), target, request.header_list, request.headers)) is not None:
            await responder.refuse(fault)
            return responder.sent
        task = asyncio.current_task()
        assert task is not None
        self._running.add(task)
        try:
            await serve(self._handler, request, responder)
        finally:
            self._running.discard(task)
        return responder.sent


class AiohttpRequest:
    """A `transport.Request`."""

    def __init__(self, incoming: web.BaseRequest) -> None:
        self._incoming = incoming
        self.method = incoming.method
        self.path = incoming.rel_url.raw_path
        self.query = incoming.rel_url.raw_query_string
        self.header_list: HeaderList = tuple(incoming.headers.items())
        self.headers: Mapping[str, str] = by_name(self.header_list)
        self.remote = incoming.remote or ""

    async def read(self, limit_bytes: int) -> bytes:
        return b"".join([chunk async for chunk in self.chunks(limit_bytes)])

    async def chunks(self, limit_bytes: int) -> AsyncIterator[bytes]:
        incoming = self._incoming
        if (incoming.content_length or 0) > limit_bytes:
            raise BodyTooLarge
        if incoming.headers.get("Expect", "").lower() == "100-continue" and incoming.version >= HttpVersion11:
            await incoming.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            incoming.writer.output_size = 0  # the answer has not begun
        size = 0
        try:
            async for chunk in incoming.content.iter_any():
                size += len(chunk)
                if size > limit_bytes:
                    raise BodyTooLarge
                yield chunk
        except web.RequestPayloadError:
            raise BodyBroken("it is not valid HTTP") from None


class AiohttpResponder:
    """A `transport.Responder`."""

    def __init__(self, incoming: web.BaseRequest) -> None:
        self._incoming = incoming
        self.response: web.StreamResponse | None = None
        self.has_ended = False

    @property
    def has_started(self) -> bool:
        return self.response is not None

    @property
    def _is_last(self) -> bool:
        """Whether the connection ends with the answer: aiohttp loses what stands behind an offer of HTTP/2, and a
        client that still waits for status 100 may or may not send its body."""
        incoming = self._incoming
        if incoming.headers.get("Upgrade", "websocket").lower() != "websocket":
            return True
        return "Expect" in incoming.headers and not incoming.content.is_eof()

    @property
    def sent(self) -> web.StreamResponse:
        """The answer that aiohttp gets. After a reset it has no connection to send it over."""
        return self.response or web.Response()

    async def refuse(self, fault: str) -> None:
        """Refuse a request with bad framing. Its connection closes: the start of the next request is unknown."""
        headers = {"Content-Type": "application/json", "Connection": "close"}
        body = error_body(400, f"The request is refused: {fault}.")
        self.response = response = web.Response(status=400, headers=headers, body=body)
        response.force_close()
        with suppress(ConnectionError):
            await response.prepare(self._incoming)
            await response.write_eof()

    async def reply(self, status: int, headers: HeaderList, body: bytes) -> None:
        assert self.response is None, "an answer has started"
        own = _own(headers, keep_length=False)
        self.response = response = web.Response(status=status, headers=own, body=body)
        if self._is_last:
            response.force_close()
        await response.prepare(self._incoming)
        await response.write_eof()
        self.has_ended = True

    async def open_stream(self, status: int, headers: HeaderList) -> None:
        assert self.response is None, "an answer has started"
        self.response = web.StreamResponse(status=status, headers=_own(headers, keep_length=True))
        if self._is_last or self._incoming.version < HttpVersion11:
            self.response.force_close()  # without chunks the end of the connection is the end of the body
        await self.response.prepare(self._incoming)

    async def write(self, data: bytes) -> None:
        assert self.response is not None, "open_stream comes before write"
        if self._incoming.method != "HEAD":
            await self.response.write(data)

    async def end(self) -> None:
        assert self.response is not None, "open_stream comes before end"
        await self.response.write_eof()
        self.has_ended = True

    def reset(self) -> None:
        transport = self._incoming.transport
        if transport is None:
            return
        if self._incoming.version < HttpVersion11:
            # Without chunks a close is a clean end, so it must be an RST.
            with_rst_on_close(transport)
        transport.abort()


def _own(headers: HeaderList, *, keep_length: bool) -> CIMultiDict[str]:
    """Return the headers without those that frame the body, which the server sets itself."""
    framing = {"transfer-encoding"} if keep_length else {"transfer-encoding", "content-length"}
    kept = CIMultiDict((sendable(name), sendable(value)) for name, value in headers if name.lower() not in framing)
    kept.setdefault("Server", "turngate")
    return kept


def _version(incoming: web.BaseRequest) -> str:
    return f"{incoming.version.major}.{incoming.version.minor}"
