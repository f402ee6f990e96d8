"""Hash chains over canonical prompts: one link per message, one per 512-character block.

A link is a hash of the link before it and of its own text, so two chains agree exactly as far as their prompts do.
The first link holds a key, so chains of different keys never agree: that of messages is a tenant's, whatever the
model, the system text and the tools, which a client may change within a session; that of blocks is a tenant's on
one model, as caches are. Links use the hash of the
interpreter, which has another key in each process and takes a tenth of the time of blake2b, and never leave the
process. Ids that leave it are made by `digest`. Characters are counted in UTF-8 bytes.
"""

from __future__ import annotations

import math
from array import array
from collections import OrderedDict
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from hashlib import blake2b
from itertools import repeat
from typing import TypeAlias, overload

from policies.types import BLOCK_CHARS, value

Chain: TypeAlias = "array[int]"


def digest(key: bytes, *parts: bytes) -> int:
    """Return a 64-bit hash of the parts and of where each one ends. `key`: at most 64 bytes."""
    hasher = blake2b(key=key, digest_size=8)
    for part in parts:
        hasher.update(len(part).to_bytes(8, "big"))
        hasher.update(part)
    return int.from_bytes(hasher.digest(), "big")


def name(key: bytes, *parts: bytes) -> str:
    """Return the digest as 16 hexadecimal digits."""
    return digits(digest(key, *parts))


def digits(number: int) -> str:
    """Return 64 bits as 16 hexadecimal digits."""
    return f"{number & 0xFFFF_FFFF_FFFF_FFFF:016x}"


def own_name(*parts: bytes | int) -> str:
    """Return an id that only this process gives, as 16 hexadecimal digits."""
    return digits(hash(parts))


def own_key(tenant: int, passage: int) -> int:
    """Return the key of a passage in the indexes of one tenant."""
    return hash((tenant, passage))


def own_keys(tenant: int, passages: Iterable[int]) -> list[int]:
    """Return the `own_key` of each passage."""
    return list(map(hash, zip(repeat(tenant), passages, strict=False)))


def message_links(key: bytes, messages: Sequence[bytes], known: Links | None = None) -> Links:
    """Return the links of a prompt. `known`: those of its beginning."""
    if known is None:
        chain, hashes = array("q", (hash(key),)), array("q")
    else:
        chain, hashes = known.chain[:], known.hashes[:]
    root, last = chain[0], chain[-1]
    for part in messages[len(hashes) :]:
        own = hash((root, part))
        hashes.append(own)
        last = hash((last, own))
        chain.append(last)
    return Links(chain, hashes)


