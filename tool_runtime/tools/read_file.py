"""Reads a part of a text file below an allowed directory."""

from __future__ import annotations

import os
from codecs import getincrementaldecoder
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from tool_runtime.execution import in_thread
from tool_runtime.files import Roots
from tool_runtime.loading import read_options
from tool_runtime.types import Context, Effect, Json, Tool, ToolError


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadFileOptions:
    """Settings of `read_file`."""

    roots: Mapping[str, str]
    """Directories by the names with which paths begin: `docs: /srv/docs` gives `docs/guide.md`."""
    max_bytes: int = 60_000
    """Longest part that one call reads."""


def build(settings: Mapping[str, Any]) -> Tool:
    """Raises ValueError."""
    options = read_options(ReadFileOptions, settings, "read_file")
    roots = Roots(options.roots)

    async def run(arguments: Json, context: Context) -> object:
        return await in_thread(
            partial(_part, roots, arguments["path"], arguments.get("offset", 0), options.max_bytes)
        )

    return Tool(
        name="read_file",
        description=f"Read a text file. Paths begin with one of: {', '.join(roots.names)}.",
        parameters={
            "type": "object",
            "properties": {
                "path": {"type": "string", "maxLength": 4096},
                "offset": {"type": "integer", "minimum": 0, "description": "First byte to read; default 0."},
            },
            "required": ["path"],
            "additionalProperties": False,
        },
        run=run,
        effect=Effect.READ_ONLY,
        source="builtin",
    )


def _part(roots: Roots, path: str, offset: int, max_bytes: int) -> str:
    with roots.file(path) as descriptor:
        size = os.fstat(descriptor).st_size
        data = os.pread(descriptor, max_bytes, min(offset, size))
    if b"\0" in data:
        raise ToolError(f"{path} is no text file")
    decoder = getincrementaldecoder("utf-8")("replace")
    text = decoder.decode(data, final=offset + len(data) >= size)
    end = offset + len(data) - len(decoder.getstate()[0])  # a character that is cut belongs to the next part
    return text if end >= size else f"{text}\n[bytes {offset} to {end} of {size}; go on with offset {end}]"
