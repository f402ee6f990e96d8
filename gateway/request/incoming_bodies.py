"""Room for request bodies that are on their way in: bounded in all, and for each key."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field

from gateway.core.errors import Failure, Outcome, Refused
from gateway.core.transport import BodyTooLarge, Request
from gateway.request.inprocess import HandedOn

SMALL_BYTES = 256 * 1024
"""Bodies up to this length need no room while SMALL_SHARE of the room is enough for all of them."""
TINY_BYTES = 64 * 1024
"""Bodies up to this length never do: a connection reads as much before its request is handled."""
SMALL_SHARE = 1 / 16
SHARE_OF_A_KEY = 0.25
WAIT_S = 30.0
"""Longest wait for room."""
FEWEST_WAITING = 32
"""Bodies that may wait for room at once, or as many as would fill it with SMALL_BYTES each: a connection holds the
beginning of what waits. One key may have its share of them."""
GRACE_S, LEAST_BYTES_PER_S = 30.0, 64 * 1024
"""Time in which a body that has room must come whole: what drips would keep its room from others for ever."""


@dataclass(slots=True, eq=False)
class _Place:
    key: str
    size_bytes: int
    granted: asyncio.Future[None]


@dataclass(slots=True, kw_only=True)
class IncomingBodies:
    """Reads the bodies of requests. One that does not fit waits, and its connection is not read meanwhile.

    Room is taken for the whole length of a body before it is read, so that no two half-read bodies wait for each
    other. A body without a length takes as much as a body may have. With nothing else on its way, any body fits.
    """

    wait_s: float = WAIT_S
    grace_s: float = GRACE_S
    held: dict[str, int] = field(default_factory=dict)
    """Bytes by key."""
    small_bytes: int = 0
    """Of small bodies that came without room."""
    _waiting: deque[_Place] = field(default_factory=deque)

    async def read(self, request: Request, most_bytes: int, room_bytes: int, key: str) -> bytes:
        """Return a body of at most `most_bytes`. `room_bytes`: for all bodies that are on their way. `key`: the
        name of the caller's key; empty: there are no keys. Raises Refused, BodyTooLarge, BodyBroken."""
        length = request.headers.get("content-length")
        if isinstance(request, HandedOn) or (length is not None and int(length) <= TINY_BYTES):
            return await request.read(most_bytes)
        if length is not None and self._takes_small(int(length), room_bytes):
            self.small_bytes += int(length)
            try:
                return await request.read(most_bytes)
            finally:
                self.small_bytes -= int(length)
        if length is not None:
            if int(length) > most_bytes:
                raise BodyTooLarge
            async with self._room(room_bytes, key, int(length)):
                return await request.read(most_bytes)
        chunks = request.chunks(most_bytes)
        parts, size_bytes = await _up_to(chunks, TINY_BYTES)
        if size_bytes <= TINY_BYTES:
            return b"".join(parts)
        async with self._room(room_bytes, key, most_bytes):
            return b"".join([*parts, *[chunk async for chunk in chunks]])

    @property
    def num_bytes(self) -> int:
        """Of bodies that are on their way, each in whole."""
        return self.small_bytes + sum(self.held.values())

    def _takes_small(self, size_bytes: int, room_bytes: int) -> bool:
        return size_bytes <= SMALL_BYTES and self.small_bytes + size_bytes <= SMALL_SHARE * room_bytes

    @asynccontextmanager
    async def _room(self, room_bytes: int, key: str, size_bytes: int) -> AsyncIterator[None]:
        try:
            with self._granted(room_bytes, key, size_bytes) as place:
                try:
                    async with asyncio.timeout(self.wait_s):
                        await place.granted
                except TimeoutError:
                    raise _no_room() from None
                async with asyncio.timeout(self.grace_s + size_bytes / LEAST_BYTES_PER_S):
                    yield
        except TimeoutError:
            text = "The body came too slowly."
            raise Refused(Outcome.BAD_REQUEST, Failure(408, "invalid_request_error", text)) from None
        finally:
            self._admit(room_bytes)

    @contextmanager
    def _granted(self, room_bytes: int, key: str, size_bytes: int) -> Iterator[_Place]:
        if self._has_too_many(room_bytes, key):
            raise _no_room()
        place = _Place(key, size_bytes, asyncio.get_running_loop().create_future())
        self._waiting.append(place)
        self._admit(room_bytes)
        try:
            yield place
        finally:
            if place.granted.done() and not place.granted.cancelled():
                self.held[key] -= size_bytes
                if not self.held[key]:
                    del self.held[key]
            else:
                place.granted.cancel()

    def _has_too_many(self, room_bytes: int, key: str) -> bool:
        most = max(FEWEST_WAITING, room_bytes // SMALL_BYTES * (SHARE_OF_A_KEY if key else 1))
        return len(self._waiting) >= most and sum(place.key == key for place in self._waiting) >= most

    def _admit(self, room_bytes: int) -> None:
        """Admit bodies in the order of their arrival. One whose key has its share is passed over."""
        share = SHARE_OF_A_KEY * room_bytes
        left: deque[_Place] = deque()
        while self._waiting:
            place = self._waiting.popleft()
            if place.granted.done():
                continue  # its client has left
            held = self.held.get(place.key, 0)
            if place.key and held and held + place.size_bytes > share:
                left.append(place)
                continue
            if self.held and sum(self.held.values()) + place.size_bytes > room_bytes:
                left.append(place)
                break
            self.held[place.key] = held + place.size_bytes
            place.granted.set_result(None)
        self._waiting.extendleft(reversed(left))


async def _up_to(chunks: AsyncIterator[bytes], num_bytes: int) -> tuple[list[bytes], int]:
    """Return the chunks until they are more than `num_bytes`, or there are no more, and their size."""
    parts, size_bytes = [], 0
    while size_bytes <= num_bytes and (chunk := await anext(chunks, None)) is not None:
        parts.append(chunk)
        size_bytes += len(chunk)
    return parts, size_bytes


def _no_room() -> Refused:
    text = "Too many large bodies are on their way (limits.incoming_bytes). Try again in 1 s."
    failure = Failure(429, "rate_limit_error", text, code="too_many_bytes", retry_after_s=1.0)
    return Refused(Outcome.REJECTED_QUEUE_FULL, failure)
