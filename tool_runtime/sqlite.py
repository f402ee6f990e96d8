"""Reads an SQLite file in processes that are killed when a query takes too long.

SQLite cannot be ended from inside: it looks up between two steps of a query, and a step may be one call of a
function that takes minutes.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tool_runtime import sqlite_reader as reader
from tool_runtime.killable import Killable, ProcessLost
from tool_runtime.types import Json, Refused, ToolError


class Database:
    """One file."""

    def __init__(self, path: str, timeout_s: float, memory_bytes: int) -> None:
        """Raises ValueError if there is no such file."""
        if not Path(path).is_file():
            raise ValueError(f"there is no database file {path}")
        fixed = {"uri": f"{Path(path).resolve().as_uri()}?mode=ro", "memory_bytes": memory_bytes}
        self._processes = Killable(reader.__file__, timeout_s, memory_bytes, fixed, "-S")
        self.close = self._processes.close

    def columns(self, query: str) -> list[str]:
        """Names of a query's columns, asked before there is an event loop. Raises ValueError."""
        try:
            kind, text = self._processes.ask_now({"query": query, "values": [], "max_rows": 0})
        except ProcessLost as error:
            raise ValueError(f"the process that reads the file does not work: {error}") from None
        if kind != reader.OK:
            raise ValueError(text)
        return list(json.loads(text)["columns"])

    async def read(self, query: str, values: list[Any], shape: Json) -> str:
        """The text of the result, or of the list of them; `shape`: what else `reader.answer` is asked. Raises
        Refused for what is no reading, ToolError else."""
        try:
            kind, text = await self._processes.ask({"query": query, "values": values, **shape})
        except TimeoutError:
            raise ToolError(f"the query was stopped after {self._processes.timeout_s:g} s") from None
        except ProcessLost as error:
            raise ToolError(f"the query was lost: {error}") from None
        if kind == reader.OK:
            return text
        raise Refused(text) if kind == reader.REFUSED else ToolError(text)
