"""The listening edge of the fast transport: its connections, their time-outs, and the drain."""

from __future__ import annotations

import asyncio
import socket
from email.utils import formatdate

from gateway.core.transport import Handler
from gateway.transport.edge import CANCEL_S, listening, port_of
from gateway.transport.fast.connection import Connection
from gateway.transport.fast.sweep import Sweep
from gateway.transport.fast.watch import Limits, Phase


class FastServer:
    """A `transport.Server`."""

    def __init__(self, handler: Handler, limits: Limits | None = None) -> None:
        self.handler = handler
        self.limits = limits or Limits()
        self.connections: set[Connection] = set()
        self.is_draining = False
        self.own_lines = ""
        """Header lines of every answer."""
        self._listener: asyncio.Server | None = None

    async def start(
        self, host: str, port: int, *, reuse_port: bool = False, sock: socket.socket | None = None
    ) -> int:
        self._sweep = Sweep(self._tick)
        for phase in Phase:
            self._sweep.serves(self.limits.of(phase))
        self._tick(self._sweep.now)
        self._listener = await listening(lambda: Connection(self), host, port, reuse_port, sock)
        return port_of(self._listener)

    async def stop(self, grace_s: float) -> None:
        if self._listener is None:
            return
        self._listener.close()
        self.is_draining = True
        tasks = [connection.task for connection in self.connections if connection.task is not None]
        for connection in list(self.connections):
            connection.close_if_idle()
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=grace_s)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late, timeout=CANCEL_S)
        await self._all_lost()  # what was written still goes out
        for connection in list(self.connections):
            connection.transport.abort()
        await self._all_lost()
        self._sweep.stop()

    async def _all_lost(self) -> None:
        if self.connections:
            await asyncio.wait([connection.lost for connection in self.connections], timeout=CANCEL_S)

    def _tick(self, now: float) -> None:
        self.own_lines = f"Server: turngate\r\nDate: {formatdate(usegmt=True)}\r\n"
        for connection in list(self.connections):
            connection.sweep(now)
