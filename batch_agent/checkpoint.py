"""Finished steps and results of a batch on disk, found by content: SQLite, one thread, grouped commits."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import sqlite3
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from batch_agent.results import AgentResult, OutputValidationError, Timings, Usage, jsonable
from batch_agent.schema import OutputSchema
from tool_runtime.agent_loop import Step

FILE = "turns.sqlite"
_TABLES = """
PRAGMA journal_mode = WAL;
PRAGMA synchronous = NORMAL;
CREATE TABLE IF NOT EXISTS batch (id TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS steps (
    agent BLOB, step INTEGER, messages BLOB NOT NULL, usage BLOB, PRIMARY KEY (agent, step)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS outputs (agent BLOB PRIMARY KEY, output BLOB NOT NULL, patch TEXT) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS figures (agent BLOB PRIMARY KEY, figures BLOB NOT NULL) WITHOUT ROWID;
"""
_FIGURES = ("turns", "usage", "timings", "finish_reason", "session", "receipt", "tool_calls", "tool_calls_saved")
"""Fields of a result that a later run shows again."""


@dataclass(slots=True)
class Saved:
    """The record of one agent."""

    key: bytes = b""
    steps: dict[int, Step] = field(default_factory=dict)
    """By position behind the task. The usage of a model call is a `Usage`."""
    is_done: bool = False
    output: Any = None
    """As JSON, of an agent that is done."""
    patch: str = ""
    figures: dict[str, Any] | None = None
    """Of the result of an agent that is done. None: an older version has kept it."""

    def result(self, index: int, schema: OutputSchema | None) -> AgentResult | None:
        """Return the result of an agent that is done.

        None: the agent is not done, or the schema does not read the stored output, as with a field that is written
        under another name. The output is then read from the last answer again.
        """
        if not self.is_done:
            return None
        try:
            output = self.output if schema is None else schema.validated(self.output)
        except OutputValidationError:
            return None
        usages = [step.usage for step in self.steps.values() if step.usage is not None]
        figures: dict[str, Any] = {"turns": len(usages), "usage": sum(usages, Usage())}
        if self.figures is not None:
            usage, timings = Usage(**self.figures["usage"]), Timings(**self.figures["timings"])
            figures = self.figures | {"usage": usage, "timings": timings}
        return AgentResult(f"job-{index}", index, output, attempts=0, patch=self.patch, **figures)


class Checkpoint:
    """The record of one batch. A write that has returned survives the death of this process."""

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
        """Whether the record was there before."""

    async def open(self) -> None:
        """Raises OSError."""
        try:
            self.batch_id = await self._in_thread(self._open)
        except sqlite3.Error as error:
            raise OSError(f"the checkpoint in {self._directory} cannot be opened: {error}") from None

    async def close(self) -> None:
        """Finish the writes that have begun, then close."""
        if self._next is not None:
            await asyncio.wait([self._next])
        async with self._one_at_a_time:
            await self._in_thread(self._close)
        self._thread.shutdown()

    def key(self, *content: Any) -> bytes:
        """Return the key of an agent: its content, and the number of agents with the same content before it."""
        digest = hashlib.sha256(orjson.dumps(content, option=orjson.OPT_SORT_KEYS, default=str)).digest()
        self._seen[digest] += 1
        return digest[:16] + self._seen[digest].to_bytes(4, "big")

    async def load(self, key: bytes) -> Saved:
        saved: Saved = await self._in_thread(lambda: self._load(key))
        return saved

    async def keep(self, key: bytes, position: int, step: Step) -> None:
        usage = None if step.usage is None else orjson.dumps(step.usage)
        row = (key, position, orjson.dumps([step.message]), usage)
        await self._write("INSERT OR REPLACE INTO steps VALUES (?, ?, ?, ?)", row)

    async def forget(self, key: bytes) -> None:
        """Remove all steps of an agent."""
        await self._write("DELETE FROM steps WHERE agent = ?", (key,))

    async def finish(self, key: bytes, result: AgentResult) -> None:
        """Record an output with its figures. An agent without one is tried again."""
        figures = orjson.dumps({name: getattr(result, name) for name in _FIGURES})
        self._pending.append(("INSERT OR REPLACE INTO figures VALUES (?, ?)", (key, figures)))
        row = (key, orjson.dumps(jsonable(result.output)), result.patch)
        await self._write("INSERT OR REPLACE INTO outputs VALUES (?, ?, ?)", row)

    async def _write(self, sql: str, row: tuple[Any, ...]) -> None:
        self._pending.append((sql, row))
        if self._next is None:
            self._next = asyncio.create_task(self._commit())
        await asyncio.shield(self._next)

    async def _commit(self) -> None:
        async with self._one_at_a_time:
            self._next = None  # later writes go into the next transaction
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
        select = "SELECT step, messages, usage FROM steps WHERE agent = ? ORDER BY step"
        position = 0
        for first, messages, usage in self._database.execute(select, (key,)):
            # A row of an older version holds several messages, and its number counts rows: it is never larger.
            position = max(position, first)
            for message in orjson.loads(messages):
                saved.steps[position] = Step(message)
                position += 1
            if usage is not None:
                last = saved.steps[position - 1]
                saved.steps[position - 1] = Step(last.message, Usage(**orjson.loads(usage)))
        row = self._database.execute("SELECT output, patch FROM outputs WHERE agent = ?", (key,)).fetchone()
        if row:
            saved.is_done, saved.output, saved.patch = True, orjson.loads(row[0]), row[1]
            figures = self._database.execute("SELECT figures FROM figures WHERE agent = ?", (key,)).fetchone()
            saved.figures = orjson.loads(figures[0]) if figures else None
        return saved

    async def _in_thread(self, work: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)
