"""Reads an SQLite database, by queries of the model or by one prepared query for many keys at a time.

A Python tool or an MCP server reaches other databases, where the account is what makes them read-only.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tool_runtime.killable import Killable, ProcessLost
from tool_runtime.loading import read_options
from tool_runtime.tools import GRACE_S
from tool_runtime.tools import _sqlite_reader as reader
from tool_runtime.types import Context, Effect, Json, Limits, Refused, Tool, ToolError

KEYS = ":keys"
MAX_KEYS = 500
_BATCH_WINDOW_S = 0.02
_AT_ONCE = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class SqlQueryOptions:
    """Settings of `sql_query`."""

    database: str
    """Path of the file."""
    name: str = "sql_query"
    description: str = ""
    query: str = ""
    """A prepared query such as `SELECT id, city FROM customers WHERE id IN (:keys)`. The tool then takes one key,
    and keys of calls at about the same time go into one query. Empty: the model writes the queries."""
    key: str = ""
    """With `query`: the column of its result that holds the key, and the name of the argument."""
    max_rows: int = 200
    """Rows of a query, or of each key of a prepared one."""
    timeout_s: float = 10.0
    """Time after which the process of a query is killed."""
    memory_bytes: int = 256 * 1024 * 1024
    """Memory of SQLite for one query, and size of the files in which it sorts."""

    def __post_init__(self) -> None:
        if bool(self.query) != bool(self.key) or (self.query and self.query.count(KEYS) != 1):
            raise ValueError(
                f"a prepared query has {KEYS} once, as in `WHERE id IN ({KEYS})`, and comes with a key"
            )


def build(settings: Mapping[str, Any]) -> Tool:
    """Raises ValueError."""
    options = read_options(SqlQueryOptions, settings, "sql_query")
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
    return Limits(timeout_s=options.timeout_s + GRACE_S, concurrency=_AT_ONCE)


# ---- the file, read in processes that are killed when a query takes too long
#
# SQLite cannot be stopped from inside: it checks between two steps of a query, and one step may be the call of a
# function that takes minutes.


class Database:
    """One SQLite file."""

    def __init__(self, path: str, timeout_s: float, memory_bytes: int) -> None:
        """Raises ValueError if there is no such file."""
        if not Path(path).is_file():
            raise ValueError(f"there is no database file {path}")
        fixed = {"uri": f"{Path(path).resolve().as_uri()}?mode=ro", "memory_bytes": memory_bytes}
        self._processes = Killable(reader.__file__, timeout_s, memory_bytes, fixed, "-S")
        self.close = self._processes.close

    def columns(self, query: str) -> list[str]:
        """Return the names of a query's columns, before there is an event loop. Raises ValueError."""
        try:
            kind, text = self._processes.ask_now({"query": query, "values": [], "max_rows": 0})
        except ProcessLost as error:
            raise ValueError(f"the process that reads the file does not work: {error}") from None
        if kind != reader.OK:
            raise ValueError(text)
        return list(json.loads(text)["columns"])

    async def read(self, query: str, values: list[Any], shape: Json) -> str:
        """Return the text of the result, or of the list of results. `shape` is the rest of the reader's request.

        Raises Refused for a query that does more than read, ToolError for any other fault.
        """
        try:
            kind, text = await self._processes.ask({"query": query, "values": values, **shape})
        except TimeoutError:
            raise ToolError(f"the query was stopped after {self._processes.timeout_s:g} s") from None
        except ProcessLost as error:
            raise ToolError(f"the query was lost: {error}") from None
        if kind == reader.OK:
            return text
        raise Refused(text) if kind == reader.REFUSED else ToolError(text)
