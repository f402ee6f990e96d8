"""Reads an SQLite database: queries that the model writes, or one prepared query for many keys at a time.

Other databases are reached by a Python tool or an MCP server: there it is the account that makes them read-only.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tool_runtime.options import read
from tool_runtime.sqlite import Database
from tool_runtime.types import Context, Effect, Json, Limits, Tool

KEYS = ":keys"
MAX_KEYS = 500
_BATCH_WINDOW_S = 0.02
_GRACE_S = 5.0
_AT_ONCE = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class SqlQueryOptions:
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
    """Then the process that runs a query is killed."""
    memory_bytes: int = 256 * 1024 * 1024
    """That a query may take of SQLite; what it sorts outside of memory is bounded by the same."""

    def __post_init__(self) -> None:
        if bool(self.query) != bool(self.key) or (self.query and self.query.count(KEYS) != 1):
            raise ValueError(
                f"a prepared query has {KEYS} once, as in `WHERE id IN ({KEYS})`, and comes with a key"
            )


def build(settings: Mapping[str, Any]) -> Tool:
    """Raises ValueError."""
    options = read(SqlQueryOptions, settings, "sql_query")
    database = Database(options.database, options.timeout_s, options.memory_bytes)
    try:
        columns = database.columns(options.query.replace(KEYS, "") or "SELECT 1")
    except ValueError as error:
        raise ValueError(f"sql_query: {error}") from None
    if options.key and options.key not in columns:
        raise ValueError(f"sql_query: the result of the query has no column {options.key!r} but {columns}")
    return _prepared(options, database) if options.query else _free(options, database)


def _free(options: SqlQueryOptions, database: Database) -> Tool:
    async def run(arguments: Json, context: Context) -> object:
        values = arguments.get("parameters", [])
        return await database.read(arguments["query"], values, {"max_rows": options.max_rows})

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
        limits=_limits(options),
        source="builtin",
        close=database.close,
    )


def _prepared(options: SqlQueryOptions, database: Database) -> Tool:
    async def run_many(group: list[Json], context: Context) -> Sequence[object]:
        keys = [arguments[options.key] for arguments in group]
        query = options.query.replace(KEYS, ",".join("?" * len(keys)))
        shape = {"max_rows": options.max_rows, "key": options.key, "keys": keys}
        return list(json.loads(await database.read(query, keys, shape)))

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
        limits=_limits(options),
        source="builtin",
        close=database.close,
    )


def _limits(options: SqlQueryOptions) -> Limits:
    return Limits(timeout_s=options.timeout_s + _GRACE_S, concurrency=_AT_ONCE)
