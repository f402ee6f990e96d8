"""Families: agents whose first prompts share a system text and tools, which are hashed once for all of them."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass

from policies.recognition.chains import (
    LINK_BYTES,
    Chain,
    block_chain,
    block_chain_in_steps,
    digest,
    digest_in_steps,
    digits,
    name,
)
from policies.types import BLOCK_CHARS, FamilyId

MAX_HEADS = 512
_HEAD_BYTES = 600
"""Without its blocks."""


class Head:
    """Hashes of a system text and of tools; no content."""

    __slots__ = ("_system_first", "family_id", "num_bytes", "static", "system_hash")

    def __init__(self, static: Chain, system_first: Chain, system_hash: int, family_id: FamilyId) -> None:
        self.static = static
        self.system_hash = system_hash
        self.family_id = family_id
        self._system_first = system_first
        self.num_bytes = _HEAD_BYTES + LINK_BYTES * len(static) * (1 if system_first is static else 2)

    @staticmethod
    def in_steps(key: bytes, tools: Sequence[bytes], system: bytes) -> Generator[None, None, Head]:
        """As `_head`, in steps."""
        static = yield from block_chain_in_steps(key, (*tools, system))
        system_hash = yield from digest_in_steps(key, b"system", system)
        family = yield from digest_in_steps(key, b"family", system[:BLOCK_CHARS], *tools)
        system_first = (yield from block_chain_in_steps(key, (system, *tools))) if tools else static
        return Head(static, system_first, system_hash, digits(family))

    def blocks(self, tools_first: bool) -> Chain:
        """Its whole blocks, in the order in which the model renders."""
        return self.static if tools_first else self._system_first


class Heads:
    """The heads of the latest prompts, at most `max_bytes`."""

    def __init__(self, max_bytes: float = math.inf) -> None:
        self._max_bytes = max_bytes
        self.num_bytes = 0
        self._known: OrderedDict[int, Head] = OrderedDict()

    def of(self, key: bytes, tools: tuple[bytes, ...], system: bytes) -> Head:
        seen = hash((key, tools, system))
        head = self._known.get(seen)
        if head is None:
            self._keep(seen, head := _head(key, tools, system))
        else:
            self._known.move_to_end(seen)
        return head

    def prepare(self, key: bytes, tools: tuple[bytes, ...], system: bytes) -> Iterator[None]:
        """Know the head of a large prompt, step by step."""
        seen = hash((key, tools, system))
        if seen in self._known:
            return
        head = yield from Head.in_steps(key, tools, system)
        if seen not in self._known:
            self._keep(seen, head)

    def _keep(self, seen: int, head: Head) -> None:
        self._known[seen] = head
        self.num_bytes += head.num_bytes
        while len(self._known) > MAX_HEADS or self.num_bytes > self._max_bytes:
            self.num_bytes -= self._known.popitem(last=False)[1].num_bytes


def _head(key: bytes, tools: Sequence[bytes], system: bytes) -> Head:
    static = block_chain(key, (*tools, system))
    return Head(
        static,
        block_chain(key, (system, *tools)) if tools else static,
        digest(key, b"system", system),
        name(key, b"family", system[:BLOCK_CHARS], *tools),
    )


# ---- which family a first turn belongs to

_LEAST_BLOCKS = 2
_OPENING_MESSAGES = BLOCK_CHARS // len(b'["",{}]')
"""As many fill a block, however short they are."""
_MOST_JOINS_BITS = 8
"""A family is found by at most two to the power of this many links."""
_RECORD_BYTES, _MARK_BYTES = 500, 150
"""Of a record, and of each mark in it and in the index."""


@dataclass(slots=True, eq=False)
class FamilyRecord:
    """A family as recognition knows it; the Scheduler keeps its statistics."""

    id: FamilyId
    offers_tools: bool
    marks: tuple[int, ...]
    """Hashes by which others join: links of its static prefix from half its length on; its system text."""
    has_own_text: bool
    """Whether its system text is long enough to identify it."""
    is_side: bool = False
    """Whether a request of it was a side request of a session: then all of them are."""
    writes_titles: bool = False
    """Whether a request of it was for a title: then none is for a summary."""

    def mark_side(self) -> None:
        """Count all its requests as side requests from now on, if its text can tell them from those of agents."""
        self.is_side |= self.has_own_text and not self.offers_tools


class Families:
    """Known families of all tenants, at most `limit` and, with their heads, about `max_bytes`; the least recently
    used one is forgotten first."""

    def __init__(self, limit: int, max_bytes: float = math.inf) -> None:
        self._limit = limit
        self._max_record_bytes = max_bytes / 2
        self._record_bytes = 0
        self._by_id: OrderedDict[FamilyId, FamilyRecord] = OrderedDict()
        self._by_mark: dict[int, FamilyRecord] = {}
        self._by_group: OrderedDict[int, FamilyId] = OrderedDict()
        self.heads = Heads(max_bytes / 2)

    def __len__(self) -> int:
        return len(self._by_id)

    @property
    def num_bytes(self) -> int:
        return self._record_bytes + self.heads.num_bytes

    def find(
        self, key: bytes, tools: tuple[bytes, ...], system: bytes, messages: Sequence[bytes], group: bytes | None
    ) -> tuple[FamilyRecord, Head]:
        """Return the family of a first turn, a new one if there is none, and its head. `group`: its
        `prompt_cache_key`.

        A request without tools under the system text of a family that offers them is of that family.
        """
        head = self.heads.of(key, tools, system)
        id_ = head.family_id if tools or system else _opening_id(key, messages)
        family = self._by_id.get(id_)
        if family is None:
            links = head.static
            joins = _joins(links)
            # Long enough to name an agent, not a habit of writing prompts.
            has_own_text = len(system) >= BLOCK_CHARS
            named = [head.system_hash] if has_own_text else []
            tried, marks = (joins, joins + named) if tools else (joins + named, joins)
            family = next((self._by_mark[mark] for mark in reversed(tried) if mark in self._by_mark), None)
        if tools and group is not None:
            family = self._join(digest(key, group), family, id_)
        if family is None:
            family = self._by_id[id_] = FamilyRecord(id_, bool(tools), tuple(marks), has_own_text)
            self._record_bytes += _size_bytes(family)
            for mark in family.marks:
                self._by_mark.setdefault(mark, family)
            self._forget()
        self._by_id.move_to_end(family.id)
        return family, head

    def writes_titles(self, key: bytes, system: bytes) -> bool:
        """Whether requests without tools under this system text are for titles."""
        family = self._by_id.get(self.heads.of(key, (), system).family_id)
        return family is not None and family.writes_titles

    def _join(self, group: int, family: FamilyRecord | None, id_: FamilyId) -> FamilyRecord | None:
        if family is None:
            family = self._by_id.get(self._by_group.get(group, ""))
        self._by_group[group] = family.id if family else id_
        self._by_group.move_to_end(group)
        if len(self._by_group) > self._limit:
            self._by_group.popitem(last=False)
        return family

    def _forget(self) -> None:
        while len(self._by_id) > self._limit or (
            self._record_bytes > self._max_record_bytes and len(self._by_id) > 1
        ):
            _, family = self._by_id.popitem(last=False)
            self._record_bytes -= _size_bytes(family)
            for mark in family.marks:
                if self._by_mark.get(mark) is family:
                    del self._by_mark[mark]


def _size_bytes(family: FamilyRecord) -> int:
    return _RECORD_BYTES + _MARK_BYTES * len(family.marks)


def _joins(links: Sequence[int]) -> list[int]:
    """Return links from half the length on. Of many links only those at multiples of a power of two are taken, so
    that prefixes of other lengths have the same ones."""
    step = 1 << max(0, len(links).bit_length() - _MOST_JOINS_BITS)
    first = max(_LEAST_BLOCKS, (len(links) + 1) // 2)
    return list(links[-(-first // step) * step - 1 :: step])


def _opening_id(key: bytes, messages: Sequence[bytes]) -> FamilyId:
    """Return the family of a prompt that has neither tools nor a system text."""
    opening = b"".join([message[:BLOCK_CHARS] for message in messages[:_OPENING_MESSAGES]])[:BLOCK_CHARS]
    return name(key, b"opening", opening if len(opening) == BLOCK_CHARS else b"")
