"""Several workers on one machine: the identity of each worker, and the supervisor that starts them.

A worker reads its identity from its standard input, which is a line from the supervisor.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import signal
import socket
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import orjson

from gateway.config import loading
from gateway.config.settings import Settings
from gateway.core.errors import ConfigError

MAX_LINE_BYTES = 2**20


@dataclass(frozen=True, slots=True)
class WorkerIdentity:
    """The number of one worker, and the ports and secrets of all."""

    worker: int
    port: int
    """The public port, which all workers share."""
    private_ports: tuple[int, ...]
    """The private ports of all workers, by number."""
    admin_port: int | None
    """The admin port, which all workers share. None: there is no admin listener."""
    secret: str
    """Secret of the members for this start only. It replaces `identity.secret` where none is configured."""
    hosted: Mapping[str, str] = field(default_factory=dict)
    """Base URLs, by name, of the embedded engines that the supervisor runs."""

    def encode(self) -> bytes:
        return orjson.dumps(asdict(self)) + b"\n"

    def of(self, settings: Settings) -> Settings:
        """Return the settings of this worker. Where one process must write a file alone, it is the first worker's,
        or each worker has its own."""
        changes: dict[str, Any] = {"listen": settings.listen.model_copy(update={"port": self.port})}
        if self.admin_port is not None:
            changes["admin"] = settings.admin.model_copy(update={"port": self.admin_port})
        if self.worker:
            if settings.batches.redis is None:
                changes["batches"] = settings.batches.model_copy(update={"directory": None})
            if settings.logging.facts:
                facts = f"{settings.logging.facts}.{self.worker}"
                changes["logging"] = settings.logging.model_copy(update={"facts": facts})
            if settings.learned_file:
                changes["learned_file"] = f"{settings.learned_file}.{self.worker}"
        return settings.model_copy(update=changes)


def is_member(settings: Settings, place: WorkerIdentity | None) -> bool:
    """Whether there can be other members. Raises ConfigError."""
    if settings.cluster.redis is not None and settings.identity.secret is None:
        raise ConfigError(
            "cluster.redis: gateways that share engines need one `identity.secret`, so that ids are equal at all"
        )
    return place is not None or settings.cluster.redis is not None


class Supervised:
    """A worker's line to the supervisor, which ends when the supervisor does."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        self._reader = reader

    @classmethod
    async def connect(cls) -> Supervised:
        reader = asyncio.StreamReader(MAX_LINE_BYTES)
        loop = asyncio.get_running_loop()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        return cls(reader)

    async def place(self) -> WorkerIdentity:
        """Read the identity of this worker. Raises ValueError when there is no supervisor."""
        row = orjson.loads(await self._reader.readline())
        return WorkerIdentity(**row | {"private_ports": tuple(row["private_ports"])})

    async def gone(self) -> None:
        """Return when the supervisor is gone."""
        await self._reader.read()


# ---- the supervisor: it starts the workers, restarts those that die, passes signals on, and ends after them

LOG = logging.getLogger(__name__)

