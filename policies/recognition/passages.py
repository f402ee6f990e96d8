"""Passages of text: what stays equal when a client quotes it, escapes it once more, or puts a role before it."""

from __future__ import annotations

_EDGES = b"\\ "
_LEAST_BYTES = 12
"""A shorter passage occurs by chance."""
OPENING_BYTES = 4096
_ANSWER_BYTES = 2048
_ANSWER_PASSAGES = 4
_ERRAND_BYTES = 4096
_ERRAND_PASSAGES = 16
_LEAST_SPACES = 3


def passages(text: bytes) -> list[int]:
    """Return hashes of the passages between line breaks, quotes and colons of JSON text.

    A hash stays equal when a client quotes the text, escapes it once more, or puts a role before it.
    """
    return list(map(hash, _parts(text)))


def opening(message: bytes) -> tuple[int, ...]:
    """Return the first passage in the first OPENING_BYTES of a message, if there is one."""
    for part in _lines(message[:OPENING_BYTES]):
        if len(part) >= _LEAST_BYTES and len(part := part.strip(_EDGES)) >= _LEAST_BYTES:
            return (hash(part),)
    return ()


def latest(answer: bytes) -> tuple[int, ...]:
    """Return the last passages of a turn's answer."""
    return last(answer, _ANSWER_BYTES, _ANSWER_PASSAGES)


def last(text: bytes, num_bytes: int, count: int) -> tuple[int, ...]:
    """Return the last passages in the last bytes of a text, without one that is cut off there."""
    found = _parts(text[-num_bytes:])
    is_cut = len(text) > num_bytes and len(found) > 1
    return tuple(map(hash, found[is_cut:][-count:]))


def errand(arguments: bytes) -> tuple[int, ...]:
    """Return the passages of the longest text in a tool call's arguments, the longest first: they are the task of
    an agent that the tool starts. Nothing of a text that has fewer than four words."""
    if arguments.count(b" ") < _LEAST_SPACES and arguments.isascii():
        return ()
    text = max(arguments[:_ERRAND_BYTES].split(b'"'), key=len)
    if len(text) < _LEAST_BYTES or (text.count(b" ") < _LEAST_SPACES and text.isascii()):
        return ()
    parts = sorted(_parts(text), key=len, reverse=True)
    return tuple(map(hash, parts[:_ERRAND_PASSAGES]))


def _parts(text: bytes) -> list[bytes]:
    return [own for part in _lines(text) if len(own := part.strip(_EDGES)) >= _LEAST_BYTES]


def _lines(text: bytes) -> list[bytes]:
    text = text.replace(b"\\n", b"\n").replace(b"\\r", b"\n").replace(b"\\t", b"\n")
    return text.replace(b'"', b"\n").replace(b": ", b"\n").split(b"\n")
