"""The listening edge over aiohttp: one catch-all handler, raw bodies, and a reset that cannot look like an end."""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress

import orjson
from aiohttp import HttpVersion11, web
from multidict import CIMultiDict

from gateway.transport import BodyTooLarge, Handler, HeaderList, utf8

logger = logging.getLogger(__name__)

MAX_HEADER_BYTES = 64 * 1024
CANCEL_S = 1.0
"""How long a cancelled handler may take to let go."""
_RST_ON_CLOSE = struct.pack("ii", 1, 0)


class AiohttpServer:
    """A `transport.Server`. The handler is cancelled when its client leaves."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self._running: set[asyncio.Task[None]] = set()
        self._server: web.Server | None = None
        self._listener: asyncio.Server | None = None

    async def start(self, host: str, port: int) -> int:
        self._server = web.Server(
            self._answer,
            handler_cancellation=True,
            access_log=None,
            auto_decompress=False,
            max_line_size=MAX_HEADER_BYTES,
            max_field_size=MAX_HEADER_BYTES,
        )
        loop = asyncio.get_running_loop()
        self._listener = await loop.create_server(self._server, host, port, backlog=1024)
        bound: int = self._listener.sockets[0].getsockname()[1]
        return bound

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
        """Runs the handler; only `reply` or `end` make a clean end."""
        responder = AiohttpResponder(incoming)
        task = asyncio.current_task()
        assert task is not None
        self._running.add(task)
        try:
            if incoming.headers.get("Content-Encoding", "identity").lower() != "identity":
                await _reply_error(responder, 415, "Send the request body without Content-Encoding.")
            else:
                await self._handler(AiohttpRequest(incoming), responder)
        except web.RequestPayloadError:
            await _reply_error(responder, 400, "The request body is not valid HTTP.")
        except ConnectionError:
            responder.reset()
            return responder.response or web.Response()  # finds nobody to be sent to
        except Exception:
            logger.exception("the handler of %s %s failed", incoming.method, incoming.path)
            await _reply_error(responder, 500, "The gateway failed. Its log says why.")
        finally:
            self._running.discard(task)
            if responder.has_started and not responder.has_ended:
                responder.reset()
        if not responder.has_started:
            await _reply_error(responder, 500, "The gateway gave no answer.")
        assert responder.response is not None
        return responder.response


async def _reply_error(responder: AiohttpResponder, status: int, message: str) -> None:
    """What fails below the dialects is told in OpenAI's shape; nothing once an answer has started."""
    if responder.has_started:
        return
    kind = "server_error" if status >= 500 else "invalid_request_error"
    error = {"message": message, "type": kind, "param": None, "code": None}
    with suppress(ConnectionError):
        await responder.reply(status, [("Content-Type", "application/json")], orjson.dumps({"error": error}))


class AiohttpRequest:
    """A `transport.Request`."""

    def __init__(self, incoming: web.BaseRequest) -> None:
        self._incoming = incoming
        self.method = incoming.method
        self.path = incoming.rel_url.raw_path
        self.query = incoming.rel_url.raw_query_string
        self.headers: Mapping[str, str] = incoming.headers
        self.header_list: HeaderList = tuple(incoming.headers.items())
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
        async for chunk in incoming.content.iter_any():
            size += len(chunk)
            if size > limit_bytes:
                raise BodyTooLarge
            yield chunk


class AiohttpResponder:
    """A `transport.Responder`."""

    def __init__(self, incoming: web.BaseRequest) -> None:
        self._incoming = incoming
        self.response: web.StreamResponse | None = None
        self.has_ended = False

    @property
    def has_started(self) -> bool:
        return self.response is not None

    async def reply(self, status: int, headers: HeaderList, body: bytes) -> None:
        assert self.response is None, "an answer has started"
        own = _own(headers, keep_length=False)
        self.response = response = web.Response(status=status, headers=own, body=body)
        await response.prepare(self._incoming)
        await response.write_eof()
        self.has_ended = True

    async def start(self, status: int, headers: HeaderList) -> None:
        assert self.response is None, "an answer has started"
        self.response = web.StreamResponse(status=status, headers=_own(headers, keep_length=True))
        if self._incoming.version < HttpVersion11:
            self.response.force_close()  # the end of the connection is the end of the body
        await self.response.prepare(self._incoming)

    async def write(self, data: bytes) -> None:
        assert self.response is not None, "start comes before write"
        if self._incoming.method != "HEAD":
            await self.response.write(data)

    async def end(self) -> None:
        assert self.response is not None, "start comes before end"
        await self.response.write_eof()
        self.has_ended = True

    def reset(self) -> None:
        transport = self._incoming.transport
        if transport is None:
            return
        if self._incoming.version < HttpVersion11:
            # Without chunks a close is a clean end, so it must be an RST.
            sock = transport.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RST_ON_CLOSE)
        transport.abort()


def _own(headers: HeaderList, *, keep_length: bool) -> CIMultiDict[str]:
    """The headers without those that frame the body, which are this edge's own."""
    framing = {"transfer-encoding"} if keep_length else {"transfer-encoding", "content-length"}
    kept = CIMultiDict((name, utf8(value)) for name, value in headers if name.lower() not in framing)
    kept.setdefault("Server", "turngate")
    return kept
