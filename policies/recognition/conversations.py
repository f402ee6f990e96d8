"""The memory of lineage: one Conversation per session, found by its prompts and answers, bounded in
number, bytes and age.

Of a session it holds 20 bytes per message and 8 per block of its latest prompt, and at most RECENT + _PAST_ENDS +
_MOST_MARKS + _MOST_ERRANDS + 8 entries of the indexes, however long it is.
"""

from __future__ import annotations

import math
from array import array
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from itertools import islice
from typing import Generic, TypeVar

from policies.recognition.chains import LINK_BYTES, Links, own_key
from policies.recognition.families import FamilyRecord
from policies.types import Blocks, SessionId, TurnKind

_Key = TypeVar("_Key", int, str)

SEARCHED = 64
"""Sessions examined at one place of an index, the latest first; others are split."""
_PAST_ENDS = 8
"""Ends of earlier turns at which a fork is still noticed, per session."""
RECENT = 8
"""Last messages of its latest prompt by which a session is found when its client has changed others: more than
clients add at the end and take away again."""
_MOST_MARKS = 8
_MOST_ERRANDS = 16
"""Calls of its latest answers by which the parent of a sub-agent is found, per session."""
NO_LINKS = Links(array("q"), array("q"))
_OWN_BYTES = 4_000
"""Of a conversation and its entries of the indexes, without what follows."""
_NUMBER_BYTES = 40
"""Of a number in a tuple."""


@dataclass(slots=True, eq=False)
class Conversation:
    """The memory that recognition has of one session: hashes of content and marks of its last answer, no
    content."""

    id: SessionId
    key: bytes
    """Of its tenant and latest model."""
    serial: int
    name: str | None
    """The session id that its client gave, hashed. None: it gave none."""
    parent_id: SessionId | None
    family: FamilyRecord
    kind: TurnKind
    tools: int
    """Hash of the tools it offers; 0: none."""
    system: int
    """Hash of its latest system text."""
    first_len: int
    """Links of its first request. A prefix that reaches there carries the session's own task."""
    links: Links = NO_LINKS
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
    has_calls: bool = False
    """Whether the marks are ids of calls, which every client sends back verbatim."""
    has_carried: bool = False
    """Whether its client has sent an answer back verbatim."""
    task: tuple[int, ...] = ()
    """What its history begins with, see `Summaries`; only without a name, as are `clues`."""
    clues: tuple[int, ...] = ()
    """Where the index knows it: passages of its latest answer; of its last message, where that failed."""
    is_served: bool = False
    """Whether a side request of it came since the last turn."""
    was_summed_up: bool = False
    """Whether a side request ended since the last turn: the history may restart from a summary."""
    has_sum_up: bool = False
    """Whether its summary was asked for since the last turn."""
    has_steady_name: bool = False
    """Whether the name has come twice. A name that comes once may be an id of the request, not of the session."""
    seen_at: float = 0.0
    has_title: bool = False
    """Whether a request for its title was seen."""
    is_taken: bool = False
    """Of a side request: whether the session that it serves was found."""
    ends: tuple[int, ...] = ()
    """Where the index knows it: ends of earlier turns, oldest first."""
    recents: Set[int] = frozenset()
    """Where the index knows it: the last messages of its latest request."""
    ids: tuple[int, ...] = ()
    """Where the index knows it: its marks, where they are ids."""
    begun_with: int = 0
    """Where the index knows it: the opening of its first prompt, see `passages.opening`."""
    errands: tuple[tuple[int, ...], ...] = ()
    """Where the index knows it, by the first passage: what its latest calls said, see `passages.errand`."""
    num_bytes: int = 0
    """As it was weighed last."""

    @property
    def first(self) -> int:
        """Hash of the first message of its latest request; 0: it had none."""
        return self.links.hashes[0] if self.links.hashes else 0


