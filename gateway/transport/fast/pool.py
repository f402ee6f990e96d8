"""The open connections to one engine."""

from __future__ import annotations

import asyncio
import ssl
from urllib.parse import urlsplit

from gateway.core.transport import UpstreamRefused
from gateway.transport.fast.engine_connection import EngineConnection

# uvicorn, below vLLM and SGLang, closes idle connections after 5 s; a pool that forgets them first meets no
# closed one.
KEEPALIVE_S = 4.0

CLOSE_S = 1.0


class Pool:
    """Latest used first, so that as few as possible stay open."""

    def __init__(self, origin: str) -> None:
        """`origin`: `scheme://host:port`. Raises UpstreamRefused."""
        try:
            parts = urlsplit(origin)
            self._host, port = parts.hostname or "", parts.port
        except ValueError as error:
            raise UpstreamRefused(f"{origin!r} is no URL: {error}") from None
        if parts.scheme not in ("http", "https") or not self._host or parts.username is not None:
            raise UpstreamRefused(f"{origin!r} is no http:// or https:// URL")
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._port = port or (443 if self._tls else 80)
        self.host_line = f"Host: {parts.netloc}\r\n"
        self.connections: set[EngineConnection] = set()
        self._idle: list[EngineConnection] = []

    def idle(self, now: float) -> EngineConnection | None:
        """One that is open, to be asked at once. None: there is none."""
        while self._idle:
            connection = self._idle.pop()
            if now - connection.since < KEEPALIVE_S and not connection.transport.is_closing():
                return connection
            connection.abort()
        return None

    async def connect(self, connect_s: float | None) -> EngineConnection:
        """A new one. Raises UpstreamRefused."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(connect_s):
                _, made = await loop.create_connection(
                    lambda: EngineConnection(self, loop), self._host, self._port, ssl=self._tls
                )
                return made
        except TimeoutError:
            raise UpstreamRefused(f"no connection to {self._host}:{self._port} within {connect_s} s") from None
        except (OSError, UnicodeError) as error:
            raise UpstreamRefused(str(error) or type(error).__name__) from error

    def take_back(self, connection: EngineConnection, now: float) -> None:
        connection.since = now
        connection.is_reused = True
        connection.resume()
        self._idle.append(connection)

    def forget(self, connection: EngineConnection) -> None:
        if connection in self._idle:
            self._idle.remove(connection)

    def sweep(self, now: float) -> None:
        for connection in list(self.connections):
            connection.sweep(now)
        for connection in [one for one in self._idle if now - one.since >= KEEPALIVE_S]:
            connection.abort()

    async def close(self) -> None:
        open_ = list(self.connections)
        for connection in open_:
            connection.abort()
        if open_:
            await asyncio.wait([connection.lost for connection in open_], timeout=CLOSE_S)
