"""A gateway that is restarted in mid-fleet, behind a load balancer that knows which one is up."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from secrets import token_hex
from tempfile import TemporaryDirectory

from benchmarks.fleet.engines import Engine
from gateway.cli.demo_process import command

RESTARTED_AFTER_S = 12.0
"""After the start of the fleet: about a third of what `base` takes."""
DRAINED_WITHIN_S = 30.0
"""`timeouts.shutdown_grace_s`."""
PIECE_BYTES = 65_536


class Balancer:
    """Passes TCP connections on to one target, byte by byte."""

    def __init__(self) -> None:
        self.target: tuple[str, int] | None = None
        """None: nothing is up, and connections are closed at once."""
        self._passing: set[asyncio.Task[None]] = set()

    def point_at(self, base_url: str | None) -> None:
        """Send new connections there. Those that there are stay where they are."""
        host, _, port = (base_url or "").rpartition("://")[2].rpartition(":")
        self.target = (host, int(port)) if base_url else None

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[str]:
        """Lend its base URL."""
        server = await asyncio.start_server(self._take_in, "127.0.0.1", 0)
        try:
            yield "http://{}:{}".format(*server.sockets[0].getsockname())
        finally:
            server.close()
            for task in tuple(self._passing):
                task.cancel()
            await asyncio.gather(*self._passing, return_exceptions=True)

    def _take_in(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve(reader, writer))
        self._passing.add(task)
        task.add_done_callback(self._passing.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there: asyncio.StreamWriter | None = None
        try:
            if self.target is not None:
                answers, there = await asyncio.open_connection(*self.target)
                asking = asyncio.create_task(_passed(reader, there))
                await _passed(answers, writer)
                asking.cancel()
        except OSError:
            pass  # the client sees a closed connection, as from any balancer
        finally:
            for end in (writer, there):
                if end is not None:
                    end.close()


async def _passed(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copy until one side ends."""
    with suppress(OSError):
        while piece := await reader.read(PIECE_BYTES):
            writer.write(piece)
            await writer.drain()


def _arguments(engine: Engine, folder: Path) -> list[str]:
    """Of both processes."""
    (folder / "secret").write_text(token_hex())
    kept = [f"identity.secret=file:{folder / 'secret'}", f"learned_file={folder / 'learned'}"]
    settings = [part for setting in kept for part in ("--set", setting)]
    return ["serve", "--port", "0", "--engine", engine.base_url.replace("http", engine.kind, 1), *settings]


def restarted(is_killed: bool) -> Callable[[Engine], AbstractAsyncContextManager[str]]:
    """Turngate in front, with its defaults, and another process of it after RESTARTED_AFTER_S.

    Killed: the next one starts when the first is dead. Else it is up before, gets all new connections, and the
    first one ends its answers, as in a rolling update. Both have one `learned_file` and one secret, as a
    deployment has.
    """

    @asynccontextmanager
    async def serve(engine: Engine) -> AsyncIterator[str]:
        balancer, folder = Balancer(), TemporaryDirectory()
        async with AsyncExitStack() as stack, AsyncExitStack() as first, balancer.serving() as base_url:
            arguments = _arguments(engine, Path(stack.enter_context(folder)))
            stop = signal.SIGKILL if is_killed else signal.SIGTERM
            balancer.point_at(await first.enter_async_context(command(arguments, stop, DRAINED_WITHIN_S)))

            async def restart() -> None:
                await asyncio.sleep(RESTARTED_AFTER_S)
                if is_killed:
                    balancer.point_at(None)
                    await first.aclose()
                balancer.point_at(await stack.enter_async_context(command(arguments)))
                await first.aclose()

            restarting = asyncio.create_task(restart())
            try:
                yield base_url
            finally:
                restarting.cancel()
                with suppress(asyncio.CancelledError):
                    await restarting

    return serve
