"""Which session a prompt continues: the rules, in order, over hash chains and over ids that clients give.

Split when unsure: a session wrongly split costs a lease, two wrongly merged corrupt the order. What decides:
1. A prompt that extends all of a session's last prompt is its next turn. Among identical siblings: the one
   whose answer it carries.
2. The same prompt again is a retry if the earlier one ended without a complete answer, or if the client says
   so; else it is a sibling (best-of-n is n sessions).
3. A prompt that changes or drops the last one or two messages is the next turn if it carries the session's
   last answer; or, where that answer is unknown or failed, if the session's own task is in what stayed.
4. Another continuation of what a session sent is a fork: a new session with a parent.
5. No tools where the session or its family offers them: a side request, which moves nothing.
An id given by the client widens 3 (undo, a changed date, a history restarted from a summary) and never
joins what runs at the same time: two runs under one id are two sessions. Without one, a history that restarts
from a summary is found by `policies.summaries`.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from policies.recognition.chains import Chain, common, size_of
from policies.recognition.conversations import TAIL, Conversation
from policies.types import SessionId, TurnKind, value

SEARCHED = 64
"""Sessions examined at one point of a chain for a changed tail or a repeated prompt; beyond that we split."""
FELLOWS = 1024
"""Sessions with one prompt among which the one is found whose answer the next prompt carries."""
SEARCHED_BYTES = 64 * 2**20
"""Of text searched for answers, for one prompt: a thousand siblings times a long prompt would take minutes. An
answer that is not found by then counts as not carried."""

_SPEAKERS = (b"assistant", b"function_call")
_SPEAKER_BYTES = 16
"""A canonical message begins with who speaks."""


class Rule(StrEnum):
    """Why a prompt was given to its session."""

    NEXT = "next"
    RETRY = "retry"
    TAIL = "tail"
    RESTART = "restart"  # same id, same agent, another history: a summary took its place
    FORK = "fork"
    SIBLING = "sibling"
    NEW = "new"
    SIDE = "side"


@value
class Call:
    """One prompt, and what its client said about where it belongs."""

    key: bytes
    """Hash key of its tenant and model; nothing matches across keys. At most 64 bytes."""
    tools: tuple[bytes, ...]
    system: bytes
    messages: Sequence[bytes]
    name: SessionId | None = None
    """The client's session id, hashed together with the tenant; becomes the id of the first session under it."""
    parent: SessionId | None = None
    """Likewise the id of the parent."""
    group: bytes | None = None
    """`prompt_cache_key`."""
    says_retry: bool = False
    expects_tools: bool = False
    """Whether every turn of this kind of client offers tools, so that one without is a side request."""
    tools_first: bool = False
    """Whether the served model renders tools before the system text."""

    @property
    def num_chars(self) -> int:
        return len(self.system) + sum(map(len, self.tools)) + size_of(self.messages)


class Carried:
    """What a prompt brings behind what was known of it, searched for sessions' answers."""

    __slots__ = ("_left_bytes", "_messages", "_start", "_text")

    def __init__(self, messages: Sequence[bytes]) -> None:
        self._messages = messages
        self._start = 0
        self._text = b""
        """Of the messages behind the first `_start` links."""
        self._left_bytes = SEARCHED_BYTES

    def holds(self, marks: Sequence[bytes], start: int) -> bool:
        """Whether what follows the first `start` links holds one of these."""
        if marks and start != self._start and self._left_bytes > 0:
            self._start, self._text = start, b"\n".join(self._messages[start - 1 :])
            self._left_bytes -= len(self._text)
        for mark in marks:
            if self._left_bytes <= 0:
                return False
            self._left_bytes -= len(self._text)
            if mark in self._text:
                return True
        return False


@value
class Asked:
    """A call and its hashes."""

    call: Call
    chain: Chain
    tools: int
    """0: offers none."""
    carried: Carried

    def carries_answer(self, strand: Conversation, start: int) -> bool:
        """Whether what follows the first `start` links holds the strand's last answer."""
        return self.carried.holds(strand.marks, start)

    def has_history(self) -> bool:
        """Whether the model has spoken in it: then it is no first request."""
        return any(speaker in message[:_SPEAKER_BYTES] for message in self.call.messages for speaker in _SPEAKERS)


@value
class Match:
    """What a prompt is, and to which session."""

    rule: Rule
    strand: Conversation | None = None
    """The session, or the one that it forks from or serves."""


NOBODY = Match(Rule.NEW)


def hash_of_tools(key: bytes, tools: tuple[bytes, ...]) -> int:
    """0: there are none."""
    return hash((key, tools)) or 1 if tools else 0


def judge(there: Sequence[Conversation], asked: Asked, last: int) -> Match | None:
    """What a prompt is to the sessions known at its link `last`; None: nothing."""
    is_same = last == len(asked.chain) - 1
    there = there[-SEARCHED if is_same else -FELLOWS :]
    whole = [strand for strand in there if strand.chain[-1] == asked.chain[last]]
    if whole:
        if is_same:
            return _again(whole, asked)
        if len(whole) == 1:
            return Match(Rule.NEXT, whole[0])
        whole.sort(key=lambda strand: _likelihood(strand, asked), reverse=True)
        answered = (strand for strand in whole if asked.carries_answer(strand, last + 1))
        return Match(Rule.NEXT, next(answered, whole[0]))
    fork = None
    for strand in there[: -SEARCHED - 1 : -1]:
        shared = common(strand.chain, asked.chain)
        if _is_tail_change(strand, asked, shared):
            return Match(Rule.TAIL, strand)
        if fork is None and shared >= strand.first_len:
            is_first = shared == strand.first_len == len(asked.chain)
            fork = Match(Rule.SIBLING if is_first else Rule.FORK, strand)
    return fork


def _again(same: Sequence[Conversation], asked: Asked) -> Match:
    """The last prompt of these sessions, sent once more."""
    same = [strand for strand in same if strand.tools == asked.tools]
    failed = next((strand for strand in same if not strand.running and not strand.is_complete), None)
    if failed is None and asked.call.says_retry and same:
        failed = max(same, key=lambda strand: (strand.running > 0, strand.serial))
    return Match(Rule.RETRY, failed) if failed else Match(Rule.SIBLING)


def _likelihood(strand: Conversation, asked: Asked) -> tuple[bool, bool, bool, int]:
    """Of sessions that all, or none, have their answer in the prompt."""
    return (
        strand.tools == asked.tools,
        strand.is_complete,
        not strand.running,
        -strand.serial,
    )


def _is_tail_change(strand: Conversation, asked: Asked, shared: int) -> bool:
    lost, new = len(strand.chain) - shared, len(asked.chain) - shared
    if strand.running or not 1 <= lost <= TAIL:
        return False
    if asked.carries_answer(strand, shared):
        return True
    if shared < strand.first_len or (not new and shared == strand.first_len):
        return False
    return not strand.is_complete or (not strand.marks and new > lost)


def is_restart(strand: Conversation, asked: Asked, has_history: bool) -> bool:
    """The same agent under the same id, idle, with a history that begins anew but not at a first message."""
    if strand.key != asked.call.key or strand.kind is not TurnKind.AGENT or strand.running:
        return False
    is_same_agent = strand.chain[0] == asked.chain[0] or (asked.tools != 0 and strand.tools == asked.tools)
    return is_same_agent and (strand.was_summed_up or has_history)
