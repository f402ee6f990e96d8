"""One server process in its own process group: started, awaited until ready, and gone at exit."""

import asyncio
import os
import random
import signal
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import aiohttp

LOG_TAIL_LINES = 40
PROBE_INTERVAL_S = 0.2
STOP_GRACE_S = 10.0

Probe = Callable[[aiohttp.ClientSession], Awaitable[bool]]


class ServerFailedError(Exception):
    """The process died or did not become ready; the message ends with the tail of its log."""


def free_port() -> int:
    """Below the ephemeral range, whose ports outgoing connections take at any time.

    Also, DYN_SYSTEM_PORT is a signed 16-bit number to Dynamo.
    """
    while True:
        port = random.randrange(20000, 32000)
        with socket.socket() as listener:
            try:
                listener.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


def tail(log_file: Path, num_lines: int = LOG_TAIL_LINES) -> str:
    lines = log_file.read_text(errors="replace").splitlines()
    return "\n".join(lines[-num_lines:])


def kill_group(process: subprocess.Popen[bytes], signal_number: int) -> None:
    """Signals every process of the group, also when its leader is already gone."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal_number)


@dataclass(frozen=True)
class Server:
    """A running server process. `stop` may be called by a test that needs a dead engine."""

    name: str
    process: subprocess.Popen[bytes]
    log_file: Path

    @property
    def is_running(self) -> bool:
        return self.process.poll() is None

    async def stop(self, grace_s: float = STOP_GRACE_S) -> None:
        kill_group(self.process, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            await asyncio.to_thread(self.process.wait, grace_s)
        kill_group(self.process, signal.SIGKILL)
        await asyncio.to_thread(self.process.wait)

    async def kill(self) -> None:
        """As a crash looks from outside: no shutdown, connections reset."""
        await self.stop(grace_s=0.0)

    async def wait_until_ready(self, probe: Probe, deadline_s: float) -> None:
        started = time.monotonic()
        timeout = aiohttp.ClientTimeout(total=5)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            while not await _answers(probe, session):
                waited_s = time.monotonic() - started
                if not self.is_running:
                    raise self._failure(f"exited with {self.process.returncode}")
                if waited_s > deadline_s:
                    raise self._failure(f"not ready after {waited_s:.0f} s")
                await asyncio.sleep(PROBE_INTERVAL_S)

    def _failure(self, what: str) -> ServerFailedError:
        return ServerFailedError(f"{self.name} {what}; end of {self.log_file}:\n{tail(self.log_file)}")


async def _answers(probe: Probe, session: aiohttp.ClientSession) -> bool:
    try:
        return await probe(session)
    except (aiohttp.ClientError, TimeoutError):
        return False


@dataclass(frozen=True)
class EngineServer:
    """An engine that serves."""

    base_url: str
    """Without /v1."""
    model: str
    server: Server

    @property
    def metrics_url(self) -> str:
        return f"{self.base_url}/metrics"

    @property
    def log_file(self) -> Path:
        return self.server.log_file

    async def stop(self) -> None:
        await self.server.stop()


@asynccontextmanager
async def server(
    name: str, command: Sequence[str | Path], env: Mapping[str, str], log_dir: Path
) -> AsyncIterator[Server]:
    """Run a command in `log_dir`, its output in `log_dir/name.log`; leaving stops its whole group."""
    log_file = log_dir / f"{name}.log"
    with log_file.open("wb") as log:
        process = subprocess.Popen(
            command,
            env=os.environ | env,
            cwd=log_dir,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    running = Server(name, process, log_file)
    try:
        yield running
    finally:
        await running.stop()
