"""Reads an SQLite file for queries that nobody has looked at: reading only, within a time and a size.

Read-only three times over: the file is opened for reading, an authorizer refuses every statement and function that
does more, and no other file can be attached.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, TypeVar

from tool_runtime.types import Refused, ToolError

T = TypeVar("T")

MAX_COLUMNS = 100
_STEPS_BETWEEN_LOOKS = 10_000
_BUSY_S = 2.0
_READING = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE}
_HARMFUL_FUNCTIONS = {
    *("load_extension", "readfile", "writefile", "edit", "fts3_tokenizer"),
    *("printf", "format"),  # one call can take minutes, in which the clock is not looked at
}
_LIMITS = (
    (sqlite3.SQLITE_LIMIT_LENGTH, 1_000_000),  # of one value: no query makes a gigabyte of zeros
    (sqlite3.SQLITE_LIMIT_SQL_LENGTH, 100_000),
    (sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH, 100),  # long patterns take exponential time, unseen by the clock
    (sqlite3.SQLITE_LIMIT_EXPR_DEPTH, 200),
    (sqlite3.SQLITE_LIMIT_COMPOUND_SELECT, 50),
    (sqlite3.SQLITE_LIMIT_ATTACHED, 0),
)


class Database:
    """One file, opened for each query: that is cheap, and a connection belongs to one thread."""

    def __init__(self, path: str, timeout_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        """Raises ValueError if there is no such file."""
        if not Path(path).is_file():
            raise ValueError(f"there is no database file {path}")
        self._uri = f"{Path(path).resolve().as_uri()}?mode=ro"
        self._timeout_s = timeout_s
        self._clock = clock

    def read(self, query: str, values: Sequence[Any], take: Callable[[sqlite3.Cursor], T]) -> T:
        """What `take` makes of the cursor. Blocks. Raises Refused for what is no reading, ToolError else."""
        refused: list[str] = []
        until = self._clock() + self._timeout_s
        try:
            with closing(sqlite3.connect(self._uri, uri=True, timeout=_BUSY_S)) as connection:
                for kind, most in _LIMITS:
                    connection.setlimit(kind, most)
                connection.set_authorizer(_authorizer(refused))
                connection.set_progress_handler(lambda: self._clock() > until, _STEPS_BETWEEN_LOOKS)
                cursor = connection.execute(query, values)
                if len(cursor.description or ()) > MAX_COLUMNS:
                    raise ToolError(f"the result has more than {MAX_COLUMNS} columns")
                return take(cursor)
        except (sqlite3.Error, sqlite3.Warning, OverflowError, ValueError) as error:
            if refused:
                raise Refused(f"only reading is allowed, not {refused[0]}") from None
            if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_INTERRUPT:
                raise ToolError(f"the query was stopped after {self._timeout_s:g} s") from None
            raise ToolError(f"SQLite: {error}") from None


def _authorizer(refused: list[str]) -> Callable[..., int]:
    """Asked by SQLite about each action of a query; what it refuses is put into the list."""

    def authorize(action: int, first: str | None, second: str | None, *_: object) -> int:
        is_harmful = action == sqlite3.SQLITE_FUNCTION and second in _HARMFUL_FUNCTIONS
        if action in _READING and not is_harmful:
            return sqlite3.SQLITE_OK
        refused.append(" ".join(filter(None, (_WORDS.get(action, "this statement"), first, second))))
        return sqlite3.SQLITE_DENY

    return authorize


_WORDS = {
    sqlite3.SQLITE_INSERT: "INSERT",
    sqlite3.SQLITE_UPDATE: "UPDATE",
    sqlite3.SQLITE_DELETE: "DELETE",
    sqlite3.SQLITE_ATTACH: "ATTACH",
    sqlite3.SQLITE_PRAGMA: "PRAGMA",
    sqlite3.SQLITE_FUNCTION: "the function",
    sqlite3.SQLITE_TRANSACTION: "a transaction:",
}
