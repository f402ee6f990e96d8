"""How many values a JSON text has, counted without parsing it.

An empty list takes twenty times its text in memory, and an object more. So a body within its bound in bytes could
take a gigabyte, and hold the interpreter for half a second.
"""

from __future__ import annotations

from collections.abc import Iterator

OF_A_CONTAINER = 5
"""A list or an object counts as so many values: it takes about as much more time and memory."""
STEP_BYTES = 256 * 1024
_BACKSLASH = b"\\"


def may_be_more(raw: bytes, most: int) -> bool:
    """Return whether a text of this length can have more than `most` values at all."""
    return len(raw) > 2 * most // OF_A_CONTAINER  # the two brackets of one


def counted(raw: bytes) -> Iterator[int]:
    """Yield the values in each longer part of a text. One that is no JSON has any number.

    Counted are commas outside strings, and the brackets that open a list or an object.
    """
    num, start, in_string = 0, 0, False
    while start < len(raw):
        piece = raw[start : start + STEP_BYTES]
        if (len(piece) - len(piece.rstrip(_BACKSLASH))) % 2 and start + len(piece) < len(raw):
            piece = piece[:-1] or raw[start : start + 2]  # no escape is cut
        start += len(piece)
        parts = piece.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')
        between = b"".join(parts[in_string::2])
        in_string ^= len(parts) % 2 == 0
        num += between.count(b",") + OF_A_CONTAINER * (between.count(b"[") + between.count(b"{"))
        yield num
