"""Finished turns and results of a batch on disk, found again by content: SQLite, one thread, grouped commits."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import sqlite3
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from batch_agent.results import AgentResult, OutputValidationError, Usage
from batch_agent.schema import OutputSchema
from batch_agent.spec import Message

FILE = "turns.sqlite"
_TABLES = """
PRAGMA journal_mode = WAL;
PRAGMA synchronous = NORMAL;
CREATE TABLE IF NOT EXISTS batch (id TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS steps (
    agent BLOB, step INTEGER, messages BLOB NOT NULL, usage BLOB, PRIMARY KEY (agent, step)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS outputs (agent BLOB PRIMARY KEY, output BLOB NOT NULL, patch TEXT) WITHOUT ROWID;
"""


@dataclass(slots=True)
class Saved:
    """What is known of an agent."""

    key: bytes = b""
    messages: list[Message] = field(default_factory=list)
    """Those after its task."""
    num_steps: int = 0
    turns: int = 0
    usage: Usage = field(default_factory=Usage)
    prompt_tokens: int = 0
    """Of the last model call."""
    is_done: bool = False
    output: Any = None
    """As JSON, of an agent that is done."""
    patch: str = ""

    def result(self, index: int, schema: OutputSchema | None) -> AgentResult | None:
        """Of an agent that was done before. None: it was not, or the schema does not read what it wrote, as with a
        field that is written by another name; then the output is made again of the last answer."""
        if not self.is_done:
            return None
        try:
            output = self.output if schema is None else schema.validated(self.output)
        except OutputValidationError:
            return None
        return AgentResult(
            f"job-{index}", index, output, attempts=0, turns=self.turns, usage=self.usage, patch=self.patch
        )


class Checkpoint:
    """Opened once per batch. A write that has returned survives the death of this process."""

    def __init__(self, directory: str | Path) -> None:
        self._directory = Path(directory)
        self._thread = ThreadPoolExecutor(1, "batch-agent-checkpoint")
        self._pending: list[tuple[str, tuple[Any, ...]]] = []
        self._next: asyncio.Task[None] | None = None
        self._one_at_a_time = asyncio.Lock()
        self._database: sqlite3.Connection | None = None
        self._seen: Counter[bytes] = Counter()
        self.batch_id = ""
        self.is_resumed = False
        """Whether it was there before."""

    async def open(self) -> None:
        """Raises OSError."""
        try:
            self.batch_id = await self._in_thread(self._open)
        except sqlite3.Error as error:
            raise OSError(f"the checkpoint in {self._directory} cannot be opened: {error}") from None

    async def close(self) -> None:
        """What was to be written before is written first."""
        if self._next is not None:
            await asyncio.wait([self._next])
        async with self._one_at_a_time:
            await self._in_thread(self._close)
        self._thread.shutdown()

    def key(self, *content: Any) -> bytes:
        """Of an agent: what it is asked, and how many were asked the same before it in this batch."""
        digest = hashlib.sha256(orjson.dumps(content, option=orjson.OPT_SORT_KEYS, default=str)).digest()
        self._seen[digest] += 1
        return digest[:16] + self._seen[digest].to_bytes(4, "big")

    async def load(self, key: bytes) -> Saved:
        saved: Saved = await self._in_thread(lambda: self._load(key))
        return saved

    async def step(self, key: bytes, step: int, messages: Iterable[Message], usage: Usage | None = None) -> None:
        """What one step added: the model's answer with its usage, or what follows it."""
        counted = None if usage is None else orjson.dumps(usage)
        row = (key, step, orjson.dumps(list(messages)), counted)
        await self._write("INSERT OR REPLACE INTO steps VALUES (?, ?, ?, ?)", row)

    async def forget(self, key: bytes) -> None:
        """All steps of an agent."""
        await self._write("DELETE FROM steps WHERE agent = ?", (key,))

    async def done(self, key: bytes, output: Any, patch: str = "") -> None:
        """Only for an agent that has an output: others are tried again."""
        row = (key, orjson.dumps(output), patch)
        await self._write("INSERT OR REPLACE INTO outputs VALUES (?, ?, ?)", row)

    async def _write(self, sql: str, row: tuple[Any, ...]) -> None:
        self._pending.append((sql, row))
        if self._next is None:
            self._next = asyncio.create_task(self._commit())
        await asyncio.shield(self._next)

    async def _commit(self) -> None:
        async with self._one_at_a_time:
            self._next = None  # who writes from here on needs the transaction after this one
            rows, self._pending = self._pending, []
            await self._in_thread(lambda: self._execute(rows))

    def _execute(self, rows: list[tuple[str, tuple[Any, ...]]]) -> None:
        assert self._database is not None
        with self._database:
            for sql, row in rows:
                self._database.execute(sql, row)

    def _open(self) -> str:
        self._directory.mkdir(parents=True, exist_ok=True)
        self._database = sqlite3.connect(self._directory / FILE, timeout=30)
        self._database.executescript(_TABLES)
        with self._database:
            made = self._database.execute(
                "INSERT INTO batch SELECT ? WHERE NOT EXISTS (SELECT 1 FROM batch)", (secrets.token_hex(8),)
            )
        self.is_resumed = made.rowcount == 0
        return str(self._database.execute("SELECT id FROM batch").fetchone()[0])

    def _close(self) -> None:
        if self._database is not None:
            self._database.close()

    def _load(self, key: bytes) -> Saved:
        assert self._database is not None
        saved = Saved(key)
        select = "SELECT messages, usage FROM steps WHERE agent = ? ORDER BY step"
        for messages, usage in self._database.execute(select, (key,)):
            saved.messages += orjson.loads(messages)
            saved.num_steps += 1
            if usage is not None:
                used = Usage(**orjson.loads(usage))
                saved.usage += used
                saved.prompt_tokens = used.prompt_tokens
                saved.turns += 1
        row = self._database.execute("SELECT output, patch FROM outputs WHERE agent = ?", (key,)).fetchone()
        if row:
            saved.is_done, saved.output, saved.patch = True, orjson.loads(row[0]), row[1]
        return saved

    async def _in_thread(self, work: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)
