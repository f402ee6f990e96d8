"""The calling edge of the fast transport: a call goes out in one write on a pooled connection."""

from __future__ import annotations

import asyncio

from gateway.core.transport import HOP_BY_HOP, HeaderList, Timeouts, UpstreamCut, UpstreamRefused
from gateway.transport.fast.head import encoded
from gateway.transport.fast.pool import Pool
from gateway.transport.fast.reply import FastReply
from gateway.transport.fast.sweep import Sweep

# A pooled connection that its peer had closed fails within a round trip. Later, the engine has worked on it.
STALE_WITHIN_S = 1.0

_OWN_HEADERS = HOP_BY_HOP | {"host", "content-length"}
_MOST_PLACES, _MOST_PLACE_CHARS = 256, 512


class FastUpstream:
    """A `transport.Upstream`. Made inside a running event loop. Proxies of the environment are not used."""

    def __init__(self, stale_within_s: float = STALE_WITHIN_S) -> None:
        self._stale_within_s = stale_within_s
        self._loop = asyncio.get_running_loop()
        self._pools: dict[str, Pool] = {}
        self._places: dict[str, tuple[Pool, str]] = {}
        """Of URLs that were asked before."""
        self._timeouts: Timeouts | None = None
        """Those that the sweep was told of last."""
        self._sweep = Sweep(self._tick)

    async def call(
        self, method: str, url: str, headers: HeaderList, body: bytes | None, timeouts: Timeouts
    ) -> FastReply:
        """As `transport.Upstream.call`.

        A call is sent again only if it went out on a pooled connection that its peer closed at once, without a
        byte of answer: that peer had closed before it could read. Each try takes one dead connection out of the
        pool, and a new connection is never retried, so this ends.
        """
        pool, target = self._places.get(url) or self._place_of(url)
        if timeouts is not self._timeouts:
            self._timeouts = timeouts
            self._sweep.serves(timeouts.first_byte_s)
            self._sweep.serves(timeouts.idle_s)
        length = "" if body is None else f"Content-Length: {len(body)}\r\n"
        lines = f"{pool.host_line}{encoded(headers, _OWN_HEADERS)}{length}"
        head = f"{method} {target} HTTP/1.1\r\n{lines}\r\n".encode()
        while True:
            asked_at = self._loop.time()
            connection = pool.idle(asked_at)
            if connection is None:
                connection = await pool.connect(timeouts.connect_s)
                asked_at = self._loop.time()
            reply = connection.ask(head, body, method == "HEAD", timeouts, asked_at)
            try:
                while not reply.has_begun:
                    await reply.more()
                return reply
            except UpstreamCut as cut:
                is_late = cut.is_silent or self._loop.time() - asked_at > self._stale_within_s
                if is_late or not connection.is_reused or connection.has_answered:
                    raise
            except BaseException:
                connection.abort()
                raise

    async def close(self) -> None:
        self._sweep.stop()
        for pool in self._pools.values():
            await pool.close()

    def _place_of(self, url: str) -> tuple[Pool, str]:
        """The pool of a URL's origin, and what follows it. Raises UpstreamRefused."""
        start = url.find("/", url.find("://") + 3)
        origin, target = (url[:start], url[start:]) if start > 0 else (url, "/")
        target = target.partition("#")[0]
        if not (target.isascii() and target.isprintable()) or " " in target:
            raise UpstreamRefused("the address of a call is no URL")
        pool = self._pools.get(origin)
        if pool is None:
            pool = self._pools[origin] = Pool(origin)
        if len(url) <= _MOST_PLACE_CHARS:
            if len(self._places) >= _MOST_PLACES:
                self._places.clear()
            self._places[url] = pool, target
        return pool, target

    def _tick(self, now: float) -> None:
        for pool in self._pools.values():
            pool.sweep(now)
