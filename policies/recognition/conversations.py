"""The memory of lineage: one Strand per session, found by the prompts it has sent, bounded in number and age."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from policies.recognition.chains import Chain
from policies.recognition.families import FamilyRecord
from policies.types import Blocks, SessionId, TurnKind

_Key = TypeVar("_Key", int, str)

_PAST_ENDS = 8
"""Ends of earlier turns at which a fork is still noticed, per session."""
TAIL = 2
"""Messages at the end of a history that a client may change or drop and still be the same session."""


@dataclass(slots=True, eq=False)
class Conversation:
    """What recognition remembers of one session; never content, only hashes of it and marks of its last answer."""

    id: SessionId
    key: bytes
    """Of its tenant and model."""
    serial: int
    name: str | None
    """The session id that its client gave, hashed. None: it gave none."""
    parent_id: SessionId | None
    kin: FamilyRecord
    kind: TurnKind
    tools: int
    """Hash of the tools it offers; 0: none."""
    first_len: int
    """Links of its first request: a prefix that reaches there carries the session's own task."""
    chain: Sequence[int] = ()
    """Of its latest request."""
    blocks: Blocks = ()
    tools_first: bool = False
    num_turns: int = 0
    attempt: int = 0
    """Counts requests, retries included; an answer to an older one says nothing about the latest."""
    running: int = 0
    is_complete: bool = False
    """Whether the latest attempt was answered to its end."""
    marks: tuple[bytes, ...] = ()
    """Bytes that the next turn carries if it follows the latest answer: tool call ids, or the end of its text."""
    task: tuple[int, ...] = ()
    """What its history begins with, see `Summaries`; only without a name, as are `clues`."""
    clues: tuple[int, ...] = ()
    """Where the index knows it: passages of its latest answer; of its last message, where that failed."""
    was_summed_up: bool = False
    """Whether a side request ended since the last turn: the history may restart from a summary."""
    has_steady_name: bool = False
    """Whether the name has come twice. A name that comes once may be an id of the request, not of the session."""
    seen_at: float = 0.0
    ends: tuple[int, ...] = ()
    """Where the index knows it: ends of earlier turns, oldest first."""
    tips: tuple[int, ...] = ()
    """Where the index knows it: the end of its latest request, and up to TAIL messages before."""


class Conversations:
    """All strands, least recently used first; at most `limit`, none idle for longer than `ttl_s`."""

    def __init__(self, limit: int, ttl_s: float) -> None:
        self._limit = limit
        self._ttl_s = ttl_s
        self._by_age: OrderedDict[int, Conversation] = OrderedDict()
        self._by_link: dict[int, list[Conversation]] = {}
        self._by_name: dict[str, list[Conversation]] = {}
        self._by_clue: dict[int, list[Conversation]] = {}
        self._num_born = 0

    def __len__(self) -> int:
        return len(self._by_age)

    def __contains__(self, strand: Conversation) -> bool:
        return strand.serial in self._by_age

    @property
    def has_clues(self) -> bool:
        return bool(self._by_clue)

    def at(self, link: int) -> Sequence[Conversation]:
        """Strands that have sent a prompt ending at `link` or up to TAIL messages behind it, oldest first."""
        return self._by_link.get(link, ())

    def named(self, name: str) -> Sequence[Conversation]:
        return self._by_name.get(name, ())

    def with_clue(self, clue: int) -> Sequence[Conversation]:
        """Strands that said this last, or were last told it."""
        return self._by_clue.get(clue, ())

    def next_serial(self) -> int:
        self._num_born += 1
        return self._num_born

    def add(self, strand: Conversation, now: float) -> None:
        self._by_age[strand.serial] = strand
        if strand.name is not None:
            _put(self._by_name, strand.name, strand)
        strand.seen_at = now
        if len(self._by_age) > self._limit:
            self.forget(now)

    def rename(self, strand: Conversation, name: str) -> None:
        self._drop_name(strand)
        strand.name = name
        _put(self._by_name, name, strand)

    def advance(self, strand: Conversation, chain: Chain, now: float) -> None:
        """The strand has sent this prompt: it is found there from now on, and at the ends of its last turns."""
        if strand.chain:
            strand.ends = (*strand.ends, strand.chain[-1])
            _put(self._by_link, strand.chain[-1], strand)
        for link in strand.tips:
            _take(self._by_link, link, strand)
        if len(strand.ends) > _PAST_ENDS:
            # The first end stays: there its task ends, and there most forks begin.
            first, second, *later = strand.ends
            _take(self._by_link, second, strand)
            strand.ends = (first, *later)
        # The system text alone (link 0) says nothing about a session.
        strand.tips = tuple(chain[max(1, len(chain) - 1 - TAIL) :])
        for link in strand.tips:
            _put(self._by_link, link, strand)
        strand.chain = chain
        self.touch(strand, now)

    def put_clues(self, strand: Conversation, clues: tuple[int, ...]) -> None:
        """It is found by these from now on, and no longer by earlier ones."""
        for clue in strand.clues:
            _take(self._by_clue, clue, strand)
        strand.clues = tuple(dict.fromkeys(clues))
        for clue in strand.clues:
            _put(self._by_clue, clue, strand)

    def touch(self, strand: Conversation, now: float) -> None:
        strand.seen_at = now
        self._by_age.move_to_end(strand.serial)

    def forget(self, now: float) -> None:
        """Drop what is too old or too many."""
        while self._by_age:
            strand = next(iter(self._by_age.values()))
            if len(self._by_age) <= self._limit and strand.seen_at >= now - self._ttl_s:
                return
            del self._by_age[strand.serial]
            for link in (*strand.ends, *strand.tips):
                _take(self._by_link, link, strand)
            self.put_clues(strand, ())
            self._drop_name(strand)

    def _drop_name(self, strand: Conversation) -> None:
        if strand.name is not None:
            _take(self._by_name, strand.name, strand)


def _put(index: dict[_Key, list[Conversation]], key: _Key, strand: Conversation) -> None:
    index.setdefault(key, []).append(strand)


def _take(index: dict[_Key, list[Conversation]], key: _Key, strand: Conversation) -> None:
    there = index[key]
    there.remove(strand)
    if not there:
        del index[key]