def block_chain(key: bytes, parts: Iterable[bytes], known: Sequence[int] = (), skipped: int = 0) -> Chain:
    """Return one link per whole block of the joined parts. The text after the last whole block has none.

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


STEP_BYTES = 256 * 1024
"""Of a long text, what is hashed in one step."""


def block_chain_in_steps(
    key: bytes, parts: Iterable[bytes], known: Sequence[int] = (), skipped: int = 0
) -> Generator[None, None, Chain]:
    """As `block_chain`, in steps of at most STEP_BYTES, and without a copy of all parts."""
    links = array("q", known)
    last = known[-1] if known else hash(key)
    skipped, rest = len(known) * BLOCK_CHARS - skipped, b""
    for part in parts:
        for start in range(skipped, len(part), STEP_BYTES):
            text = rest + part[start : start + STEP_BYTES]
            end = len(text) // BLOCK_CHARS * BLOCK_CHARS
            for at in range(0, end, BLOCK_CHARS):
                last = hash((last, text[at : at + BLOCK_CHARS]))
                links.append(last)
            rest = text[end:]
            yield
        skipped = max(0, skipped - len(part))
    return links


def digest_in_steps(key: bytes, *parts: bytes) -> Generator[None, None, int]:
    """As `digest`, in steps of at most STEP_BYTES."""
    hasher = blake2b(key=key, digest_size=8)
    for part in parts:
        hasher.update(len(part).to_bytes(8, "big"))
        for start in range(0, len(part), STEP_BYTES):
            hasher.update(part[start : start + STEP_BYTES])
            yield
    return int.from_bytes(hasher.digest(), "big")


def common(one: Sequence[int], other: Sequence[int]) -> int:
    """Return how many links two chains share. A binary search finds it: chains that agree at one link agree
    before."""
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


# ---- the canonical messages of a prompt, each written when it is read

Sizes: TypeAlias = "array[int]"


@value
class Links:
    """The messages of a prompt, hashed; shared, never changed."""

    chain: Chain
    """One link for the key, then one per message."""
    hashes: Chain
    """One per message, of it alone and of the key."""


@value
class Known:
    """The beginning of a prompt that was hashed before; shared, never changed."""

    links: Links
    sizes: Sizes
    """Bytes of its messages."""


class Texts(Sequence[bytes]):
    """A tuple of the texts, which are written on demand. `write(index)` returns the text of a message."""

    def __init__(
        self,
        count: int,
        write: Callable[[int], bytes],
        write_in_steps: Callable[[int], Generator[None, None, bytes]] | None = None,
        begin: Callable[[int], bytes] | None = None,
    ) -> None:
        """`write_in_steps`: the same, of a message that may be long. `begin`: returns what a text begins with, its
        speaker; None: it is written for that."""
        self._texts: list[bytes | None] = [None] * count
        self._write = write
        self._write_in_steps = write_in_steps
        self._begin = begin or write
        self._sizes = array("I")
        self.fingerprints: Sequence[int] = ()
        """One for each beginning of the prompt, shortest first. Two are equal only where key and messages are,
        byte for byte. Empty: not known."""

    def know(self, known: Known) -> None:
        """Take in that the first messages are these."""
        self._sizes = array("I", known.sizes)

    @property
    def sizes(self) -> Sizes:
        """Bytes of each message. Only messages of unknown size are written for that."""
        if len(self._sizes) < len(self._texts):
            self._sizes.extend(map(len, self[len(self._sizes) :]))
        return self._sizes

    def in_steps(self, at: int) -> Generator[None, None, bytes]:
        """Return a text, written in steps."""
        if self._texts[at] is None and self._write_in_steps is not None:
            self._texts[at] = yield from self._write_in_steps(at)
        return self[at]

    def beginning(self, at: int) -> bytes:
        """Return the text, or its beginning where that is not written."""
        return self._texts[at] or self._begin(at)

    def __len__(self) -> int:
        return len(self._texts)

    @overload
    def __getitem__(self, at: int) -> bytes: ...
    @overload
    def __getitem__(self, at: slice) -> tuple[bytes, ...]: ...
    def __getitem__(self, at: int | slice) -> bytes | tuple[bytes, ...]:
        found = self._texts[at]
        if type(found) is bytes:
            return found
        if isinstance(at, slice):
            if None in found:  # type: ignore[operator]  # a list of a slice
                for index in range(*at.indices(len(self._texts))):
                    if self._texts[index] is None:
                        self._texts[index] = self._write(index)
                found = self._texts[at]
            return tuple(found)  # type: ignore[arg-type]  # all are written now
        text = self._texts[at] = self._write(range(len(self._texts))[at])
        return text

    def __iter__(self) -> Iterator[bytes]:
        return iter(self[:])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    __hash__ = None  # type: ignore[assignment]


def size_of(messages: Sequence[bytes], stop: int | None = None) -> int:
    """Return the bytes of the first `stop` messages; without it, of all. A text of known size is not written."""
    sizes = messages.sizes if type(messages) is Texts else array("I", map(len, messages))
    return sum(sizes[:stop])


LINK_BYTES = 8
"""Of one link, one hash, or one block of a chain."""
_BEGINNING_BYTES = 400
"""Of a `Known` and its place in a table, without its numbers."""


class Beginnings:
    """Links of the latest prompts, by the fingerprint of their raw text; at most `limit`, and `max_bytes`."""

    def __init__(self, limit: int, max_bytes: float = math.inf) -> None:
        self._limit = limit
        self._max_bytes = max_bytes
        self.num_bytes = 0
        """As if no conversation held the same links."""
        self._known: OrderedDict[int, Known] = OrderedDict()

    def links(self, key: bytes, messages: Sequence[bytes]) -> Links:
        """Return the `message_links`. Of a conversation that grew only the new end is hashed."""
        if type(messages) is not Texts or not messages.fingerprints:
            return message_links(key, messages)
        known = self._longest(messages.fingerprints)
        if known is not None:
            messages.know(known)
        links = message_links(key, messages, known.links if known is not None else None)
        self._keep(messages.fingerprints[-1], Known(links, messages.sizes))
        return links

    def longest(self, messages: Sequence[bytes]) -> Known | None:
        """Return the longest known beginning of a prompt."""
        fingerprints = messages.fingerprints if type(messages) is Texts else ()
        known = (self._known.get(fingerprint) for fingerprint in reversed(fingerprints))
        return next((one for one in known if one is not None), None)

    def _longest(self, fingerprints: Sequence[int]) -> Known | None:
        """Return the longest known beginning of a prompt. The prompt replaces it, since siblings that go on from
        one prompt are rare."""
        for at in range(len(fingerprints) - 1, -1, -1):
            known = self._known.get(fingerprints[at])
            if known is not None:
                if at < len(fingerprints) - 1:
                    self.num_bytes -= _size_bytes(self._known.pop(fingerprints[at]))
                return known
        return None

    def _keep(self, fingerprint: int, known: Known) -> None:
        if (before := self._known.get(fingerprint)) is not None:
            self.num_bytes -= _size_bytes(before)
        self._known[fingerprint] = known
        self.num_bytes += _size_bytes(known)
        self._known.move_to_end(fingerprint)
        while len(self._known) > self._limit or self.num_bytes > self._max_bytes:
            self.num_bytes -= _size_bytes(self._known.popitem(last=False)[1])


def _size_bytes(known: Known) -> int:
    return _BEGINNING_BYTES + (2 * LINK_BYTES + known.sizes.itemsize) * len(known.sizes)
