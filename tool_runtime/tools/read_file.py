"""Reads a part of a text file below an allowed directory. No symbolic link or `..` leads out of one."""

from __future__ import annotations

import os
import stat
from codecs import getincrementaldecoder
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tool_runtime.execution import in_thread
from tool_runtime.loading import read_options
from tool_runtime.types import Context, Effect, Json, Refused, Tool, ToolError

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
"""Non-blocking: opening a pipe without a writer would hang. The pipe is refused afterwards."""


class Roots:
    """Named directories. A path is `name/folder/file`, so callers do not learn where it lies on the machine.

    Each part of a path is opened relative to the one before it, so no part can be exchanged for a link between a
    check and its use. Hard links and mounts below a root belong to the operator and count as inside.
    """

    def __init__(self, roots: Mapping[str, str]) -> None:
        """Raises ValueError for a root that is no directory, and for a name that is not one part of a path."""
        self._roots = {name: Path(place).resolve() for name, place in roots.items()}
        for name, place in self._roots.items():
            if "/" in name or name in ("", ".", ".."):
                raise ValueError(f"root {name!r}: the name has to be one part of a path")
            if not place.is_dir():
                raise ValueError(f"root {name!r}: {place} is no directory")

    @property
    def names(self) -> list[str]:
        return sorted(self._roots)

    @contextmanager
    def file(self, path: str) -> Iterator[int]:
        """Open a regular file. Raises Refused for a path that may not be read, ToolError for other faults."""
        with self._walked(path, _FILE) as descriptor:
            mode = os.fstat(descriptor).st_mode
            if stat.S_ISDIR(mode):
                raise ToolError(f"{path} is a directory")
            if not stat.S_ISREG(mode):
                raise Refused(f"{path} is no regular file")
            yield descriptor

    @contextmanager
    def directory(self, path: str) -> Iterator[int]:
        """Open a directory. Raises as `file` does."""
        with self._walked(path, _DIRECTORY) as descriptor:
            yield descriptor

    @contextmanager
    def _walked(self, path: str, last: int) -> Iterator[int]:
        """Open part after part. `last` are the flags of the last one; all others have to be directories."""
        root, *parts = self._parts(path)
        descriptor = _open(path, str(self._roots[root]), _DIRECTORY, None)
        try:
            for number, part in enumerate(parts, 1):
                inner = _open(path, part, last if number == len(parts) else _DIRECTORY, descriptor)
                os.close(descriptor)
                descriptor = inner
            yield descriptor
        finally:
            os.close(descriptor)

    def _parts(self, path: str) -> list[str]:
        parts = [part for part in path.split("/") if part not in ("", ".")]
        if path.startswith("/") or ".." in parts or "\0" in path or not _is_text(path):
            raise Refused(f"{path!r} is refused: write a path such as {self.names[0]}/file, without `..`")
        if not parts or parts[0] not in self._roots:
            raise Refused(f"{path!r} is refused: a path begins with one of {', '.join(self.names)}")
        return parts


def _open(path: str, part: str, flags: int, directory: int | None) -> int:
    try:
        return os.open(part, flags, dir_fd=directory)
    except OSError as error:
        if _is_link(part, directory):
            raise Refused(f"{path!r} is refused: it goes through a symbolic link") from None
        raise ToolError(f"{path} cannot be opened: {error.strerror}") from None


def _is_link(part: str, directory: int | None) -> bool:
    """Return whether a link is the reason why the open has failed, for the text of the refusal only."""
    try:
        return stat.S_ISLNK(os.stat(part, dir_fd=directory, follow_symlinks=False).st_mode)
    except OSError:
        return False


def _is_text(path: str) -> bool:
    try:
        path.encode()
    except UnicodeEncodeError:  # a lone surrogate, which JSON can carry
        return False
    return True


# ---- the tool


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
