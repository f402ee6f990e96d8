"""The memory of lineage: one Conversation per session, found by the prompts it has sent, bounded in number and
age."""

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
    """The memory that recognition has of one session: hashes of content and marks of its last answer, no
    content."""

    id: SessionId
    key: bytes
    """Of its tenant and model."""
    serial: int
    name: str | None
    """The session id that its client gave, hashed. None: it gave none."""
    parent_id: SessionId | None
    family: FamilyRecord
    kind: TurnKind
    tools: int
    """Hash of the tools it offers; 0: none."""
    first_len: int
    """Links of its first request. A prefix that reaches there carries the session's own task."""
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
    """All conversations, least recently used first; at most `limit`, none idle for longer than `ttl_s`."""

    def __init__(self, limit: int, ttl_s: float) -> None:
        self._limit = limit
        self._ttl_s = ttl_s
        self._by_age: OrderedDict[int, Conversation] = OrderedDict()
        self._by_link: dict[int, list[Conversation]] = {}
        self._by_id: dict[SessionId, list[Conversation]] = {}
        """Several conversations may have one id: a client's name for its side requests and for their agent."""
        self._by_name: dict[str, list[Conversation]] = {}
        self._by_clue: dict[int, list[Conversation]] = {}
        self._num_born = 0

    def __len__(self) -> int:
        return len(self._by_age)

    def with_serial(self, serial: int) -> Conversation | None:
        return self._by_age.get(serial)

    @property
    def has_clues(self) -> bool:
        return bool(self._by_clue)

    def at(self, link: int) -> Sequence[Conversation]:
        """Conversations that have sent a prompt ending at `link` or up to TAIL messages behind it, oldest
        first."""
        return self._by_link.get(link, ())

    def named(self, name: str) -> Sequence[Conversation]:
        return self._by_name.get(name, ())

    def with_clue(self, clue: int) -> Sequence[Conversation]:
        """Conversations that said this last, or were last told it."""
        return self._by_clue.get(clue, ())

    def next_serial(self) -> int:
        self._num_born += 1
        return self._num_born

    def add(self, conversation: Conversation, now: float) -> None:
        self._by_age[conversation.serial] = conversation
        _put(self._by_id, conversation.id, conversation)
        if conversation.name is not None:
            _put(self._by_name, conversation.name, conversation)
        conversation.seen_at = now
        if len(self._by_age) > self._limit:
            self.forget(now)

    def change_id(self, conversation: Conversation, session_id: SessionId) -> None:
        _take(self._by_id, conversation.id, conversation)
        conversation.id = session_id
        _put(self._by_id, session_id, conversation)

    def rename(self, conversation: Conversation, name: str) -> None:
        self._drop_name(conversation)
        conversation.name = name
        _put(self._by_name, name, conversation)

    def advance(self, conversation: Conversation, chain: Chain, now: float) -> None:
        """The conversation has sent this prompt: it is found there from now on, and at the ends of its last
        turns."""
        if conversation.chain:
            conversation.ends = (*conversation.ends, conversation.chain[-1])
            _put(self._by_link, conversation.chain[-1], conversation)
        for link in conversation.tips:
            _take(self._by_link, link, conversation)
        if len(conversation.ends) > _PAST_ENDS:
            # The first end stays: there its task ends, and there most forks begin.
            first, second, *later = conversation.ends
            _take(self._by_link, second, conversation)
            conversation.ends = (first, *later)
        # The system text alone (link 0) says nothing about a session.
        conversation.tips = tuple(chain[max(1, len(chain) - 1 - TAIL) :])
        for link in conversation.tips:
            _put(self._by_link, link, conversation)
        conversation.chain = chain
        self.touch(conversation, now)

    def put_clues(self, conversation: Conversation, clues: tuple[int, ...]) -> None:
        """It is found by these from now on, and no longer by earlier ones."""
        for clue in conversation.clues:
            _take(self._by_clue, clue, conversation)
        conversation.clues = tuple(dict.fromkeys(clues))
        for clue in conversation.clues:
            _put(self._by_clue, clue, conversation)

    def touch(self, conversation: Conversation, now: float) -> None:
        conversation.seen_at = now
        self._by_age.move_to_end(conversation.serial)

    def forget(self, now: float) -> None:
        """Drop what is too old or too many."""
        while self._by_age:
            conversation = next(iter(self._by_age.values()))
            if len(self._by_age) <= self._limit and conversation.seen_at >= now - self._ttl_s:
                return
            self._drop(conversation)

    def forget_session(self, session_id: SessionId) -> None:
        """Drop all conversations of a session."""
        for conversation in tuple(self._by_id.get(session_id, ())):
            self._drop(conversation)

    def _drop(self, conversation: Conversation) -> None:
        del self._by_age[conversation.serial]
        _take(self._by_id, conversation.id, conversation)
        for link in (*conversation.ends, *conversation.tips):
            _take(self._by_link, link, conversation)
        self.put_clues(conversation, ())
        self._drop_name(conversation)

    def _drop_name(self, conversation: Conversation) -> None:
        if conversation.name is not None:
            _take(self._by_name, conversation.name, conversation)


def _put(index: dict[_Key, list[Conversation]], key: _Key, conversation: Conversation) -> None:
    index.setdefault(key, []).append(conversation)


def _take(index: dict[_Key, list[Conversation]], key: _Key, conversation: Conversation) -> None:
    there = index[key]
    there.remove(conversation)
    if not there:
        del index[key]