READY = (b"Ready.", b"Listening,")
"""Begin the last line of a worker's banner, with engines and without."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.2, 10.0
"""Pause before a worker that died is restarted. It doubles each time, until a worker has lived for `STEADY_S`."""
STEADY_S = 30.0
LATE_S = 5.0
"""Time beyond the grace period after which a worker that has not ended is killed."""


async def supervise(settings: Settings, arguments: Sequence[str]) -> int:
    """Run `cluster.workers` processes of the same command until a signal. Raises OSError, ConfigError.

    Return the exit status: that of a worker that could not start, else 0.
    """
    async with AsyncExitStack() as running:
        place = await _place(settings, running)
        return await Supervisor(settings, arguments, place).run()


class Supervisor:
    """Owns the worker processes."""

    def __init__(self, settings: Settings, arguments: Sequence[str], place: WorkerIdentity) -> None:
        self._grace_s = settings.timeouts.shutdown_grace_s
        self._arguments = arguments
        self._places = [replace(place, worker=n) for n in range(settings.cluster.workers)]
        self._processes: dict[int, Process] = {}
        self._banners: dict[int, bytes] = {}
        self._stop = asyncio.Event()
        self._has_begun = False
        self._status = 0

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._on_stop)
        loop.add_signal_handler(signal.SIGHUP, self._send, signal.SIGHUP)
        tasks = [asyncio.create_task(self._keep(place), name=f"worker {place.worker}") for place in self._places]
        try:
            await asyncio.gather(*tasks)
        finally:
            self._send(signal.SIGKILL)
            for task in tasks:
                task.cancel()
        return self._status

    def _on_stop(self) -> None:
        """The first signal lets running requests finish; the second does not wait."""
        self._send(signal.SIGKILL if self._stop.is_set() else signal.SIGTERM)
        self._stop.set()

    def _send(self, number: signal.Signals) -> None:
        for process in self._processes.values():
            with suppress(ProcessLookupError):
                process.send_signal(number)

    async def _keep(self, place: WorkerIdentity) -> None:
        """Run one worker after the other with this identity."""
        pause_s = FIRST_PAUSE_S
        while not self._stop.is_set():
            began_at = time.monotonic()
            status = await self._worker(place)
            if self._stop.is_set():
                return
            if not self._has_begun:  # what one worker cannot do, such as read the configuration, no worker can
                self._status = status or 1
                self._on_stop()
                return
            if time.monotonic() - began_at > STEADY_S:
                pause_s = FIRST_PAUSE_S
            LOG.error("worker %d ended with status %d; the next one starts in %g s", place.worker, status, pause_s)
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._stop.wait()
            pause_s = min(LONGEST_PAUSE_S, 2 * pause_s)

    async def _worker(self, place: WorkerIdentity) -> int:
        """Run one process to its end and return its status. It has a session of its own, so that a terminal sends
        signals to the supervisor alone."""
        command = [sys.executable, "-m", "gateway", *self._arguments, "--worker"]
        process = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE, start_new_session=True)
        assert process.stdin is not None
        assert process.stdout is not None
        self._processes[place.worker] = process
        try:
            if self._stop.is_set():
                process.terminate()
            process.stdin.write(place.encode())
            banner, is_ready = b"", False
            while line := await process.stdout.readline():
                if is_ready and not place.worker:  # all workers print the same, such as after a reload
                    print(line.decode(), end="", flush=True)
                banner += b"" if is_ready else line
                if line.startswith(READY):
                    is_ready = True
                    self._is_ready(place.worker, banner)
            return await self._ended(process)
        finally:
            del self._processes[place.worker]

    async def _ended(self, process: Process) -> int:
        try:
            async with asyncio.timeout(self._grace_s + LATE_S):
                return await process.wait()
        except TimeoutError:
            process.kill()
            return await process.wait()

    def _is_ready(self, worker: int, banner: bytes) -> None:
        """Print one banner for all workers, once each of them is ready for the first time."""
        self._banners[worker] = banner
        if not self._has_begun and len(self._banners) == len(self._places):
            self._has_begun = True
            print(self._banners[0].decode(), end="", flush=True)
            LOG.info("%d workers are up", len(self._places))


async def _place(settings: Settings, running: AsyncExitStack) -> WorkerIdentity:
    """Return the part of the identity that all workers share. The supervisor keeps the ports from other processes
    while it runs. It also runs the embedded engines, since each worker would have engines of its own."""
    listen, admin, cluster = settings.listen, settings.admin, settings.cluster
    hosted = {}
    for address in loading.addresses(settings):
        if not address.base_url:
            from gateway.embedded.server import started_in_process

            hosted[address.name] = (await started_in_process(address, settings.embedded, running)).base_url
    wanted = [cluster.port + n if cluster.port else 0 for n in range(cluster.workers)]
    return WorkerIdentity(
        worker=0,
        port=_kept(listen.host, listen.port, running),
        private_ports=tuple(_kept(cluster.host, port, running) for port in wanted),
        admin_port=None if admin.port is None else _kept(admin.host, admin.port, running),
        secret=secrets.token_hex(32),
        hosted=hosted,
    )


def _kept(host: str, port: int, running: AsyncExitStack) -> int:
    """Return a port on which, until the end, only processes of this user can listen. Raises OSError when another
    process already does."""
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    with socket.socket(family) as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(address)  # without SO_REUSEPORT, this fails when a process listens there
    kept = running.enter_context(socket.socket(family))
    kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    kept.bind(address)
    bound: int = kept.getsockname()[1]
    return bound
