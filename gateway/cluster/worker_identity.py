"""A worker's place among its siblings, as the supervisor tells it on standard input."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import orjson

from gateway.config.settings import Settings
from gateway.core.errors import ConfigError

MAX_LINE_BYTES = 2**20


@dataclass(frozen=True, slots=True)
class WorkerIdentity:
    """Which of the workers a process is."""

    worker: int
    port: int
    """The public one, which all share."""
    private_ports: tuple[int, ...]
    """Of all workers, by their number."""
    admin_port: int | None
    """Likewise, where there is an admin listener."""
    secret: str
    """Of the members and, where none is configured, of identity; of this start only."""
    hosted: Mapping[str, str] = field(default_factory=dict)
    """Base URLs of embedded engines, which the supervisor runs, by name."""

    def encode(self) -> bytes:
        return orjson.dumps(asdict(self)) + b"\n"

    def of(self, settings: Settings) -> Settings:
        """The settings of this worker: files that one process writes are the first one's, or one's each."""
        told: dict[str, Any] = {"listen": settings.listen.model_copy(update={"port": self.port})}
        if self.admin_port is not None:
            told["admin"] = settings.admin.model_copy(update={"port": self.admin_port})
        if self.worker:
            if settings.batches.redis is None:
                told["batches"] = settings.batches.model_copy(update={"directory": None})
            if settings.logging.facts:
                facts = f"{settings.logging.facts}.{self.worker}"
                told["logging"] = settings.logging.model_copy(update={"facts": facts})
        return settings.model_copy(update=told)


def is_member(settings: Settings, place: WorkerIdentity | None) -> bool:
    """Whether there can be others. Raises ConfigError."""
    if settings.cluster.redis is not None and settings.identity.secret is None:
        raise ConfigError(
            "cluster.redis: gateways that share engines need one `identity.secret`, so that ids are equal at all"
        )
    return place is not None or settings.cluster.redis is not None


def decode(line: bytes) -> WorkerIdentity:
    """Raises ValueError."""
    told = orjson.loads(line)
    return WorkerIdentity(**told | {"private_ports": tuple(told["private_ports"])})


class Supervised:
    """The line to the supervisor: it ends when the supervisor does."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        self._reader = reader

    @classmethod
    async def connect(cls) -> Supervised:
        reader = asyncio.StreamReader(MAX_LINE_BYTES)
        loop = asyncio.get_running_loop()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        return cls(reader)

    async def place(self) -> WorkerIdentity:
        """Raises ValueError when there is no supervisor."""
        return decode(await self._reader.readline())

    async def gone(self) -> None:
        """Returns when the supervisor is gone."""
        await self._reader.read()
