"""Hash chains over canonical prompts: one link per message, one per 512-character block.

A link is a hash of the link before it and of what it adds, so two chains agree exactly as far as their prompts do;
the first holds a key, so chains of different keys (tenants, models) never agree. Links are made with the
interpreter's own hash, which is keyed anew in each process and takes a tenth of the time of blake2b: they never
leave the process. What does is made by `digest`. Characters are counted in UTF-8 bytes.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import TypeAlias

from policies.types import BLOCK_CHARS

Chain: TypeAlias = "array[int]"


def digest(key: bytes, *parts: bytes) -> int:
    """A 64-bit hash of the parts and of where each one ends. `key`: at most 64 bytes."""
    hasher = blake2b(key=key, digest_size=8)
    for part in parts:
        hasher.update(len(part).to_bytes(8, "big"))
        hasher.update(part)
    return int.from_bytes(hasher.digest(), "big")


def name(key: bytes, *parts: bytes) -> str:
    """The same hash as 16 hexadecimal digits."""
    return f"{digest(key, *parts):016x}"


def own_name(*parts: bytes | int) -> str:
    """An id that only this process gives, as 16 hexadecimal digits."""
    return f"{hash(parts) & 0xFFFF_FFFF_FFFF_FFFF:016x}"


def message_chain(key: bytes, system: bytes, messages: Sequence[bytes], known: Sequence[int] = ()) -> Chain:
    """One link for the system text, then one per message. `known`: the first links, see `block_chain`."""
    links = array("q", known or (hash((key, system)),))
    last = links[-1]
    for part in messages[len(links) - 1 :]:
        last = hash((last, part))
        links.append(last)
    return links


def block_chain(key: bytes, parts: Iterable[bytes], known: Sequence[int] = (), skipped: int = 0) -> Chain:
    """One link per whole block of the joined parts; the rest after the last whole block has none.

    `known`: the first links, when the caller has verified that the text under them is the same. `skipped`:
    characters before `parts`, all of them under `known`.
    """
    text = b"".join(parts)
    links = array("q", known)
    last = known[-1] if known else hash(key)
    for start in range(len(known) * BLOCK_CHARS - skipped, len(text) - BLOCK_CHARS + 1, BLOCK_CHARS):
        last = hash((last, text[start : start + BLOCK_CHARS]))
        links.append(last)
    return links


def common(one: Sequence[int], other: Sequence[int]) -> int:
    """How many links two chains share; a binary search, because agreeing chains agree everywhere before."""
    low, high = 0, min(len(one), len(other))
    if high and one[high - 1] == other[high - 1]:
        return high
    while low < high:
        middle = (low + high + 1) // 2
        if one[middle - 1] == other[middle - 1]:
            low = middle
        else:
            high = middle - 1
    return low
