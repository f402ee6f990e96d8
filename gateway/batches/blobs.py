"""The contents of files on disk: written under a temporary name, and there as a whole or not at all."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import IO

from gateway.batches.objects import new_id

CHUNK_BYTES = 2**20
_UNFINISHED = ".part"


class Blobs:
    """One directory; a file's content has the file's id as its name."""

    def __init__(self, directory: Path, grace_s: float = 0.0, now: Callable[[], float] = time.time) -> None:
        """`grace_s`: how long what is written stays, whatever is said of it. 0: nobody else writes here."""
        self._directory = directory
        self._grace_s = grace_s
        self._now = now
        self._being_written: set[str] = set()

    async def start(self) -> None:
        """Make the directory, and clear it of what a killed process left half written. Raises OSError."""
        await asyncio.to_thread(self._start)

    def path(self, file_id: str) -> Path:
        return self._directory / file_id

    @asynccontextmanager
    async def new(self) -> AsyncIterator[Spool]:
        """A content that is being written. Announce the file before leaving: after that nothing protects it."""
        spool = Spool(new_id("file-"), self._directory)
        self._being_written.add(spool.file_id)
        try:
            spool.open()
            yield spool
        finally:
            spool.close()
            self._being_written.discard(spool.file_id)

    async def chunks(self, file_id: str) -> AsyncIterator[bytes]:
        """Raises FileNotFoundError."""
        file = await asyncio.to_thread(self.path(file_id).open, "rb")
        try:
            while chunk := await asyncio.to_thread(file.read, CHUNK_BYTES):
                yield chunk
        finally:
            file.close()

    async def keep_only(self, in_use: Callable[[], Awaitable[Collection[str]]]) -> None:
        """Remove all other contents. The order is the law: what is there is looked at first, then what is being
        written, and last what is announced, so that nothing is taken for waste on its way from one to the next."""
        paths = await asyncio.to_thread(lambda: list(self._directory.iterdir()))
        kept = {*self._being_written}
        kept.update(await in_use())
        await asyncio.to_thread(self._remove, [path for path in paths if path.stem not in kept])

    def _start(self) -> None:
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._remove([path for path in self._directory.iterdir() if path.suffix == _UNFINISHED])

    def _remove(self, paths: Iterable[Path]) -> None:
        for path in paths:
            with suppress(FileNotFoundError):
                if not self._grace_s or path.stat().st_mtime < self._now() - self._grace_s:
                    path.unlink()


class Spool:
    """Collects what is written into chunks for the disk. Without `keep` nothing stays."""

    def __init__(self, file_id: str, directory: Path) -> None:
        self.file_id = file_id
        self.size_bytes = 0
        self._path = directory / file_id
        self._part = directory / (file_id + _UNFINISHED)
        self._buffer = bytearray()
        self._file: IO[bytes] | None = None

    def open(self) -> None:
        """Not in a thread: a caller that is cancelled meanwhile would leave the file open."""
        self._file = self._part.open("wb")

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
        self._part.unlink(missing_ok=True)

    async def write(self, data: bytes) -> None:
        self.size_bytes += len(data)
        self._buffer += data
        if len(self._buffer) >= CHUNK_BYTES:
            await self._flush()

    async def keep(self) -> None:
        """From here on the content is there, also after a crash."""
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
