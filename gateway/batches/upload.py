"""The contents of files on disk: written under a temporary name, and there as a whole or not at all."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from email.message import Message
from email.parser import HeaderParser
from pathlib import Path
from typing import IO

from gateway.batches import asked
from gateway.batches.front import PURPOSES
from gateway.batches.objects import File, new_id
from gateway.batches.store import Store
from gateway.core.transport import BodyTooLarge, Request

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


# ---- cuts a multipart/form-data body into its parts, as it comes. No I/O (RFC 7578)

MAX_HEADER_BYTES = 16 * 1024
MAX_PARAMETERS = 64
"""Of one header: the standard library reads them in time that grows with their square."""
_MAX_BOUNDARY_CHARS = 70


class BadForm(Exception):
    """The body is no such form; the text says why."""


@dataclass(frozen=True, slots=True)
class PartBegins:
    name: str
    filename: str | None
    """None: a plain field."""
    head_bytes: int


@dataclass(frozen=True, slots=True)
class PartData:
    data: bytes


def boundary_of(content_type: str) -> bytes:
    """Raises BadForm."""
    _check_parameters(content_type.count(";"))
    message = Message()
    message["Content-Type"] = content_type
    boundary = message.get_boundary()
    if message.get_content_type() != "multipart/form-data" or not boundary or len(boundary) > _MAX_BOUNDARY_CHARS:
        raise BadForm("Send the file as multipart/form-data.")
    return boundary.encode("utf-8", "surrogateescape")


class FormSplitter:
    """One body. How it was cut into chunks makes no difference."""

    def __init__(self, boundary: bytes) -> None:
        self._delimiter = b"\r\n--" + boundary
        self._rest = bytearray(b"\r\n")  # so that the first delimiter looks like the others
        self._is_in_part = False
        self.has_ended = False
        """Whether the closing delimiter has come; what follows it is nothing."""

    def feed(self, chunk: bytes) -> Iterator[PartBegins | PartData]:
        """Raises BadForm."""
        if self.has_ended:
            return
        rest = self._rest
        rest += chunk
        while not self.has_ended:
            end = rest.find(self._delimiter)
            if end < 0:
                sure = len(rest) - len(self._delimiter) + 1  # what cannot be the start of a delimiter
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


# ---- takes a file from a form to the disk as it comes; nothing of it is held

MAX_FIELD_BYTES = 4096
FORM_BYTES = 64 * 1024
"""Of a form beside its file."""
MAX_NAME_CHARS = 255


@dataclass(slots=True)
class Form:
    fields: dict[str, bytes]
    filename: str | None = None
    """None: there was no file."""


async def upload(request: Request, tenant: str, store: Store, blobs: Blobs, max_bytes: int, now: int) -> File:
    """The file, announced. Raises Refused."""
    async with blobs.new() as spool:
        try:
            form = await _read(request, spool, max_bytes)
        except BadForm as error:
            asked.refuse(str(error))
        except BodyTooLarge:
            text = f"The file is larger than {max_bytes:,} bytes (batches.file_bytes)."
            asked.refuse(text, "file", status=413, code="file_too_large")
        if form.filename is None:
            asked.missing("file")
        values = {name: value.decode(errors="replace") for name, value in form.fields.items()}
        purpose = values.get("purpose") or asked.missing("purpose")
        if purpose not in PURPOSES:
            text = f"'{purpose}' is not one of {list(PURPOSES)}."
            asked.refuse(text, "purpose", code="invalid_value")
        expires_s = _expires_s(values, purpose)
        await spool.keep()
        file = File(
            id=spool.file_id,
            tenant=tenant,
            purpose=purpose,
            filename=form.filename,
            size_bytes=spool.size_bytes,
            created_at=now,
            expires_at=None if expires_s is None else now + expires_s,
        )
        await store.add_file(file)
        return file


async def _read(request: Request, spool: Spool, max_bytes: int) -> Form:
    """Raises BadForm, BodyTooLarge."""
    splitter = FormSplitter(boundary_of(request.headers.get("content-type", "")))
    form, name, beside_bytes = Form({}), "", 0
    async for chunk in request.chunks(max_bytes + FORM_BYTES):
        for event in splitter.feed(chunk):
            if isinstance(event, PartBegins):
                name = event.name
                beside_bytes += event.head_bytes
                if name == "file":
                    form.filename = _base_name(event.filename)
                else:
                    form.fields[name] = b""
            elif name == "file":
                await spool.write(event.data)
                if spool.size_bytes > max_bytes:
                    raise BodyTooLarge
            else:
                form.fields[name] += event.data
                beside_bytes += len(event.data)
                if len(form.fields[name]) > MAX_FIELD_BYTES:
                    raise BadForm(f"The field '{name}' is too long.")
            if beside_bytes > FORM_BYTES:
                raise BadForm(f"What stands beside the file in the form is longer than {FORM_BYTES:,} bytes.")
    if not splitter.has_ended:
        raise BadForm("The form ends before its last boundary.")
    return form


def _base_name(filename: str | None) -> str:
    return (filename or "upload").replace("\\", "/").rpartition("/")[2][-MAX_NAME_CHARS:]


def _expires_s(values: dict[str, str], purpose: str) -> int | None:
    policy = {
        key: values[f"expires_after[{key}]"] for key in ("anchor", "seconds") if f"expires_after[{key}]" in values
    }
    if policy:
        return asked.expires_s(policy, "expires_after")
    return asked.BATCH_FILE_EXPIRES_S if purpose == "batch" else None
