"""The store of one gateway: SQLite in a thread of its own, where all waiting calls share one transaction."""

from __future__ import annotations

import asyncio
import fcntl
import os
import sqlite3
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from gateway.batches.objects import LIVE, Batch, File, Finished, Line, NotAllowed, Status
from gateway.batches.store import COUNTS, ListPage, about, batch_of, counted

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
    """A thread that owns an SQLite connection. Call `open`, then `run`, then `close`."""

    def __init__(self, file: Path, schema: str) -> None:
        self._file = file
        self._schema = schema
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    async def open(self) -> None:
        """Start the thread. Raises sqlite3.Error when the file cannot be opened."""
        loop = asyncio.get_running_loop()
        is_open: asyncio.Future[None] = loop.create_future()
        # A daemon, since a process that ends without `close` may end in the middle of a transaction.
        self._thread = threading.Thread(
            target=self._main, args=(loop, is_open), name="turngate-store", daemon=True
        )
        self._thread.start()
        await is_open

    async def run(self, work: Work[T]) -> T:
        """Return the result of `work` once it is committed. Work that raises changes nothing.

        Work goes on when its caller is cancelled.
        """
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._jobs.put((work, future))
        return await future

    async def close(self) -> None:
        """Finish the work that was submitted before, then end the thread."""
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
                loop.call_soon_threadsafe(_set_results, jobs, outcomes)
            if is_last:
                connection.close()
                return

    def _taken(self) -> tuple[list[_Job], bool]:
        """Wait for a job, and return it with all that wait behind it. True: these are the last."""
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
    """Return the result or the exception of each job, once all are on disk."""
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


def _set_results(jobs: list[_Job], outcomes: list[Any]) -> None:
    for (_, future), outcome in zip(jobs, outcomes, strict=True):
        if future.done():
            continue
        if isinstance(outcome, Exception):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)


# ---- the store

# ruff: noqa: S608 - queries are put together from constants of this file

SCHEMA = """
CREATE TABLE IF NOT EXISTS files (
    row INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT UNIQUE, tenant TEXT, purpose TEXT, filename TEXT,
    size_bytes INTEGER, created_at INTEGER, expires_at INTEGER);
CREATE INDEX IF NOT EXISTS files_of ON files (tenant, row);
CREATE TABLE IF NOT EXISTS batches (
    row INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT UNIQUE, tenant TEXT, status TEXT, about BLOB,
    total INTEGER DEFAULT 0, completed INTEGER DEFAULT 0, failed INTEGER DEFAULT 0,
    input_tokens INTEGER DEFAULT 0, cached_tokens INTEGER DEFAULT 0,
    output_tokens INTEGER DEFAULT 0, reasoning_tokens INTEGER DEFAULT 0);
CREATE INDEX IF NOT EXISTS batches_of ON batches (tenant, row);
CREATE TABLE IF NOT EXISTS lines (
    batch_id TEXT, prefix BLOB, number INTEGER, start INTEGER, size_bytes INTEGER, custom_id TEXT,
    PRIMARY KEY (batch_id, prefix, number)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS finished (
    batch_id TEXT, is_ok INTEGER, number INTEGER, text BLOB, PRIMARY KEY (batch_id, is_ok, number));
CREATE TABLE IF NOT EXISTS messages (
    batch_id TEXT, number INTEGER, position INTEGER, message BLOB, PRIMARY KEY (batch_id, number, position));
"""
_COUNTED = ", ".join(COUNTS)
_FILE = "id, tenant, purpose, filename, size_bytes, created_at, expires_at"


class CannotOpen(OSError):
    """The directory cannot be used. The text says why."""


