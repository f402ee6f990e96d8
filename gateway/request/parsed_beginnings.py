"""The parsed beginnings of large bodies: of a growing conversation only what is new is parsed.

A turn begins with the bytes of the turn before, up to the end of the messages that they share. Those messages are
taken out of the text, a mark stands in their place while the rest is parsed, and then they are put back. Without
msgspec (extra `fast`) every body is parsed in whole.
"""

from __future__ import annotations

import re
import secrets
from array import array
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from sys import getsizeof
from typing import Any

import orjson

from gateway.core.pieces import Raw, RawParts
from gateway.core.slices import LARGE_BYTES
from gateway.sessions.identity import Cutter

BLOCK_BYTES = 64 * 1024
"""Beginnings are found by hashes of so many bytes."""
_BEGINNING_BYTES, _MESSAGE_BYTES, _LINK_BYTES = 800, 60, 200
"""Of a beginning and its places in tables, without messages; with each message; with each block."""
_MOST_VALUES = 10_000
"""A message with more is not kept, as counting its bytes takes time."""

_LIST = re.compile(rb'"messages"[ \t\r\n]*:[ \t\r\n]*\[[ \t\r\n]*')
_COMMA = re.compile(rb"[ \t\r\n]*,[ \t\r\n]*")
_MARK = secrets.token_hex(16)
"""No client knows it, so that it stands in one place only."""
_MARK_TEXT = orjson.dumps(_MARK)


@dataclass(frozen=True, slots=True, eq=False)
class _Beginning:
    """A body up to the end of its messages."""

    start: int
    """Of the first message."""
    ends: Sequence[int]
    messages: Sequence[Any]
    fingerprints: Sequence[int]
    sizes: Sequence[int]
    """Bytes of memory of each message."""
    links: Sequence[int]
    """A hash of each whole block and of what is before it."""

    @property
    def size_bytes(self) -> int:
        """As if no other beginning held the same messages."""
        own = _BEGINNING_BYTES + _MESSAGE_BYTES * len(self.ends) + _LINK_BYTES * len(self.links)
        return own + sum(self.sizes)


