"""Reads an SQLite database: queries that the model writes, or one prepared query for many keys at a time.

Other databases are reached by a Python tool or an MCP server: there it is the account that makes them read-only.
"""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from tool_runtime.calling import in_thread
from tool_runtime.options import read
from tool_runtime.sqlite import Database
from tool_runtime.types import Context, Effect, Json, Limits, Tool, ToolError

KEYS = ":keys"
MAX_KEYS = 500
MAX_BYTES = 1_000_000
"""Of the values of one result, roughly."""
_BATCH_WINDOW_S = 0.02
_GRACE_S = 5.0
_AT_ONCE = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Settings of `sql_query`."""

    database: str
    """Path of the file."""
    name: str = "sql_query"
    description: str = ""
    query: str = ""
    """A prepared query such as `SELECT id, city FROM customers WHERE id IN (:keys)`: the tool then takes one key,
    and keys that come at about the same time go into one query. Empty: the model writes the queries."""
    key: str = ""
    """With `query`: the column of its result that holds the key, and the name of the argument."""
    max_rows: int = 200
    """Of a query; with a prepared one, for each key."""
    timeout_s: float = 10.0

    def __post_init__(self) -> None:
        if bool(self.query) != bool(self.key) or (self.query and self.query.count(KEYS) != 1):
            raise ValueError(
                f"a prepared query has {KEYS} once, as in `WHERE id IN ({KEYS})`, and comes with a key"
            )


def build(settings: Mapping[str, Any]) -> Tool:
    """Raises ValueError."""
    options = read(Options, settings, "sql_query")
    database = Database(options.database, options.timeout_s)
    return _prepared(options, database) if options.query else _free(options, database)


def _free(options: Options, database: Database) -> Tool:
    def first_rows(cursor: sqlite3.Cursor) -> Json:
        result: Json = {"columns": _columns(cursor), "rows": []}
        num_bytes = 0
        for row in cursor:
            num_bytes += _size(row)
            if len(result["rows"]) == options.max_rows or num_bytes > MAX_BYTES:
                return {**result, "cut": f"only the first {len(result['rows'])} rows"}
            result["rows"].append(_json(row))
        return result

    async def run(arguments: Json, context: Context) -> object:
        return await in_thread(
            partial(database.read, arguments["query"], arguments.get("parameters", []), first_rows)
        )

    return Tool(
        name=options.name,
        description=options.description
        or "Run one read-only SQLite query. `SELECT sql FROM sqlite_schema` describes the tables.",
        parameters={
            "type": "object",
            "properties": {
                "query": {"type": "string", "minLength": 1},
                "parameters": {"type": "array", "items": {"type": ["string", "number", "null"]}},
            },
            "required": ["query"],
            "additionalProperties": False,
        },
        run=run,
        effect=Effect.READ_ONLY,
        limits=Limits(timeout_s=options.timeout_s + _GRACE_S, concurrency=_AT_ONCE),
        source="builtin",
    )


def _prepared(options: Options, database: Database) -> Tool:
    def by_key(cursor: sqlite3.Cursor) -> dict[str, list[list[Any]]]:
        at = _columns(cursor).index(options.key)
        rows: dict[str, list[list[Any]]] = defaultdict(list)
        for row in cursor:
            if len(rows[str(row[at])]) < options.max_rows:
                rows[str(row[at])].append(_json(row))
        return rows

    try:
        columns = database.read(options.query.replace(KEYS, ""), [], _columns)
    except ToolError as error:
        raise ValueError(f"sql_query: {error}") from None
    if options.key not in columns:
        raise ValueError(f"sql_query: the result of the query has no column {options.key!r} but {columns}")

    async def run_many(group: list[Json], context: Context) -> Sequence[object]:
        keys = [arguments[options.key] for arguments in group]
        query = options.query.replace(KEYS, ",".join("?" * len(keys)))
        found = await in_thread(partial(database.read, query, keys, by_key))
        assert isinstance(found, dict)
        return [{"columns": columns, "rows": found.get(str(key), [])} for key in keys]

    return Tool(
        name=options.name,
        description=options.description or f"Look up rows by {options.key}.",
        parameters={
            "type": "object",
            "properties": {options.key: {"type": ["string", "integer"]}},
            "required": [options.key],
            "additionalProperties": False,
        },
        run_many=run_many,
        batch_window_s=_BATCH_WINDOW_S,
        max_batch=MAX_KEYS,
        effect=Effect.READ_ONLY,
        limits=Limits(timeout_s=options.timeout_s + _GRACE_S, concurrency=_AT_ONCE),
        source="builtin",
    )


def _columns(cursor: sqlite3.Cursor) -> list[str]:
    return [column[0] for column in cursor.description or ()]


def _size(row: tuple[Any, ...]) -> int:
    return sum(len(value) for value in row if isinstance(value, str | bytes))


def _json(row: tuple[Any, ...]) -> list[Any]:
    return [f"[{len(value)} bytes]" if isinstance(value, bytes) else value for value in row]