class Index(Generic[_Key]):
    """Conversations by a key. Most keys have one, which is held without a container of its own."""

    def __init__(self) -> None:
        self.there: dict[_Key, Conversation | dict[Conversation, None]] = {}
        """To be read only."""

    def __bool__(self) -> bool:
        return bool(self.there)

    def put(self, key: _Key, conversation: Conversation) -> None:
        there = self.there.get(key)
        if there is None:
            self.there[key] = conversation
        elif type(there) is dict:
            there[conversation] = None
        elif there is not conversation:
            self.there[key] = {there: None, conversation: None}  # type: ignore[dict-item]  # it is no dict

    def take(self, key: _Key, conversation: Conversation) -> None:
        there = self.there.get(key)
        if there is conversation:
            del self.there[key]
        elif type(there) is dict:
            there.pop(conversation, None)
            if not there:
                del self.there[key]

    def move(self, before: Iterable[_Key], now: Iterable[_Key], conversation: Conversation) -> None:
        """Take it from its earlier keys and put it at others. Most keys have one: these are moved here."""
        there = self.there
        for key in before:
            if there.get(key) is conversation:
                del there[key]
            else:
                self.take(key, conversation)
        for key in now:
            if there.setdefault(key, conversation) is not conversation:
                self.put(key, conversation)

    def at(self, key: _Key, limit: int = SEARCHED) -> Sequence[Conversation]:
        """Return the latest ones at a key, the latest first."""
        there = self.there.get(key)
        if there is None:
            return ()
        if isinstance(there, Conversation):
            return (there,)
        return tuple(islice(reversed(there), limit))

    def size(self, key: _Key) -> int:
        there = self.there.get(key)
        return 0 if there is None else len(there) if type(there) is dict else 1

    def is_only(self, key: _Key, conversation: Conversation) -> bool:
        """Whether there is no other one at a key."""
        return self.there.get(key) is conversation

    def __iter__(self) -> Iterator[Conversation]:
        for there in self.there.values():
            yield from there if type(there) is dict else (there,)  # type: ignore[misc]