class ParsedBeginnings:
    """Parses bodies with `messages`, and keeps the latest beginnings, at most `max_bytes` of them.

    A tenant's are its own. Law: what `loads` returns or raises does not depend on what is kept.
    """

    def __init__(
        self, cutter: Cutter, max_bytes: int, least_bytes: int = LARGE_BYTES, block_bytes: int = BLOCK_BYTES
    ) -> None:
        """`cutter`: that of recognition. `least_bytes`: a smaller body is parsed in whole."""
        self._cutter = cutter
        self._max_bytes = max_bytes
        self._least_bytes = least_bytes
        self._block_bytes = block_bytes
        self.num_bytes = 0
        self._kept: OrderedDict[_Beginning, None] = OrderedDict()
        self._by_link: dict[int, _Beginning] = {}

    def loads(self, raw: bytes, tenant: str) -> tuple[Any, RawParts | None]:
        """Return the value of a body, and the fingerprints of its parts where they are known from that. Its
        messages are shared with other requests, and never changed. Raises orjson.JSONDecodeError."""
        if len(raw) < self._least_bytes or not self._cutter.is_fast:
            return orjson.loads(raw), None
        links = self._links(raw, tenant)
        for num_blocks in range(len(links), 0, -1):
            if (known := self._by_link.get(links[num_blocks - 1])) is not None:
                if (found := self._grown(raw, links, known, num_blocks * self._block_bytes)) is not None:
                    return found
                break
        return self._first(raw, links)

    def _links(self, raw: bytes, tenant: str) -> list[int]:
        fingerprint, size_bytes, view = self._cutter.fingerprint, self._block_bytes, memoryview(raw)
        links, last = [], hash(tenant)
        for end in range(size_bytes, len(raw) + 1, size_bytes):
            last = hash((last, fingerprint(view[end - size_bytes : end])))
            links.append(last)
        return links

    def _first(self, raw: bytes, links: Sequence[int]) -> tuple[Any, RawParts | None]:
        """Parse all of a body."""
        body = orjson.loads(raw)
        texts = self._cutter.texts(raw)
        if texts is None:
            return body, None
        parts = self._cutter.parts(texts.tools, texts.messages)
        if texts.messages and (place := _LIST.search(raw)) is not None:
            none = _Beginning(place.end(), (), (), (), (), ())
            self._keep(raw, links, none, texts.messages, body["messages"], parts.items)
        return body, parts

    def _grown(
        self, raw: bytes, links: Sequence[int], known: _Beginning, same_bytes: int
    ) -> tuple[Any, RawParts | None] | None:
        """Parse what is new of a body that begins with `same_bytes` of a known one; None where they share no
        message, and where only a parse of the whole body gives its value or its fault."""
        shared = self._shared(raw, known, same_bytes)
        if not shared.ends:
            return None
        view = memoryview(raw)
        text = b"".join((view[: shared.start], _MARK_TEXT, view[shared.ends[-1] :]))
        texts = self._cutter.texts(text)
        try:
            body = orjson.loads(text)
        except orjson.JSONDecodeError:
            return None
        # A key that is repeated may have another list.
        if texts is None or not (messages := body.get("messages")) or messages[0] != _MARK:
            return None
        body["messages"] = [*shared.messages, *messages[1:]]
        new = self._cutter.parts(texts.tools, texts.messages[1:])
        parts = RawParts(new.tools, [*shared.fingerprints, *new.items])
        self._kept.move_to_end(known)
        self._keep(raw, links, shared, texts.messages[1:], body["messages"], parts.items)
        return body, parts

    def _shared(self, raw: bytes, known: _Beginning, same_bytes: int) -> _Beginning:
        """Return what a body shares with a known beginning: the messages inside of their common blocks, and those
        behind with the same fingerprints."""
        num, view = bisect_right(known.ends, same_bytes), memoryview(raw)
        while num < len(known.ends):
            text = view[_begin(raw, known.start, known.ends[:num]) : known.ends[num]]
            if self._cutter.fingerprint(text) != known.fingerprints[num]:
                break
            num += 1
        return _Beginning(
            known.start, known.ends[:num], known.messages[:num], known.fingerprints[:num], known.sizes[:num], ()
        )

    def _keep(
        self,
        raw: bytes,
        links: Sequence[int],
        shared: _Beginning,
        texts: Sequence[Raw],
        messages: Sequence[Any],
        fingerprints: Sequence[int],
    ) -> None:
        """Keep the beginning of a body. `texts`: of the messages that follow those that it shares."""
        ends, sizes = array("I", shared.ends), array("I", shared.sizes)
        for number, text in enumerate(texts, len(ends)):
            begun, size_bytes = _begin(raw, shared.start, ends), _size_bytes(messages[number])
            if not size_bytes or not raw.startswith(text, begun):
                return
            ends.append(begun + len(text))
            sizes.append(size_bytes)
        links = links[: ends[-1] // self._block_bytes]
        new = _Beginning(shared.start, ends, tuple(messages), tuple(fingerprints), sizes, links)
        if not links or new.size_bytes > self._max_bytes:
            return
        for link in links:
            before = self._by_link.get(link)
            if before is not None and before.links[-1] == link:
                self._drop(before)  # this one is longer
            self._by_link[link] = new
        self._kept[new] = None
        self.num_bytes += new.size_bytes
        while self.num_bytes > self._max_bytes:
            self._drop(next(iter(self._kept)))

    def _drop(self, beginning: _Beginning) -> None:
        del self._kept[beginning]
        self.num_bytes -= beginning.size_bytes
        for link in beginning.links:
            if self._by_link.get(link) is beginning:
                del self._by_link[link]


def _begin(raw: bytes, start: int, ends: Sequence[int]) -> int:
    """Return where the message after those with these ends begins; the end of the text where none does."""
    if not ends:
        return start
    comma = _COMMA.match(raw, ends[-1])
    return len(raw) if comma is None else comma.end()


def _size_bytes(message: Any) -> int:
    """Return the memory of a message; 0: it has too many values."""
    values, size_bytes, num = [message], 0, 0
    while values:
        value = values.pop()
        num += 1
        if num + len(values) > _MOST_VALUES:
            return 0
        size_bytes += getsizeof(value)
        if isinstance(value, dict):
            values += value
            values += value.values()
        elif isinstance(value, list):
            values += value
    return size_bytes
