"""Answers of the upstream interface that a service's own were made into."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

import orjson

from gateway.core.sse import EventTooLong
from gateway.core.transport import HeaderList, UpstreamCut, UpstreamReply, by_name, taken
from gateway.engines.providers.asked import Untranslatable

_JSON = ("Content-Type", "application/json")
_EVENTS = ("Content-Type", "text/event-stream; charset=utf-8")
_KEPT = frozenset(("request-id", "x-amzn-requestid", "retry-after"))
"""Headers of the service that its answer keeps."""


class WholeReply:
    """An answer that is here already."""

    def __init__(self, status: int, header_list: HeaderList, body: bytes) -> None:
        self.status = status
        self.header_list = header_list
        self.headers: Mapping[str, str] = by_name(header_list)
        self._body = body

    async def chunks(self) -> AsyncIterator[bytes]:
        yield self._body

    async def read(self, limit_bytes: int) -> bytes:
        return self._body

    def close(self, *, reuse: bool) -> None:
        """There is nothing to give back."""


def refusal(
    status: int, message: str, param: str | None = None, kind: str = "invalid_request_error"
) -> WholeReply:
    """An error in OpenAI's words."""
    error = {"message": message, "type": kind, "param": param, "code": None}
    return WholeReply(status, [_JSON], orjson.dumps({"error": error}))


def untranslatable(error: Untranslatable) -> WholeReply:
    return refusal(400, str(error), error.param)


class TranslatedReply:
    """Another answer, whose stream or body is translated. Raises UpstreamCut for what is not the service's."""

    def __init__(self, reply: UpstreamReply, translate: Callable[[bytes], bytes], is_stream: bool) -> None:
        """`translate`: of each chunk of a stream, or of the whole body."""
        self.status = reply.status
        kept = [(name, value) for name, value in reply.header_list if name.lower() in _KEPT]
        self.header_list: HeaderList = [_EVENTS if is_stream else _JSON, *kept]
        self.headers: Mapping[str, str] = by_name(self.header_list)
        self._reply = reply
        self._translate = translate

    async def chunks(self) -> AsyncIterator[bytes]:
        async for chunk in self._reply.chunks():
            if translated := self._translated(chunk):
                yield translated

    async def read(self, limit_bytes: int) -> bytes:
        return self._translated(await self._reply.read(limit_bytes))

    def close(self, *, reuse: bool) -> None:
        self._reply.close(reuse=reuse)

    def _translated(self, data: bytes) -> bytes:
        try:
            return self._translate(data)
        except (ValueError, AttributeError, EventTooLong) as error:
            raise UpstreamCut(f"what it answered cannot be read: {error}") from None


# ---- a service's list of models, asked for rarely

KEEP_S = 300.0
MAX_BYTES = 4 * 2**20


class Listing:
    """Keeps the last one that came."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._kept: WholeReply | None = None
        self._until = 0.0

    async def reply(self, ask: Callable[[], Awaitable[UpstreamReply]]) -> UpstreamReply:
        """As `Upstream.call`."""
        if self._kept is not None and self._clock() < self._until:
            return self._kept
        reply = await ask()
        if reply.status != 200:
            return reply
        body = await taken(reply, MAX_BYTES)
        self._kept, self._until = WholeReply(200, reply.header_list, body), self._clock() + KEEP_S
        return self._kept
