"""Which chunks of a system text are volatile: learned from breaks, and the same for every turn of a session."""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Collection, Sequence
from typing import TypeAlias

from policies.recognition.kinds import kind_of
from policies.recognition.prefix_breaks import MAX_SPAN_CHUNKS, Gap, after, before, chunks_of

Cuts: TypeAlias = tuple[tuple[int, int], ...]
"""Start and end, in bytes; in order, apart from each other."""

LEARNED_AFTER = 3
"""Breaks at one place before it counts as volatile: two releases of an agent differ only once."""


class Volatile:
    """Bounded: places and texts that were not needed for longest are forgotten first.

    `kinds`: what may be cut, of `kinds.KINDS`.
    """

    def __init__(
        self,
        kinds: Collection[str],
        max_places: int = 2_000,
        max_texts: int = 20_000,
        max_cuts: int = 200_000,
    ) -> None:
        self._kinds = frozenset(kinds)
        self._max_places = max_places
        self._max_texts = max_texts
        self._max_cuts = max_cuts
        """Of all texts together."""
        self._places: OrderedDict[int, dict[int, int]] = OrderedDict()
        """By what stands before: what stood behind, and how often."""
        self._cuts: OrderedDict[int, Cuts] = OrderedDict()
        self._num_cuts = 0

    def learn(self, gap: Gap, weight: int = 1) -> None:
        """A break showed this gap."""
        if gap.kind not in self._kinds:
            return
        place = self._places.setdefault(gap.before, {})
        if gap.after in place or len(place) < MAX_SPAN_CHUNKS:
            place[gap.after] = place.get(gap.after, 0) + weight
        self._places.move_to_end(gap.before)
        if len(self._places) > self._max_places:
            self._places.popitem(last=False)

    def cuts(self, owner: int, system: bytes, is_first: bool) -> Cuts:
        """What of a system text is volatile; lines are cut with the newline behind them.

        `is_first`: of a session's first prompt. What is learned later changes no session that has begun, because
        its prefix is cached as it was sent.
        """
        text = hash((owner, system))
        found = self._cuts.get(text)
        if found is None:
            if not is_first:
                return ()
            found = self._cuts[text] = self._find(owner, chunks_of(system)) if self._places else ()
            self._num_cuts += len(found)
            while len(self._cuts) > self._max_texts or (self._num_cuts > self._max_cuts and len(self._cuts) > 1):
                self._num_cuts -= len(self._cuts.popitem(last=False)[1])
        self._cuts.move_to_end(text)
        return found

    def _find(self, owner: int, chunks: Sequence[bytes]) -> Cuts:
        hashes = array("q", map(hash, chunks))
        cuts: list[tuple[int, int]] = []
        kept: list[int] = []
        place, offset = 0, 0
        while place < len(chunks):
            end = self._end(owner, kept, hashes, chunks, place)
            size = sum(len(chunk) + 1 for chunk in chunks[place:end])
            if end > place:
                cuts.append((offset, offset + size - (end == len(chunks))))
            else:
                end = place + 1
                size = len(chunks[place]) + 1
                kept.append(hashes[place])
            place, offset = end, offset + size
        return tuple(cuts)

    def _end(
        self, owner: int, kept: Sequence[int], hashes: array[int], chunks: Sequence[bytes], place: int
    ) -> int:
        """Where the volatile span that begins at `place` ends; `place` when there is none."""
        known = self._places.get(before(owner, kept))
        if known is None:
            return place
        for end in range(place, min(len(chunks), place + MAX_SPAN_CHUNKS) + 1):
            if known.get(after(owner, hashes, end), 0) >= LEARNED_AFTER:
                is_allowed = kind_of(b"\n".join(chunks[place:end])) in self._kinds
                return end if is_allowed else place
        return place
