"""Lists a directory below an allowed one."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

from tool_runtime.execution import in_thread
from tool_runtime.loading import read_options
from tool_runtime.tools.read_file import Roots
from tool_runtime.types import Context, Effect, Json, Tool


@dataclass(frozen=True, slots=True, kw_only=True)
class ListFilesOptions:
    """Settings of `list_files`."""

    roots: Mapping[str, str]
    """As in `read_file`."""
    max_entries: int = 1000


def build(settings: Mapping[str, Any]) -> Tool:
    """Raises ValueError."""
    options = read_options(ListFilesOptions, settings, "list_files")
    roots = Roots(options.roots)

    async def run(arguments: Json, context: Context) -> object:
        path = arguments.get("path", "").strip("/")
        if not path:
            return "\n".join(f"{name}/" for name in roots.names)
        return await in_thread(partial(_entries, roots, path, options.max_entries))

    return Tool(
        name="list_files",
        description="List a directory: names of directories end with /, files have their size in bytes. "
        "Without a path: where paths begin.",
        parameters={
            "type": "object",
            "properties": {"path": {"type": "string", "maxLength": 4096}},
            "additionalProperties": False,
        },
        run=run,
        effect=Effect.READ_ONLY,
        source="builtin",
    )


def _entries(roots: Roots, path: str, max_entries: int) -> str:
    """Return a line per entry. Links and devices cannot be read and are left out."""
    with roots.directory(path) as descriptor, os.scandir(descriptor) as found:
        entries = list(islice(found, max_entries + 1))
        lines = sorted(filter(None, map(_line, entries[:max_entries])))
    if len(entries) > max_entries:
        lines.append(f"[only {max_entries} entries are shown]")
    return "\n".join(lines) or "The directory is empty."


def _line(entry: os.DirEntry[str]) -> str:
    try:
        status = entry.stat(follow_symlinks=False)
    except OSError:  # it was removed meanwhile
        return ""
    if stat.S_ISDIR(status.st_mode):
        return f"{entry.name}/"
    return f"{entry.name}  {status.st_size}" if stat.S_ISREG(status.st_mode) else ""
