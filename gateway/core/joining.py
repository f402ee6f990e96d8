"""Long texts made of pieces, in steps.

The memory of a long text is new, and each of its pages comes from the system with its first byte: half a
millisecond a megabyte, on some virtual machines two. A join touches all of them in one step.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Sequence

from gateway.core.slices import Steps

STEP_CHARS = 256 * 1024
"""Copied in one step."""
_ASCII, _LATIN, _BASIC, _ALL = 0x7F, 0xFF, 0xFFFF, 0x10FFFF
"""The last characters that take one, one, two and four bytes. In a str all take as many as its widest one."""
_NOT_LATIN, _NOT_BASIC = re.compile("[^\0-\xff]"), re.compile("[^\0-\uffff]")

_new_str = ctypes.pythonapi.PyUnicode_New
_new_str.argtypes, _new_str.restype = (ctypes.c_ssize_t, ctypes.c_uint32), ctypes.py_object
_copy_chars = ctypes.pythonapi.PyUnicode_CopyCharacters
# The target by its address: a str may be written while nothing but one variable refers to it.
_copy_chars.argtypes = (ctypes.c_void_p, ctypes.c_ssize_t, ctypes.py_object, ctypes.c_ssize_t, ctypes.c_ssize_t)
_copy_chars.restype = ctypes.c_ssize_t
_new_bytes = ctypes.pythonapi.PyBytes_FromStringAndSize
_new_bytes.argtypes, _new_bytes.restype = (ctypes.c_void_p, ctypes.c_ssize_t), ctypes.py_object
_address = ctypes.pythonapi.PyBytes_AsString
_address.argtypes, _address.restype = (ctypes.py_object,), ctypes.c_void_p


def joined_str(pieces: Sequence[str]) -> Steps[str]:
    """Return all pieces as one, at most STEP_CHARS in one step."""
    num_chars = sum(map(len, pieces))
    if num_chars <= STEP_CHARS or len(pieces) == 1:
        return "".join(pieces)
    last = _ASCII
    for piece in pieces:
        for start in range(0, len(piece), STEP_CHARS):
            last = max(last, _last_char(piece, start, last))
            yield
    text: str = _new_str(num_chars, last)
    at = 0
    for piece in pieces:
        for start in range(0, len(piece), STEP_CHARS):
            at += _copy_chars(id(text), at, piece, start, STEP_CHARS)
            yield
    return text


def _last_char(piece: str, start: int, known: int) -> int:
    """Return the last character of the kind of text that a part of a piece is, if that is wider than what is
    known."""
    end = start + STEP_CHARS
    if known == _ALL or piece.isascii():
        return _ASCII
    if _NOT_BASIC.search(piece, start, end):
        return _ALL
    if known < _BASIC and _NOT_LATIN.search(piece, start, end):
        return _BASIC
    return _LATIN


def joined_bytes(pieces: Sequence[bytes]) -> Steps[bytes]:
    """Return all pieces as one, about STEP_CHARS in one step if none is longer."""
    num_bytes = sum(map(len, pieces))
    if num_bytes <= STEP_CHARS or len(pieces) == 1:
        return b"".join(pieces)
    text: bytes = _new_bytes(None, num_bytes)
    to, copied = _address(text), 0
    for piece in pieces:
        ctypes.memmove(to, piece, len(piece))
        to, copied = to + len(piece), copied + len(piece)
        if copied >= STEP_CHARS:
            copied = 0
            yield
    return text


def encoded(text: str) -> Steps[bytes]:
    """Return a text in UTF-8, STEP_CHARS in one step. Raises UnicodeEncodeError."""
    if len(text) <= STEP_CHARS:
        return text.encode()
    pieces = []
    for start in range(0, len(text), STEP_CHARS):
        pieces.append(text[start : start + STEP_CHARS].encode())
        yield
    return (yield from joined_bytes(pieces))
