"""What a volatile span may be, guessed from its characters."""

from __future__ import annotations

import math
import re
from array import array
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import nsmallest
from itertools import accumulate
from typing import TypeAlias

from policies.recognition.prompts import SystemChange
from policies.types import FamilyId, value

KINDS = ("header", "date", "path", "id", "number", "text")
MAX_CHARS = 512
"""A longer span is `text`, whatever is in it."""
_CLASSES = re.compile(
    rb"(?P<header>^\s*x-[\w-]+\s*[:=])"
    rb"|(?P<date>\b\d{4}-\d\d-\d\d|\b\d\d?:\d\d\b|\b\d\d?/\d\d?/\d{4}\b|\b1[5-9]\d{8}(?:\d{3})?\b"
    rb"|\b(?:mon|tue|wed|thu|fri|sat|sun)(?:day|sday|nesday|rsday|urday)?,? \w+ \d)"
    rb"|(?P<path>(?:~|\b[a-z]:|\.\.?|(?<![\w/<]))(?:[\\/][\w.@+-]+){2,})"
    rb"|(?P<id>\b[0-9a-f]{8}-[0-9a-f]{4}-|\b(?=[a-f]*\d)[0-9a-f]{7,}\b|\b(?=[a-z_-]*\d)[\w-]{16,})"
    rb"|(?P<number>\d)",
    re.IGNORECASE | re.MULTILINE,
)


def kind_of(span: bytes) -> str:
    """Kind of a volatile span, by the first of its characters that shows it."""
    match = _CLASSES.search(span) if len(span) <= MAX_CHARS else None
    return (match and match.lastgroup) or "text"


# ---- which chunks of a system text are volatile

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


# ---- where a first prompt leaves what its siblings sent and soon comes back to it

HEAD_CHARS = 64 * 1024
"""Length of a prompt that is compared; the rest is not."""
MAX_SPAN_CHUNKS = 64
MAX_SPAN_CHARS = 4096
"""A longer difference is another task, not a volatile span."""
MAX_SPANS = 8
LEAST_RUN_CHARS = 128
"""Text this long shows that two prompts are in step again; less may be chance, and counts as part of the span."""
LEAST_SHARED_CHARS = 1024
"""Two blocks: the least whose cache is worth anything."""

MAX_TEXT_CHUNKS = 2**20
"""Of all system texts that are remembered for later turns, each once."""
_TEXT_CHUNKS = 32
"""As many as the rest of such a text counts for."""
OF_TEXTS = 0.5
"""Share of these texts in all bytes."""
_SIBLINGS_BYTES = 3_000
"""Of a family without its variants."""
MAX_VARIANTS = 3
"""First prompts remembered per family: only what none of them shares is wasted."""
CHECKED_ALL = 256
CHECKED_EVERY = 16
"""Of a family's sessions after the first CHECKED_ALL, one in this many is compared and counts for all; likewise of
its later turns with another system text than the turn before."""

_ANCHORS = 16
_LEAST_COMMON_ANCHORS = 4
"""A quarter of the chunks in common makes siblings of prompts whose families the break itself keeps apart."""

_JSON_NEWLINE = b"\\n"
END = -1
"""Of a system text. No hash has this value."""


@value
class Gap:
    """A volatile span of a system text, known by hashes of what stands around it."""

    before: int
    """Hash of the two chunks before."""
    after: int
    """Likewise of the two after it; END: it is the end of the text."""
    kind: str


@value
class Break:
    """Offsets are UTF-8 bytes of the canonical prompt, in the order in which the model renders it."""

    at_chars: int
    """Where the first span begins."""
    span_chars: int
    """Length of the first span; 0: the sibling has a chunk that this prompt lacks."""
    kind: str
    """A guess from the characters of the first span: one of `kinds.KINDS`."""
    part: str
    """Where the first span is: `system`, `tools` or `messages`."""
    num_spans: int
    shared_chars: int
    """Text behind the first span that the sibling has too."""
    gaps: tuple[Gap, ...]
    """Those spans that lie in the system text."""


