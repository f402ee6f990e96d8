"""Requests that the gateway makes of itself, on a client's path without a connection; and when to repeat them."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass

from gateway.access.keys import Caller
from gateway.config.live_settings import RequestSettings
from gateway.core.transport import BodyTooLarge, Handler, HeaderList, by_name

LOG = logging.getLogger(__name__)
FAILED = (
    b'{"error":{"message":"The gateway failed. Its log says why.","type":"server_error","param":null,"code":null}}'
)


@dataclass(frozen=True, slots=True)
class Continuation:
    """Settings and caller of a request that another part of the gateway has begun."""

    settings: RequestSettings
    caller: Caller


class HandedOn:
    """A `transport.Request` from another part of the gateway, not from a listener."""

    begun: Continuation | None = None
    """None: the request begins here."""


class InProcessRequest(HandedOn):
    """A `transport.Request`."""

    method = "POST"
    query = ""
    remote = ""

    def __init__(self, path: str, header_list: HeaderList, body: bytes) -> None:
        self.path = path
        self.header_list = header_list
        self.headers: Mapping[str, str] = by_name(header_list)
        self._body = body

    async def read(self, limit_bytes: int) -> bytes:
        if len(self._body) > limit_bytes:
            raise BodyTooLarge
        return self._body

    async def chunks(self, limit_bytes: int) -> AsyncIterator[bytes]:
        yield await self.read(limit_bytes)


class InProcessResponder:
    """A `transport.Responder`. A stream goes to `each`, chunk by chunk; another answer is kept."""

    def __init__(self, each: Callable[[bytes], Awaitable[None]] | None = None) -> None:
        self._each = each
        self.status = 0
        self.headers: Mapping[str, str] = {}
        self.body = b""
        self.is_whole = False
        """Whether the answer came to its clean end."""

    @property
    def has_started(self) -> bool:
        return self.status != 0

    async def reply(self, status: int, headers: HeaderList, body: bytes) -> None:
        await self.open_stream(status, headers)
        self.body = body
        self.is_whole = True

    async def open_stream(self, status: int, headers: HeaderList) -> None:
        self.status, self.headers = status, by_name(headers)

    async def write(self, data: bytes) -> None:
        if self._each is not None:
            await self._each(data)

    async def end(self) -> None:
        self.is_whole = True

    def reset(self) -> None:
        self.is_whole = False


async def ask(handle: Handler, path: str, headers: HeaderList, body: bytes) -> InProcessResponder:
    """Return the answer to a request that is not streamed. An error of the path itself is logged: status 500."""
    responder = InProcessResponder()
    try:
        await handle(InProcessRequest(path, headers, body), responder)
    except Exception:
        LOG.exception("the path failed on %s", path)
        responder.status, responder.body = 500, FAILED
    return responder


# ---- which failures may pass, and when to try again. Pure

OVERLOADED = frozenset((429, 503, 529))
"""Statuses of full or missing engines: waited out for as long as the batch has time."""
PASSING = frozenset((0, 408, 409, 500, 502, 504))
"""Statuses of a call that went wrong; 0 is an answer that was cut."""
FIRST_S, LONGEST_S = 0.5, 60.0


def again_in_s(
    status: int, headers: Mapping[str, str], num_failures: int, attempts: int, chance: float
) -> float | None:
    """Return the seconds before the next attempt; None when the answer stands.

    `num_failures` counts this one. `chance` in [0, 1) spreads those that failed together: a wait is at least half
    of what the failures have earned, on top of what the engine asked for.
    """
    if status not in OVERLOADED and (status not in PASSING or num_failures >= attempts):
        return None
    earned_s = min(LONGEST_S, FIRST_S * 2.0 ** min(num_failures - 1, 10))
    return _retry_after_s(headers) + earned_s * (0.5 + chance / 2)


def _retry_after_s(headers: Mapping[str, str]) -> float:
    try:
        return min(LONGEST_S, max(0.0, float(headers.get("retry-after", "0"))))
    except ValueError:
        return 0.0
