"""Cuts a multipart/form-data body into its parts, as it comes. No I/O (RFC 7578)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from email.message import Message
from email.parser import HeaderParser

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
