"""Runs queries that no person has looked at on an SQLite file, one at a time.

Three walls keep it read-only: the file is opened for reading, an authorizer refuses every statement and function
that does more, and no other file can be attached. A result is cut while its rows are read.

It is the file of a `tool_runtime.killable.Killable`, so it imports the standard library only.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from math import isinf
from typing import Any

OK, REFUSED, ERROR = "ok", "refused", "error"
"""Kinds of answers."""
MAX_COLUMNS = 100
MAX_BYTES = 1_000_000
"""Approximate size of the values of one result."""
MAX_KEY_BYTES = 100_000
"""Approximate size of the values of one key."""
_BUSY_S = 2.0
_READING = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE}
_HARMFUL_FUNCTIONS = {"load_extension", "readfile", "writefile", "edit", "fts3_tokenizer"}
_LIMITS = (
    (sqlite3.SQLITE_LIMIT_LENGTH, 1_000_000),  # of one value: no query makes a gigabyte of zeros
    (sqlite3.SQLITE_LIMIT_SQL_LENGTH, 100_000),
    (sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH, 100),  # long ones take exponential time
    (sqlite3.SQLITE_LIMIT_EXPR_DEPTH, 200),
    (sqlite3.SQLITE_LIMIT_COMPOUND_SELECT, 50),
    (sqlite3.SQLITE_LIMIT_ATTACHED, 0),
)
_WORDS = {
    sqlite3.SQLITE_INSERT: "INSERT",
    sqlite3.SQLITE_UPDATE: "UPDATE",
    sqlite3.SQLITE_DELETE: "DELETE",
    sqlite3.SQLITE_ATTACH: "ATTACH",
    sqlite3.SQLITE_PRAGMA: "PRAGMA",
    sqlite3.SQLITE_FUNCTION: "the function",
    sqlite3.SQLITE_TRANSACTION: "a transaction:",
}

Row = tuple[Any, ...]


def answer(request: dict[str, Any]) -> tuple[str, str]:
    """Return kind and text.

    A request has `uri`, `memory_bytes`, `query`, `values` and `max_rows`. That of a query for many keys also has
    these as `keys` and their column as `key`; then the text is a list of results.
    """
    refused: list[str] = []
    try:
        with closing(sqlite3.connect(request["uri"], uri=True, timeout=_BUSY_S)) as connection:
            connection.execute(f"PRAGMA hard_heap_limit = {request['memory_bytes']}")
            for kind, most in _LIMITS:
                connection.setlimit(kind, most)
            connection.set_authorizer(_authorizer(refused))
            cursor = connection.execute(request["query"], request["values"])
            columns = [column[0] for column in cursor.description or ()]
            if len(columns) > MAX_COLUMNS:
                return ERROR, f"the result has more than {MAX_COLUMNS} columns"
            if "keys" in request:
                return OK, _by_key(columns, cursor, request)
            return OK, _first_rows(columns, cursor, request["max_rows"])
    except (sqlite3.Error, sqlite3.Warning, OverflowError, ValueError) as error:
        if refused:
            return REFUSED, f"only reading is allowed, not {refused[0]}"
        return ERROR, f"SQLite: {error}"


def _first_rows(columns: list[str], rows: Iterator[Row], max_rows: int) -> str:
    kept: list[list[Any]] = []
    num_bytes = 0
    for row in rows:
        num_bytes += _size(row)
        if len(kept) == max_rows or num_bytes > MAX_BYTES:
            return _result(columns, kept, is_cut=True)
        kept.append(_json(row))
    return _result(columns, kept)


def _by_key(columns: list[str], rows: Iterator[Row], request: dict[str, Any]) -> str:
    at, max_rows = columns.index(request["key"]), request["max_rows"]
    kept: dict[str, list[list[Any]]] = {str(key): [] for key in request["keys"]}
    num_bytes = dict.fromkeys(kept, 0)
    cut = set[str]()
    for row in rows:
        if (key := str(row[at])) not in kept:
            continue
        num_bytes[key] += _size(row)
        if len(kept[key]) == max_rows or num_bytes[key] > MAX_KEY_BYTES:
            cut.add(key)
        else:
            kept[key].append(_json(row))
    return _text([_result(columns, kept[key], key in cut) for key in map(str, request["keys"])])


def _result(columns: list[str], rows: list[list[Any]], is_cut: bool = False) -> str:
    note = {"cut": f"only the first {len(rows)} rows"} if is_cut else {}
    return _text({"columns": columns, "rows": rows, **note})


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _size(row: Row) -> int:
    return sum(len(value) for value in row if isinstance(value, str | bytes))


def _json(row: Row) -> list[Any]:
    return [_value(value) for value in row]


def _value(value: Any) -> Any:
    if isinstance(value, bytes):
        return f"[{len(value)} bytes]"
    if isinstance(value, float) and isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return value


def _authorizer(refused: list[str]) -> Callable[..., int]:
    """Return the function that SQLite calls for each action of a query. It adds each refused one to the list."""

    def authorize(action: int, first: str | None, second: str | None, *_: object) -> int:
        is_harmful = action == sqlite3.SQLITE_FUNCTION and second in _HARMFUL_FUNCTIONS
        if action in _READING and not is_harmful:
            return sqlite3.SQLITE_OK
        refused.append(" ".join(filter(None, (_WORDS.get(action, "this statement"), first, second))))
        return sqlite3.SQLITE_DENY

    return authorize
