"""What the Scheduler has learned of engines and families, and how much room its residents take, kept in a file for
the next start of the gateway.

The file holds numbers, keyed ids and names of tools; no content, and no name of a tenant. Its first line names the
version, the time and the digest of the rest. It is replaced as a whole, so a gateway that is killed leaves the one
of some seconds before, and a gateway that takes over in a rolling update reads that, too.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import chain
from pathlib import Path
from typing import Any

import orjson
from pydantic import TypeAdapter, ValidationError

from policies.scheduler import Scheduler
from policies.types import FamiliesRecalled, FamilyLessons, PoolLessons, ReplicaId, ReplicaReported

LOG = logging.getLogger(__name__)

NAME, VERSION = b"turngate-learned", b"1"
WRITTEN_EVERY_S = 1.0
"""At most, and only where something has changed."""
MOST_AGE_S = 7 * 86_400.0
"""Older lessons are not used: a fleet of a week ago says little of today's."""
MOST_RESIDENT_AGE_S = 30.0
"""The same for the residents: by then their leases have ended, or their clients have given up."""
MOST_BYTES = 512 * 1024
"""Of the lessons of all replicas, and of those of all families. Those used last are kept."""


@dataclass(frozen=True, slots=True)
class _Replica:
    engine_kind: str
    lessons: PoolLessons


@dataclass(frozen=True, slots=True)
class _Rows:
    replicas: tuple[_Replica, ...] = ()
    families: tuple[FamilyLessons, ...] = ()
    written_at: float = 0.0


class LearnedFile:
    """Reads the file once, and writes it from `start` until `stop`. Owned by the event loop.

    `keeps_families`: whether their ids are the same at the next start, which needs `identity.secret`.
    """

    def __init__(
        self, path: Path, scheduler: Scheduler, wall_clock: Callable[[], float], keeps_families: bool
    ) -> None:
        self._path, self._scheduler, self._wall_clock = path, scheduler, wall_clock
        self._keeps_families = keeps_families
        self._recalled: dict[ReplicaId, _Replica] = {}
        """Read, and not reported since."""
        self._used: set[ReplicaId] = set()
        """Replicas whose lessons were used."""
        self._kinds: dict[ReplicaId, str] = {}
        """Of the engines of all replicas."""
        self._body = b""
        """As it is in the file."""
        self._is_broken = False
        self._writing = threading.Lock()
        self._task: asyncio.Task[None] | None = None

    def read(self) -> FamiliesRecalled:
        """Return the lessons of families; those of replicas wait for their first report. A file that cannot be
        used counts as empty."""
        rows, problem = self._rows()
        if problem:
            LOG.warning("what was learned before is not used: %s: %s", self._path, problem)
        self._recalled = {row.lessons.replica_id: row for row in rows.replicas}
        return FamiliesRecalled(rows.families if self._keeps_families else ())

    def completed(self, reported: ReplicaReported, engine_kind: str) -> ReplicaReported:
        """Return the first report of a replica with what was learned of it, if it is the same kind of engine with
        the same models."""
        self._kinds[reported.replica_id] = engine_kind
        if not self._recalled or reported.models is None:
            return reported
        row = self._recalled.pop(reported.replica_id, None)
        if row is None:
            return reported
        if (row.engine_kind, row.lessons.models) != (engine_kind, reported.models):
            served = f"{row.engine_kind} with {', '.join(sorted(row.lessons.models))}"
            LOG.warning("what was learned of %s is not used: it was %s", reported.replica_id, served)
            return reported
        self._used.add(reported.replica_id)
        return replace(reported, lessons=_lasting(row.lessons))

    def residents(self) -> Iterator[ReplicaReported]:
        """Yield the residents as the file has them now, for replicas whose lessons were used: told as late as
        possible, since the earlier gateway may still serve them."""
        rows, _ = self._rows()
        if self._keeps_families and self._wall_clock() <= rows.written_at + MOST_RESIDENT_AGE_S:
            for row in rows.replicas:
                if row.lessons.residents and row.lessons.replica_id in self._used:
                    yield ReplicaReported(row.lessons.replica_id, lessons=row.lessons)

    def start(self) -> None:
        """Begin to write. What has been read is in the file already."""
        self._body = self._encoded()
        self._task = asyncio.create_task(self._keep_writing(), name="learned file")

    async def stop(self) -> None:
        """Write what was learned last."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
            await self.write()

    async def write(self) -> None:
        """Write the file if something was learned since. A disk that fails is reported once, and tried again."""
        body = self._encoded()
        if body != self._body:
            self._body = body
            header = b"%s %s %d %s\n" % (NAME, VERSION, self._wall_clock(), sha256(body).hexdigest().encode())
            await asyncio.to_thread(self._replace, header + body, body)

    async def _keep_writing(self) -> None:
        while True:
            await asyncio.sleep(WRITTEN_EVERY_S)
            await self.write()

    def _replace(self, text: bytes, body: bytes) -> None:
        """Put the text in the place of the file, unless a later one is on its way."""
        with self._writing:
            if body is not self._body:
                return
            beside = self._path.with_name(f"{self._path.name}.{os.getpid()}")
            try:
                beside.touch(0o600)
                beside.write_bytes(text)
                beside.replace(self._path)
                self._is_broken = False
            except OSError as error:
                if not self._is_broken:
                    LOG.error("what is learned is not kept: %s", error)
                self._is_broken, self._body = True, b""

    def _encoded(self) -> bytes:
        learned = (
            _Replica(kind, lessons if self._keeps_families else _lasting(lessons))
            for lessons in self._scheduler.pool_lessons()
            if (kind := self._kinds.get(lessons.replica_id)) is not None
        )
        awaited = (replace(row, lessons=_lasting(row.lessons)) for row in self._recalled.values())
        families = self._scheduler.family_lessons() if self._keeps_families else ()
        return b'{"replicas":[%s],"families":[%s]}' % (_joined(chain(learned, awaited)), _joined(families))

    def _rows(self) -> tuple[_Rows, str]:
        """Return what the file holds, and why it is not used. Empty: it is, or there is none."""
        nothing = _Rows()
        try:
            with self._path.open("rb") as file:
                header, _, body = file.read(3 * MOST_BYTES).partition(b"\n")
        except FileNotFoundError:
            return nothing, ""
        except OSError as error:
            return nothing, str(error)
        words = header.split()
        if words[:1] == [NAME] and words[1:2] != [VERSION]:
            return nothing, "another version wrote it"
        if len(words) != 4 or words[0] != NAME or sha256(body).hexdigest().encode() != words[3]:
            return nothing, "it is damaged"
        try:
            age_s = self._wall_clock() - int(words[2])
            rows = replace(TypeAdapter(_Rows).validate_json(body), written_at=int(words[2]))
        except (ValueError, ValidationError):
            return nothing, "it is damaged"
        if age_s > MOST_AGE_S:
            return nothing, f"it is {age_s / 86_400:.0f} days old"
        return rows, ""


def _lasting(lessons: PoolLessons) -> PoolLessons:
    """Return the lessons without the residents."""
    return replace(lessons, residents=())


def _joined(rows: Iterable[Any]) -> bytes:
    """Return the first rows as JSON, as many as MOST_BYTES hold."""
    texts: list[bytes] = []
    left_bytes = MOST_BYTES
    for row in rows:
        texts.append(orjson.dumps(row, default=sorted))
        left_bytes -= len(texts[-1]) + 1
        if left_bytes < 0:
            texts.pop()
            break
    return b",".join(texts)