class Conversations:
    """All conversations, least recently used first; at most `limit` and `max_bytes`, none idle for longer than
    `ttl_s`."""

    def __init__(self, limit: int, ttl_s: float, max_bytes: float = math.inf) -> None:
        self._limit = limit
        self._ttl_s = ttl_s
        self._max_bytes = max_bytes
        self.num_bytes = 0
        self._by_age: OrderedDict[int, Conversation] = OrderedDict()
        self.standing: Index[int] = Index()
        """By the link at which its latest prompt ends."""
        self.ended: Index[int] = Index()
        """By the links at which earlier ones ended."""
        self.recent: Index[int] = Index()
        """By the last messages of its latest prompt."""
        self.answered: Index[int] = Index()
        """By the ids of the calls of its latest answer."""
        self.sent: Index[int] = Index()
        """By what the calls of its latest answers said."""
        self.begun: Index[int] = Index()
        """By the opening of its task."""
        self.clued: Index[int] = Index()
        """By passages that it said last, or was last told."""
        self.named: Index[str] = Index()
        self._by_id: Index[SessionId] = Index()
        """Several conversations may have one id: a client's name for its side requests and for their agent."""
        self._num_born = 0

    def __len__(self) -> int:
        return len(self._by_age)

    def with_serial(self, serial: int) -> Conversation | None:
        return self._by_age.get(serial)

    def next_serial(self) -> int:
        self._num_born += 1
        return self._num_born

    def add(self, conversation: Conversation, now: float) -> None:
        self._by_age[conversation.serial] = conversation
        self._by_id.put(conversation.id, conversation)
        if conversation.name is not None:
            self.named.put(conversation.name, conversation)
        conversation.seen_at = now
        if len(self._by_age) > self._limit:
            self.forget(now)

    def change_id(self, conversation: Conversation, session_id: SessionId) -> None:
        self._by_id.take(conversation.id, conversation)
        conversation.id = session_id
        self._by_id.put(session_id, conversation)

    def rename(self, conversation: Conversation, name: str) -> None:
        if conversation.name is not None:
            self.named.take(conversation.name, conversation)
        conversation.name = name
        self.named.put(name, conversation)

    def advance(self, conversation: Conversation, links: Links, now: float) -> None:
        """The conversation has sent this prompt: it stands there from now on, and its last turns ended before."""
        if conversation.links.chain:
            end = conversation.links.chain[-1]
            self.standing.take(end, conversation)
            conversation.ends = (*conversation.ends, end)
            self.ended.put(end, conversation)
            if len(conversation.ends) > _PAST_ENDS:
                # The first end stays: there its task ends, and there most forks begin.
                first, second, *later = conversation.ends
                self.ended.take(second, conversation)
                conversation.ends = (first, *later)
        self.standing.put(links.chain[-1], conversation)
        before, recents = conversation.recents, set(links.hashes[-RECENT:])
        self.recent.move(before - recents, recents - before, conversation)
        conversation.recents = recents
        conversation.links = links
        self.touch(conversation, now)

    def weigh(self, conversation: Conversation) -> None:
        """Count its bytes again, after it has changed."""
        num_bytes = _OWN_BYTES + LINK_BYTES * (2 * len(conversation.links.hashes) + len(conversation.blocks))
        if conversation.errands:
            num_bytes += _NUMBER_BYTES * sum(map(len, conversation.errands))
        self.num_bytes += num_bytes - conversation.num_bytes
        conversation.num_bytes = num_bytes

    def put_answer(self, conversation: Conversation, errands: Sequence[tuple[int, ...]]) -> None:
        """It is found by the ids of its latest calls from now on, and by what its latest ones said."""
        before, conversation.ids = conversation.ids, ()
        if conversation.has_calls:
            tenant = conversation.links.chain[0]
            conversation.ids = tuple([hash((tenant, hash(mark))) for mark in conversation.marks[:_MOST_MARKS]])
        self.answered.move(before, conversation.ids, conversation)
        if errands:
            tenant = conversation.links.chain[0]
            self._put_errands(
                conversation, [tuple([own_key(tenant, part) for part in errand]) for errand in errands]
            )

    def _put_errands(self, conversation: Conversation, errands: list[tuple[int, ...]]) -> None:
        for errand in errands:
            self.sent.put(errand[0], conversation)
        kept = (*conversation.errands, *errands)
        conversation.errands = kept[-_MOST_ERRANDS:]
        left = {errand[0] for errand in conversation.errands}
        for errand in kept[:-_MOST_ERRANDS]:
            if errand[0] not in left:
                self.sent.take(errand[0], conversation)
        self.weigh(conversation)

    def put_opening(self, conversation: Conversation, opening: tuple[int, ...]) -> None:
        """It is found by the first words of its first prompt."""
        conversation.task = opening
        if opening:
            conversation.begun_with = opening[0]
            self.begun.put(opening[0], conversation)

    def put_clues(self, conversation: Conversation, clues: tuple[int, ...]) -> None:
        """It is found by these from now on, and no longer by earlier ones."""
        tenant = conversation.links.chain[0]
        before, conversation.clues = conversation.clues, tuple({hash((tenant, clue)) for clue in clues})
        self.clued.move(before, conversation.clues, conversation)

    def touch(self, conversation: Conversation, now: float) -> None:
        conversation.seen_at = now
        self._by_age.move_to_end(conversation.serial)

    def forget(self, now: float) -> None:
        """Drop what is too old, too many or too large."""
        while self._by_age:
            conversation = next(iter(self._by_age.values()))
            is_over = len(self._by_age) > self._limit or self.num_bytes > self._max_bytes
            if not is_over and conversation.seen_at >= now - self._ttl_s:
                return
            self._drop(conversation)

    def forget_session(self, session_id: SessionId) -> None:
        """Drop all conversations of a session."""
        for conversation in self._by_id.at(session_id, len(self._by_age)):
            self._drop(conversation)

    def _drop(self, conversation: Conversation) -> None:
        del self._by_age[conversation.serial]
        self.num_bytes -= conversation.num_bytes
        self._by_id.take(conversation.id, conversation)
        if conversation.links.chain:
            self.standing.take(conversation.links.chain[-1], conversation)
        for link in conversation.ends:
            self.ended.take(link, conversation)
        for message in conversation.recents:
            self.recent.take(message, conversation)
        for mark in conversation.ids:
            self.answered.take(mark, conversation)
        for errand in conversation.errands:
            self.sent.take(errand[0], conversation)
        if conversation.begun_with:
            self.begun.take(conversation.begun_with, conversation)
        if conversation.clues:
            self.put_clues(conversation, ())
        if conversation.name is not None:
            self.named.take(conversation.name, conversation)
