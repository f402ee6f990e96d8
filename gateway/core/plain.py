"""Copies of JSON texts in which msgspec finds the end of a value several times as fast as in the texts."""

from __future__ import annotations

from gateway.core.joining import joined_bytes
from gateway.core.slices import Steps
from gateway.core.values import sampled, whole_escapes

PIECE_BYTES = 256 * 1024
"""Copied in one step. A shorter text is not copied."""
_SAMPLE_BYTES = 1024
FEW_ESCAPES = 1 / 64
"""Of the bytes of a text: about a tenth of a scan then goes to them."""
MUCH_SPACE = 0.6
"""Of the bytes of a text. Indented code has about a third."""
_SPACES = bytes.maketrans(b"\t\r\n", b"   ")
_RUNS = (b" " * 64, b" " * 8, b" " * 2)


def without_escapes(raw: bytes) -> Steps[bytes]:
    """Return a text of the same length and shape in which ordinary characters stand for escapes; the text itself
    where a sample has few of them."""
    sample = _sample(raw)
    if sample.count(b"\\") < FEW_ESCAPES * len(sample) or not sample:
        return raw
    return (yield from _without_escapes(raw))


def _without_escapes(raw: bytes) -> Steps[bytes]:
    plain = list[bytes]()
    for piece in whole_escapes(raw, PIECE_BYTES):
        plain.append(piece.replace(b"\\\\", b"__").replace(b'\\"', b"__").replace(b"\\", b"_"))
        yield
    return (yield from joined_bytes(plain))


def without_spaces(raw: bytes) -> Steps[bytes]:
    """Return a text with the same values and little space between them; the text itself where a sample has less.
    What is no JSON stays so."""
    sample = _sample(raw)
    if len(sample) - len(sample.translate(None, b" \t\r\n")) <= MUCH_SPACE * len(sample):
        return raw
    plain = yield from _without_escapes(raw)
    kept, at, in_string = list[bytes](), 0, False
    for start in range(0, len(raw), PIECE_BYTES):
        for number, part in enumerate(plain[start : start + PIECE_BYTES].split(b'"')):
            if number:
                kept.append(b'"')
                at, in_string = at + 1, not in_string
            kept.append(raw[at : at + len(part)] if in_string else _squeezed(part))
            at += len(part)
        yield
    return (yield from joined_bytes(kept))


def _squeezed(part: bytes) -> bytes:
    """Return what is between two strings with its runs of space as one or a few. No run goes: two numbers would be
    one."""
    if len(part) > len(_RUNS[-1]):
        part = part.translate(_SPACES)
        for run in _RUNS:
            part = part.replace(run, b" ")
    return part


def _sample(raw: bytes) -> bytes:
    """Return a sample of a long text; nothing of a short one."""
    return sampled(raw, _SAMPLE_BYTES) if len(raw) > PIECE_BYTES else b""