class SqliteStore:
    """A `Store` in one directory, for one process."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._lock = -1
        self._database = Database(directory / "batches.sqlite", SCHEMA)

    async def open(self) -> None:
        """Raises OSError."""
        await asyncio.to_thread(self._take_directory)
        try:
            await self._database.open()
        except sqlite3.Error as error:
            raise CannotOpen(f"the batches in {self._directory} cannot be opened: {error}") from None

    def _take_directory(self) -> None:
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock = os.open(self._directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise CannotOpen(f"another gateway works on the batches in {self._directory}") from None

    async def close(self) -> None:
        await self._database.close()
        if self._lock >= 0:
            os.close(self._lock)

    # ---- files

    async def add_file(self, file: File) -> None:
        await self._database.run(lambda db: _add_file(db, file))

    async def file(self, tenant: str, file_id: str) -> File | None:
        found = await self._rows(f"SELECT {_FILE} FROM files WHERE tenant = ? AND id = ?", tenant, file_id)
        return _file(found[0]) if found else None

    async def files(self, tenant: str, purpose: str | None, page: ListPage) -> list[File]:
        found = await self._page("files", _FILE, tenant, page, "AND (? IS NULL OR purpose = ?)", purpose, purpose)
        return [_file(row) for row in found]

    async def remove_file(self, tenant: str, file_id: str) -> bool:
        delete = "DELETE FROM files WHERE tenant = ? AND id = ? RETURNING 1"
        return bool(await self._rows(delete, tenant, file_id))

    async def remove_expired_files(self, now: int) -> None:
        await self._rows("DELETE FROM files WHERE expires_at <= ?", now)

    async def content_in_use(self) -> set[str]:
        kept = {str(id_) for (id_,) in await self._rows("SELECT id FROM files")}
        return kept | {batch.input_file_id for batch in await self.live_batches()}

    # ---- batches

    async def add_batch(self, batch: Batch) -> None:
        await self._rows(
            "INSERT INTO batches (id, tenant, status, about) VALUES (?, ?, ?, ?)",
            *(batch.id, batch.tenant, batch.status.value, about(batch)),
        )

    async def batch(self, tenant: str, batch_id: str) -> Batch | None:
        query = f"SELECT about, {_COUNTED} FROM batches WHERE tenant = ? AND id = ?"
        found = await self._rows(query, tenant, batch_id)
        return _batch(found[0]) if found else None

    async def batches(self, tenant: str, page: ListPage) -> list[Batch]:
        return [_batch(row) for row in await self._page("batches", f"about, {_COUNTED}", tenant, page)]

    async def live_batches(self) -> list[Batch]:
        marks = ", ".join("?" * len(LIVE))
        query = f"SELECT about, {_COUNTED} FROM batches WHERE status IN ({marks}) ORDER BY row"
        return [_batch(row) for row in await self._rows(query, *LIVE)]

    async def move(self, batch_id: str, status: Status, now: int, **changes: Any) -> Batch:
        return await self._database.run(lambda db: _move(db, batch_id, status, now, changes))

    async def close_batch(
        self, batch_id: str, status: Status, now: int, output: File | None, errors: File | None
    ) -> Batch:
        def close(db: sqlite3.Connection) -> Batch:
            ids = {"output_file_id": output and output.id, "error_file_id": errors and errors.id}
            moved = _move(db, batch_id, status, now, ids)
            for file in filter(None, (output, errors)):
                _add_file(db, file)
            for table in ("lines", "finished", "messages"):
                db.execute(f"DELETE FROM {table} WHERE batch_id = ?", (batch_id,))
            return moved

        return await self._database.run(close)

    # ---- lines

    async def begin_batch(self, batch_id: str, lines: Sequence[Line], model: str | None, now: int) -> Batch:
        def begin(db: sqlite3.Connection) -> Batch:
            moved = _move(db, batch_id, Status.IN_PROGRESS, now, {"model": model})
            rows = ((batch_id, x.group, x.number, x.offset, x.size_bytes, x.custom_id) for x in lines)
            db.executemany("INSERT INTO lines VALUES (?, ?, ?, ?, ?, ?)", rows)
            db.execute("UPDATE batches SET total = ? WHERE id = ?", (len(lines), batch_id))
            return replace(moved, total=len(lines))

        return await self._database.run(begin)

    async def open_lines(self, batch_id: str, after: Line | None, limit: int) -> list[Line]:
        group, number = (b"", -1) if after is None else (after.group, after.number)
        query = (
            "SELECT number, start, size_bytes, custom_id, prefix FROM lines"
            " WHERE batch_id = ? AND (prefix, number) > (?, ?) ORDER BY prefix, number LIMIT ?"
        )
        return [Line(*row) for row in await self._rows(query, batch_id, group, number, limit)]

    async def finish(self, batch_id: str, line: Line, finished: Finished) -> bool:
        def finish(db: sqlite3.Connection) -> bool:
            mine = (batch_id, line.group, line.number)
            if not db.execute("DELETE FROM lines WHERE (batch_id, prefix, number) = (?, ?, ?)", mine).rowcount:
                return False
            row = (batch_id, finished.is_ok, line.number, finished.text)
            db.execute("INSERT INTO finished VALUES (?, ?, ?, ?)", row)
            db.execute("DELETE FROM messages WHERE batch_id = ? AND number = ?", (batch_id, line.number))
            more = counted(finished)
            sums = ", ".join(f"{name} = {name} + :{name}" for name in more)
            db.execute(f"UPDATE batches SET {sums} WHERE id = :id", more | {"id": batch_id})
            return True

        return await self._database.run(finish)

    async def finished(self, batch_id: str, is_ok: bool, after: int, limit: int) -> list[tuple[int, bytes]]:
        query = "SELECT number, text FROM finished WHERE (batch_id, is_ok) = (?, ?) AND number > ?"
        return await self._rows(f"{query} ORDER BY number LIMIT ?", batch_id, is_ok, after, limit)

    # ---- agent runs

    async def append(self, batch_id: str, line: Line, position: int, message: bytes) -> None:
        insert = "INSERT OR IGNORE INTO messages VALUES (?, ?, ?, ?)"
        await self._rows(insert, batch_id, line.number, position, message)

    async def transcript(self, batch_id: str, line: Line) -> list[tuple[int, bytes]]:
        query = "SELECT position, message FROM messages WHERE batch_id = ? AND number = ? ORDER BY position"
        return await self._rows(query, batch_id, line.number)

    # ---- plumbing

    async def _rows(self, query: str, *values: Any) -> list[Any]:
        return await self._database.run(lambda db: db.execute(query, values).fetchall())

    async def _page(
        self, table: str, columns: str, tenant: str, page: ListPage, more: str = "", *values: Any
    ) -> Any:
        """Return a page of a tenant's rows, and one row more. An unknown `page.after` has none behind it."""
        compare, order = (">", "ASC") if page.is_ascending else ("<", "DESC")
        behind = f"AND row {compare} (SELECT row FROM {table} WHERE tenant = ? AND id = ?)" if page.after else ""
        query = f"SELECT {columns} FROM {table} WHERE tenant = ? {more} {behind} ORDER BY row {order} LIMIT ?"
        after = (tenant, page.after) if page.after else ()
        return await self._rows(query, tenant, *values, *after, page.limit + 1)


def _add_file(db: sqlite3.Connection, file: File) -> None:
    row = (file.id, file.tenant, file.purpose, file.filename, file.size_bytes, file.created_at, file.expires_at)
    db.execute(f"INSERT INTO files ({_FILE}) VALUES (?, ?, ?, ?, ?, ?, ?)", row)


def _file(row: Any) -> File:
    names = ("id", "tenant", "purpose", "filename", "size_bytes", "created_at", "expires_at")
    return File(**dict(zip(names, row, strict=True)))


def _move(db: sqlite3.Connection, batch_id: str, status: Status, now: int, changes: dict[str, Any]) -> Batch:
    row = db.execute(f"SELECT about, {_COUNTED} FROM batches WHERE id = ?", (batch_id,)).fetchone()
    if row is None:
        raise NotAllowed(f"there is no batch '{batch_id}'")
    moved = _batch(row).moved(status, now, **changes)
    db.execute("UPDATE batches SET status = ?, about = ? WHERE id = ?", (status.value, about(moved), batch_id))
    return moved


def _batch(row: Any) -> Batch:
    return batch_of(row[0], row[1:])
