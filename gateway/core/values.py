"""How many values a JSON text has, counted without parsing it.

An empty list takes twenty times its text in memory, and an object more. So a body within its bound in bytes could
take a gigabyte, and hold the interpreter for half a second.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator

OF_A_CONTAINER = 5
"""A list or an object counts as so many values: it takes about as much more time and memory."""
STEP_BYTES = 64 * 1024
_BACKSLASH = b"\\"
SAMPLES, _SAMPLE_BYTES = 32, 512
_OBJECT_BYTES, _BRACKET_BYTES, _COMMA_BYTES = 300, 32, 10
"""A text with more of these is not sparse. Program text and JSON inside of strings have fewer."""
_OBJECT = re.compile(rb'\{\s*"')


def sampled(raw: bytes | memoryview, num_bytes: int) -> bytes:
    """Return SAMPLES parts of a text, each of so many bytes, at random places: no client knows where they are."""
    starts = (random.randrange(max(1, len(raw) - num_bytes)) for _ in range(SAMPLES))  # noqa: S311  # no secret
    return b"".join([raw[start : start + num_bytes] for start in starts])


def whole_escapes(raw: bytes, num_bytes: int) -> Iterator[bytes]:
    """Yield a text in pieces of so many bytes, or one less or more: no escape is cut."""
    start = 0
    while start < len(raw):
        piece = raw[start : start + num_bytes]
        if (len(piece) - len(piece.rstrip(_BACKSLASH))) % 2 and start + len(piece) < len(raw):
            piece = piece[:-1] or raw[start : start + 2]
        start += len(piece)
        yield piece


def is_sparse(raw: bytes) -> bool:
    """Return whether a text is mostly long strings, as the history of an agent is, by a sample of it."""
    sample = sampled(raw, _SAMPLE_BYTES) if len(raw) > SAMPLES * _SAMPLE_BYTES else raw
    return (
        len(_OBJECT.findall(sample)) * _OBJECT_BYTES <= len(sample)
        and (sample.count(b"[") + sample.count(b"{")) * _BRACKET_BYTES <= len(sample)
        and sample.count(b",") * _COMMA_BYTES <= len(sample)
    )


def may_be_more(raw: bytes, most: int, is_seen_sparse: bool = False) -> bool:
    """Return whether a text can have more than `most` values at all, by its length, and by a sample if it has no
    more than two bytes for each. `is_seen_sparse`: a sample has been taken."""
    if len(raw) <= 2 * most // OF_A_CONTAINER:
        return False
    return len(raw) > 2 * most or not (is_seen_sparse or is_sparse(raw))


def counted(raw: bytes) -> Iterator[int]:
    """Yield the values in each longer part of a text. One that is no JSON has any number.

    Counted are commas outside strings, and the brackets that open a list or an object.
    """
    num, in_string = 0, False
    for piece in whole_escapes(raw, STEP_BYTES):
        parts = piece.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')
        between = b"".join(parts[in_string::2])
        in_string ^= len(parts) % 2 == 0
        num += between.count(b",") + OF_A_CONTAINER * (between.count(b"[") + between.count(b"{"))
        yield num
