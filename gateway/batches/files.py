"""The contents of files: on disk, each whole or not at all, and in the forms in which they arrive."""

from __future__ import annotations

import asyncio
import errno
import os
import sqlite3
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from email.message import Message
from email.parser import HeaderParser
from pathlib import Path
from typing import IO

from gateway.batches.objects import new_id

CHUNK_BYTES = 2**20
_FULL = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EFBIG))
NO_ROOM = "There is no room left on the disk of the batches (batches.directory)."


def is_disk_full(error: BaseException) -> bool:
    """Whether an error, its cause or one of its group says that a disk or a quota is full."""
    if isinstance(error, BaseExceptionGroup):
        return any(map(is_disk_full, error.exceptions))
    if isinstance(error, OSError):
        return error.errno in _FULL
    if isinstance(error, sqlite3.Error):
        return getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL
    return error.__cause__ is not None and is_disk_full(error.__cause__)


_UNFINISHED = ".part"


class Blobs:
    """The contents of files, in one directory. The name of a content is the id of its file."""

    def __init__(self, directory: Path, grace_s: float = 0.0, now: Callable[[], float] = time.time) -> None:
        """`grace_s`: how long a new content is kept although no file is announced for it. 0: no other process
        writes to the directory."""
        self._directory = directory
        self._grace_s = grace_s
        self._now = now
        self._being_written: set[str] = set()

    async def prepare(self) -> None:
        """Make the directory, and remove the contents that a killed process left half written. Raises OSError."""
        await asyncio.to_thread(self._prepare)

    def path(self, file_id: str) -> Path:
        return self._directory / file_id

    @asynccontextmanager
    async def new(self) -> AsyncIterator[Spool]:
        """Yield a content to write. Announce its file before leaving: after that nothing protects the content."""
        spool = self.make_spool(new_id("file-"))
        self._being_written.add(spool.file_id)
        try:
            spool.open()
            yield spool
        finally:
            spool.close()
            self._being_written.discard(spool.file_id)

    def make_spool(self, file_id: str) -> Spool:
        return Spool(file_id, self._directory)

    async def chunks(self, file_id: str) -> AsyncIterator[bytes]:
        """Yield a content. Raises FileNotFoundError."""
        file = await asyncio.to_thread(self.path(file_id).open, "rb")
        try:
            while chunk := await asyncio.to_thread(file.read, CHUNK_BYTES):
                yield chunk
        finally:
            file.close()

    async def keep_only(self, in_use: Callable[[], Awaitable[Collection[str]]]) -> None:
        """Remove all other contents.

        Law: list the directory first, then the contents being written, then the announced files. A content that
        moves from one of these to the next meanwhile is never taken for waste.
        """
        paths = await asyncio.to_thread(lambda: list(self._directory.iterdir()))
        kept = {*self._being_written}
        kept.update(await in_use())
        await asyncio.to_thread(self._remove, [path for path in paths if path.stem not in kept])

    def _prepare(self) -> None:
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._remove([path for path in self._directory.iterdir() if path.suffix == _UNFINISHED])

    def _remove(self, paths: Iterable[Path]) -> None:
        for path in paths:
            with suppress(FileNotFoundError):
                if not self._grace_s or path.stat().st_mtime < self._now() - self._grace_s:
                    path.unlink()


