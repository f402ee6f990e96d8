"""One thread that owns an SQLite connection; all that waits for it shares one transaction per commit."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")
Work = Callable[[sqlite3.Connection], T]

MOST_PER_COMMIT = 1_000
_Job = tuple[Work[Any], "asyncio.Future[Any]"]
_PRAGMAS = (
    "PRAGMA journal_mode=WAL",
    # A killed process loses nothing; a machine without power its last commits, whose lines are asked again.
    "PRAGMA synchronous=NORMAL",
    "PRAGMA cache_size=-16384",
)


class Database:
    """Start it, run work on it, close it."""

    def __init__(self, file: Path, schema: str) -> None:
        self._file = file
        self._schema = schema
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    async def start(self) -> None:
        """Raises sqlite3.Error when the file cannot be opened."""
        loop = asyncio.get_running_loop()
        is_open: asyncio.Future[None] = loop.create_future()
        # A daemon, since a process that ends without `close` may end in the middle of a transaction.
        self._thread = threading.Thread(
            target=self._main, args=(loop, is_open), name="turngate-store", daemon=True
        )
        self._thread.start()
        await is_open

    async def run(self, work: Work[T]) -> T:
        """The result of `work` once it is committed. It is atomic: when it raises, nothing of it has happened.

        A caller that is cancelled does not stop it.
        """
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._jobs.put((work, future))
        return await future

    async def close(self) -> None:
        """What was asked for before is done first."""
        if self._thread is not None:
            self._jobs.put(None)
            await asyncio.to_thread(self._thread.join)
            self._thread = None

    def _main(self, loop: asyncio.AbstractEventLoop, is_open: asyncio.Future[None]) -> None:
        try:
            connection = sqlite3.connect(self._file, isolation_level=None)
            for pragma in _PRAGMAS:
                connection.execute(pragma)
            connection.executescript(self._schema)
        except sqlite3.Error as error:
            loop.call_soon_threadsafe(is_open.set_exception, error)
            return
        loop.call_soon_threadsafe(is_open.set_result, None)
        while True:
            jobs, is_last = self._taken()
            outcomes = _committed(connection, jobs)
            if jobs:
                loop.call_soon_threadsafe(_tell, jobs, outcomes)
            if is_last:
                connection.close()
                return

    def _taken(self) -> tuple[list[_Job], bool]:
        """All that waits, after waiting for the first; and whether nothing comes after it."""
        job = self._jobs.get()
        jobs: list[_Job] = []
        while job is not None:
            jobs.append(job)
            if len(jobs) == MOST_PER_COMMIT:
                return jobs, False
            try:
                job = self._jobs.get_nowait()
            except Empty:
                return jobs, False
        return jobs, True


def _committed(connection: sqlite3.Connection, jobs: list[_Job]) -> list[Any]:
    """What each job returned or raised, once all are on disk."""
    try:
        connection.execute("BEGIN IMMEDIATE")
        outcomes = [_outcome(connection, work) for work, _ in jobs]
        connection.execute("COMMIT")
    except sqlite3.Error as error:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        return [error] * len(jobs)
    return outcomes


def _outcome(connection: sqlite3.Connection, work: Work[Any]) -> Any:
    connection.execute("SAVEPOINT job")
    try:
        return work(connection)
    except Exception as error:
        connection.execute("ROLLBACK TO job")
        return error
    finally:
        connection.execute("RELEASE job")


def _tell(jobs: list[_Job], outcomes: list[Any]) -> None:
    for (_, future), outcome in zip(jobs, outcomes, strict=True):
        if future.done():
            continue
        if isinstance(outcome, Exception):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)