@value
class Found:
    """The comparison of a first prompt with its siblings, and its result."""

    family_id: FamilyId
    """Of the first sibling, also where the break made a family of its own of every session."""
    weight: int
    """For how many sessions or later turns this one counts."""
    broken: Break | None
    is_first: bool = True
    """Whether it is a first prompt, compared with siblings; else a later turn, compared with the turn before."""


@dataclass(slots=True, eq=False)
class _Siblings:
    family_id: FamilyId
    anchors: tuple[int, ...]
    variants: list[array[int]] = field(default_factory=list)
    """Most recently sent first."""
    num_seen: int = 0
    num_changed: int = 0
    """Later turns with another system text."""
    num_bytes: int = 0
    """As they were weighed last."""


@value
class _Head:
    """The beginning of one prompt, cut."""

    chunks: list[bytes]
    hashes: array[int]
    system: range
    """Chunks of the system text."""
    messages_from: int

    def part(self, chunk: int) -> str:
        if chunk in self.system:
            return "system"
        return "tools" if chunk < self.messages_from else "messages"


class _Texts:
    """Chunks of the latest system texts, by the hash of the text; eight bytes each."""

    def __init__(self, max_bytes: float) -> None:
        self._max_chunks = min(MAX_TEXT_CHUNKS, max_bytes // 8)
        self._known: OrderedDict[int, array[int]] = OrderedDict()
        self._num_chunks = 0

    @property
    def num_bytes(self) -> int:
        return 8 * self._num_chunks

    def keep(self, text: int, system: bytes) -> None:
        if text in self._known:
            self._known.move_to_end(text)
            return
        chunks = self._known[text] = array("q", map(hash, chunks_of(system[:HEAD_CHARS])))
        self._num_chunks += len(chunks) + _TEXT_CHUNKS
        while self._num_chunks > self._max_chunks:
            self._num_chunks -= len(self._known.popitem(last=False)[1]) + _TEXT_CHUNKS

    def get(self, text: int) -> array[int] | None:
        return self._known.get(text)


class Breaks:
    """Compares first prompts with those of earlier siblings, and later turns of another system text with the turn
    before. At most `max_families`, the least recently seen goes first; each keeps up to three heads of eight bytes
    per chunk (4 KB for 30 KB of prompt)."""

    def __init__(self, max_families: int = 512, max_bytes: float = math.inf) -> None:
        self._max_families = max_families
        self._texts = _Texts(max_bytes * OF_TEXTS)
        self._max_bytes = max_bytes * (1 - OF_TEXTS)
        self._head_bytes = 0
        self._by_family: OrderedDict[FamilyId, _Siblings] = OrderedDict()
        self._by_anchor: dict[int, _Siblings] = {}

    @property
    def num_bytes(self) -> int:
        """About the memory of heads and texts."""
        return self._head_bytes + self._texts.num_bytes

    def saw(
        self,
        family_id: FamilyId,
        owner: int,
        tools: Sequence[bytes],
        system: bytes,
        messages: Sequence[bytes],
        tools_first: bool = False,
        text: int | None = None,
    ) -> Found | None:
        """A session's first prompt, in canonical texts. None: it was not compared.

        `owner`: of its tenant and model; nothing is compared across owners, as is `family_id`. `text`: hash of the
        system text, by which `changed` finds it.
        """
        if text is not None:
            self._texts.keep(text, system)
        siblings, head = self._siblings(family_id, owner, tools, system, messages, tools_first)
        siblings.num_seen += 1
        weight = _weight(siblings.num_seen)
        if not weight:
            return None
        head = head or _head(tools, system, messages, tools_first)
        broken = _compared(head, siblings, owner)
        self._weigh(siblings)
        return Found(siblings.family_id, weight, broken)

    def changed(
        self,
        family_id: FamilyId,
        owner: int,
        tools: Sequence[bytes],
        system: bytes,
        messages: Sequence[bytes],
        tools_first: bool,
        text: int,
        change: SystemChange,
    ) -> Found | None:
        """A later turn with another system text than the turn before. None: it was not compared. `messages` and
        `text` are as of `saw`."""
        earlier = self._texts.get(change.before)
        self._texts.keep(text, system)
        if earlier is None:
            return None
        kept = messages[: change.num_messages]
        siblings, head = self._siblings(family_id, owner, tools, system, kept, tools_first)
        siblings.num_changed += 1
        weight = _weight(siblings.num_changed)
        if not weight:
            return None
        head = head or _head(tools, system, kept, tools_first)
        old = head.hashes[: head.system.start] + earlier + head.hashes[head.system.stop :]
        return Found(siblings.family_id, weight, _break(head, old, owner), is_first=False)

    def _siblings(
        self,
        family_id: FamilyId,
        owner: int,
        tools: Sequence[bytes],
        system: bytes,
        messages: Sequence[bytes],
        tools_first: bool,
    ) -> tuple[_Siblings, _Head | None]:
        """Return the siblings of a prompt, and its head, if that was needed to find them."""
        siblings, head = self._by_family.get(family_id), None
        if siblings is None:
            head = _head(tools, system, messages, tools_first)
            siblings = self._related(family_id, head, hash((owner, *tools)))
        self._by_family.move_to_end(siblings.family_id)
        return siblings, head

    def _related(self, family_id: FamilyId, head: _Head, owner: int) -> _Siblings:
        """Siblings by content, or new ones."""
        anchors = tuple(value ^ owner for value in nsmallest(_ANCHORS, set(head.hashes)))
        votes = Counter(self._by_anchor[anchor] for anchor in anchors if anchor in self._by_anchor)
        for siblings, num_votes in votes.most_common(1):
            if num_votes >= min(_LEAST_COMMON_ANCHORS, len(anchors)):
                return siblings
        siblings = self._by_family[family_id] = _Siblings(family_id, anchors)
        for anchor in anchors:
            self._by_anchor.setdefault(anchor, siblings)
        if len(self._by_family) > self._max_families:
            self._drop_oldest()
        return siblings

    def _weigh(self, siblings: _Siblings) -> None:
        num_bytes = _SIBLINGS_BYTES + sum([8 * len(variant) for variant in siblings.variants])
        self._head_bytes += num_bytes - siblings.num_bytes
        siblings.num_bytes = num_bytes
        while self._head_bytes > self._max_bytes and len(self._by_family) > 1:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        _, gone = self._by_family.popitem(last=False)
        self._head_bytes -= gone.num_bytes
        for anchor in gone.anchors:
            if self._by_anchor.get(anchor) is gone:
                del self._by_anchor[anchor]


def _weight(number: int) -> int:
    """Return for how many the comparison with this number counts; 0: it is left out."""
    if number <= CHECKED_ALL:
        return 1
    return 0 if number % CHECKED_EVERY else CHECKED_EVERY


def chunks_of(system: bytes) -> list[bytes]:
    """Lines and sentences of a system text. Single bytes stand between them."""
    return system.replace(b". ", b".\n").split(b"\n")


def before(owner: int, hashes: Sequence[int]) -> int:
    """What stands before a gap: the last two of the chunks that stay."""
    return hash((owner, *hashes[-2:]))


def after(owner: int, hashes: Sequence[int], place: int) -> int:
    """What stands behind it: the two chunks from `place` on; END where the text ends."""
    return hash((owner, *hashes[place : place + 2])) if place < len(hashes) else END


def _head(tools: Sequence[bytes], system: bytes, messages: Sequence[bytes], tools_first: bool) -> _Head:
    static = (*tools, system) if tools_first else (system, *tools)
    chunks: list[bytes] = []
    of_system = range(0)
    messages_from = None
    left = HEAD_CHARS
    for number, part in enumerate((*static, *messages)):
        if left <= 0:
            break
        if number == len(static):
            messages_from = len(chunks)
        if number == (len(tools) if tools_first else 0):
            begun = len(chunks)
            chunks += chunks_of(part[:left])
            of_system = range(begun, len(chunks))
        else:
            chunks += part[:left].split(_JSON_NEWLINE)
        left -= len(part)
    hashes = array("q", map(hash, chunks))
    return _Head(chunks, hashes, of_system, len(chunks) if messages_from is None else messages_from)


def _compared(head: _Head, siblings: _Siblings, owner: int) -> Break | None:
    """The break towards the nearest variant. One that shares its head takes its place."""
    broken = None
    if siblings.variants:
        nearest = max(siblings.variants, key=lambda variant: _agreeing(head.hashes, variant))
        broken = _break(head, nearest, owner)
        if broken is None and 2 * _agreeing(head.hashes, nearest) >= len(head.hashes):
            siblings.variants.remove(nearest)
    siblings.variants.insert(0, head.hashes)
    del siblings.variants[MAX_VARIANTS:]
    return broken


def _break(head: _Head, old: array[int], owner: int) -> Break | None:
    here = _agreeing(head.hashes, old)
    if sum(map(len, head.chunks[here:])) + len(head.chunks) - here < LEAST_SHARED_CHARS:
        return None
    sums = list(accumulate(map(len, head.chunks), initial=0))

    def offset(chunk: int) -> int:
        return sums[chunk] + chunk

    spans, shared_chars = [], 0
    for first, end, run in _spans(head.hashes, old, here, offset):
        spans.append((first, end))
        shared_chars += offset(end + run) - offset(end)
    if shared_chars < LEAST_SHARED_CHARS:
        return None
    (first, end), *_ = spans
    return Break(
        at_chars=offset(first),
        span_chars=offset(end) - offset(first),
        kind=kind_of(b"\n".join(head.chunks[first:end])),
        part=head.part(first),
        num_spans=len(spans),
        shared_chars=shared_chars,
        gaps=tuple(_gaps(head, spans, owner)),
    )


def _spans(
    new: array[int], old: array[int], here: int, offset: Callable[[int], int]
) -> Iterator[tuple[int, int, int]]:
    """First and end chunk of each span that differs, from `here` on, and how many chunks agree behind it."""
    there = here
    for _ in range(MAX_SPANS):
        step = _rejoined(new, old, here, there, offset)
        if step is None:
            return
        end, old_end = step
        run = _agreeing(new[end:], old[old_end:])
        yield here, end, run
        here, there = end + run, old_end + run


def _rejoined(
    new: array[int], old: array[int], here: int, there: int, offset: Callable[[int], int]
) -> tuple[int, int] | None:
    """The nearest places in both from which they agree for LEAST_RUN_CHARS."""
    places = {old[place]: place for place in reversed(range(there, min(len(old), there + MAX_SPAN_CHUNKS)))}
    for end in range(here, min(len(new), here + MAX_SPAN_CHUNKS)):
        if offset(end) - offset(here) > MAX_SPAN_CHARS:
            return None
        place = places.get(new[end])
        if place is None:
            continue
        pairs = zip(new[end : end + LEAST_RUN_CHARS], old[place:], strict=False)
        for num_agreeing, (one, other) in enumerate(pairs, start=1):
            if one != other:
                break
            if offset(end + num_agreeing) - offset(end) >= LEAST_RUN_CHARS:
                return end, place
    return None


def _gaps(head: _Head, spans: Iterable[tuple[int, int]], owner: int) -> Iterator[Gap]:
    """Spans of the system text, each as it looks once those before it are gone."""
    start, stop = head.system.start, head.system.stop
    system = head.hashes[start:stop]
    kept: list[int] = []
    done = 0
    for first, end in ((first - start, min(end, stop) - start) for first, end in spans if first in head.system):
        kept += system[done:first]
        done = end
        if end > first:
            kind = kind_of(b"\n".join(head.chunks[start + first : start + end]))
            yield Gap(before(owner, kept), after(owner, system, end), kind)


def _agreeing(one: array[int], other: array[int]) -> int:
    """How many chunks agree from the start on."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