class Spool:
    """A content that is being written, under a temporary name. Without `keep` nothing of it stays."""

    def __init__(self, file_id: str, directory: Path) -> None:
        self.file_id = file_id
        self.size_bytes = 0
        self._path = directory / file_id
        self._part = directory / (file_id + _UNFINISHED)
        self._buffer = bytearray()
        self._file: IO[bytes] | None = None

    def open(self) -> None:
        """Open the file. Not in a thread: a caller that is cancelled meanwhile would leave it open."""
        self._file = self._part.open("wb")

    def close(self) -> None:
        if self._file is not None:
            with suppress(OSError):  # of bytes that do not fit, and of which nothing stays
                self._file.close()
        self._part.unlink(missing_ok=True)

    async def write(self, data: bytes) -> None:
        self.size_bytes += len(data)
        self._buffer += data
        if len(self._buffer) >= CHUNK_BYTES:
            await self._flush()

    async def keep(self) -> None:
        """Give the content its name. From here on it survives a crash."""
        await self._flush()
        await asyncio.to_thread(self._settle)

    async def _flush(self) -> None:
        assert self._file is not None
        data, self._buffer = bytes(self._buffer), bytearray()
        await asyncio.to_thread(self._file.write, data)

    def _settle(self) -> None:
        assert self._file is not None
        self._file.flush()
        os.fsync(self._file.fileno())
        self._part.rename(self._path)
        directory = os.open(self._path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


# ---- multipart/form-data, cut into its parts as it arrives, without I/O (RFC 7578)

MAX_HEADER_BYTES = 16 * 1024
MAX_PARTS = 64
"""Parts of one form. An upload has four at most: reading the head of each takes a hundred times its bytes."""
MAX_PARAMETERS = 64
"""Parameters of one header: the standard library reads them in time that grows with their square."""
_MAX_BOUNDARY_CHARS = 70


class BadForm(Exception):
    """The body is no such form. The text says why."""


@dataclass(frozen=True, slots=True)
class PartBegins:
    name: str
    filename: str | None
    """None: the part is a plain field."""
    head_bytes: int


@dataclass(frozen=True, slots=True)
class PartData:
    data: bytes


def boundary_of(content_type: str) -> bytes:
    """Read the boundary of a form. Raises BadForm."""
    _check_parameters(content_type.count(";"))
    message = Message()
    message["Content-Type"] = content_type
    boundary = message.get_boundary()
    if message.get_content_type() != "multipart/form-data" or not boundary or len(boundary) > _MAX_BOUNDARY_CHARS:
        raise BadForm("Send the file as multipart/form-data.")
    return boundary.encode("utf-8", "surrogateescape")


class FormSplitter:
    """Splits one body. The places at which it was cut into chunks make no difference."""

    def __init__(self, boundary: bytes) -> None:
        self._delimiter = b"\r\n--" + boundary
        self._rest = bytearray(b"\r\n")  # so that the first delimiter looks like the others
        self._is_in_part = False
        self._num_parts = 0
        self.has_ended = False
        """Whether the closing delimiter has come. Bytes behind it are ignored."""

    def feed(self, chunk: bytes) -> Iterator[PartBegins | PartData]:
        """Raises BadForm."""
        if self.has_ended:
            return
        rest = self._rest
        rest += chunk
        while not self.has_ended:
            end = rest.find(self._delimiter)
            if end < 0:
                sure = len(rest) - len(self._delimiter) + 1  # bytes that cannot be the start of a delimiter
                if sure > 0:
                    yield from self._data(sure)
                return
            after = end + len(self._delimiter)
            if len(rest) < after + 2:
                return
            if rest[after : after + 2] == b"--":
                yield from self._data(end)
                self.has_ended = True
                return
            head_end = rest.find(b"\r\n\r\n", after)
            if (len(rest) if head_end < 0 else head_end) - after > MAX_HEADER_BYTES:
                raise BadForm(f"The headers of a part are longer than {MAX_HEADER_BYTES:,} bytes.")
            if head_end < 0:
                return
            head = bytes(rest[after:head_end])
            yield from self._data(end)
            del rest[: head_end + 4 - end]
            self._is_in_part = True
            self._num_parts += 1
            if self._num_parts > MAX_PARTS:
                raise BadForm(f"The form has more than {MAX_PARTS} parts.")
            yield _part(head)

    def _data(self, size: int) -> Iterator[PartData]:
        data = bytes(self._rest[:size])
        del self._rest[:size]
        if self._is_in_part and data:
            yield PartData(data)


def _check_parameters(num: int) -> None:
    if num > MAX_PARAMETERS:
        raise BadForm(f"A header of the form has more than {MAX_PARAMETERS} parameters.")


def _part(head: bytes) -> PartBegins:
    _check_parameters(head.count(b";"))
    headers = HeaderParser().parsestr(head.decode(errors="replace").lstrip())
    name = headers.get_param("name", header="content-disposition")
    if not isinstance(name, str):
        raise BadForm("A part has no name.")
    return PartBegins(name, headers.get_filename(), len(head))
