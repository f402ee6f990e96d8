"""Which session a prompt continues: the rules, in order, over hash chains and over ids that clients give.

An unsure case is split: a session that is wrongly split costs a lease; two that are wrongly merged corrupt the
order. The rules:
1. A prompt that extends all of a session's last prompt is its next turn. Among identical siblings: the one
   whose answer it carries.
2. The same prompt again is a retry if the earlier one ended without a complete answer, or if the client says
   so; else it is a sibling (best-of-n is n sessions).
3. A prompt that changes or drops the last one or two messages is the next turn if it carries the session's
   last answer; or, where that answer is unknown or failed, if the session's own task is in what stayed.
4. Another continuation of what a session sent is a fork: a new session with a parent.
5. No tools where the session or its family offers them: a side request, which moves nothing.
An id given by the client widens 3 (undo, a changed date, a history restarted from a summary). It never joins runs
of the same time: two runs under one id are two sessions. Without an id, `Summaries` finds a history that restarts
from a summary.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from policies.recognition.chains import Chain, common, size_of
from policies.recognition.conversations import TAIL, Conversation, Conversations
from policies.types import SessionId, TurnKind, value

SEARCHED = 64
"""Sessions examined at one point of a chain for a changed tail or a repeated prompt; others are split."""
FELLOWS = 1024
"""Sessions with one prompt among which the one is found whose answer the next prompt carries."""
SEARCHED_BYTES = 64 * 2**20
"""Text searched for answers, for one prompt: a thousand siblings times a long prompt would take minutes. An answer
that is not found in it counts as not carried."""

_SPEAKERS = (b"assistant", b"function_call")
_SPEAKER_BYTES = 16
"""A canonical message begins with its speaker."""


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
    """One prompt, and its client's claims about its session."""

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
    """The new part of a prompt, searched for the answers of sessions."""

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
class Prompt:
    """A call with its hashes."""

    call: Call
    chain: Chain
    tools: int
    """0: offers none."""
    carried: Carried

    def carries_answer(self, conversation: Conversation, start: int) -> bool:
        """Whether what follows the first `start` links holds the conversation's last answer."""
        return self.carried.holds(conversation.marks, start)

    def has_history(self) -> bool:
        """Whether the model has spoken in it; then it is no first request."""
        return any(speaker in message[:_SPEAKER_BYTES] for message in self.call.messages for speaker in _SPEAKERS)


@value
class Match:
    """The rule that a prompt matches, and the session."""

    rule: Rule
    conversation: Conversation | None = None
    """The session, or the one that it forks from or serves."""


NOBODY = Match(Rule.NEW)


def hash_of_tools(key: bytes, tools: tuple[bytes, ...]) -> int:
    """0: there are none."""
    return hash((key, tools)) or 1 if tools else 0


def judge(there: Sequence[Conversation], prompt: Prompt, last: int) -> Match | None:
    """Match a prompt with the sessions known at its link `last`; None: no rule applies."""
    is_same = last == len(prompt.chain) - 1
    there = there[-SEARCHED if is_same else -FELLOWS :]
    whole = [conversation for conversation in there if conversation.chain[-1] == prompt.chain[last]]
    if whole:
        if is_same:
            return _again(whole, prompt)
        if len(whole) == 1:
            return Match(Rule.NEXT, whole[0])
        whole.sort(key=lambda conversation: _likelihood(conversation, prompt), reverse=True)
        answered = (conversation for conversation in whole if prompt.carries_answer(conversation, last + 1))
        return Match(Rule.NEXT, next(answered, whole[0]))
    fork = None
    for conversation in there[: -SEARCHED - 1 : -1]:
        shared = common(conversation.chain, prompt.chain)
        if _is_tail_change(conversation, prompt, shared):
            return Match(Rule.TAIL, conversation)
        if fork is None and shared >= conversation.first_len:
            is_first = shared == conversation.first_len == len(prompt.chain)
            fork = Match(Rule.SIBLING if is_first else Rule.FORK, conversation)
    return fork


def _again(same: Sequence[Conversation], prompt: Prompt) -> Match:
    """Match the last prompt of these sessions, sent once more."""
    same = [conversation for conversation in same if conversation.tools == prompt.tools]
    failed = next(
        (conversation for conversation in same if not conversation.running and not conversation.is_complete), None
    )
    if failed is None and prompt.call.says_retry and same:
        failed = max(same, key=lambda conversation: (conversation.running > 0, conversation.serial))
    return Match(Rule.RETRY, failed) if failed else Match(Rule.SIBLING)


def _likelihood(conversation: Conversation, prompt: Prompt) -> tuple[bool, bool, bool, int]:
    """Sort key for sessions that all, or none, have their answer in the prompt; the largest is the likeliest."""
    return (
        conversation.tools == prompt.tools,
        conversation.is_complete,
        not conversation.running,
        -conversation.serial,
    )


def _is_tail_change(conversation: Conversation, prompt: Prompt, shared: int) -> bool:
    lost, new = len(conversation.chain) - shared, len(prompt.chain) - shared
    if conversation.running or not 1 <= lost <= TAIL:
        return False
    if prompt.carries_answer(conversation, shared):
        return True
    if shared < conversation.first_len or (not new and shared == conversation.first_len):
        return False
    return not conversation.is_complete or (not conversation.marks and new > lost)


def is_restart(conversation: Conversation, prompt: Prompt, has_history: bool) -> bool:
    """Whether an idle session of the same agent and id goes on with another history, which is no first message."""
    if conversation.key != prompt.call.key or conversation.kind is not TurnKind.AGENT or conversation.running:
        return False
    is_same_agent = conversation.chain[0] == prompt.chain[0] or (
        prompt.tools != 0 and conversation.tools == prompt.tools
    )
    return is_same_agent and (conversation.was_summed_up or has_history)


# ---- histories that restart from a summary: the session is found by content alone

_BREAKS = (b"\\n", b"\\r", b"\\t", b'"', b": ")
_LEAST_BYTES = 12
"""A shorter passage occurs by chance."""
OPENING_BYTES = 4096
_ANSWER_BYTES = 2048
_SUMMARY_BYTES = 4096
_HEAD_MESSAGES = 4
"""A summary stands in one of the first messages."""
_ANSWER_PASSAGES = 4
_SUMMARY_PASSAGES = 8


def passages(text: bytes) -> list[int]:
    """Return hashes of the passages between line breaks, quotes and colons of JSON text.

    A hash stays equal when a client quotes the text, escapes it once more, or puts a role before it.
    """
    for break_ in _BREAKS:
        text = text.replace(break_, b"\n")
    long = (part.strip(b"\\ ") for part in text.split(b"\n") if len(part) >= _LEAST_BYTES)
    return [hash(part) for part in long if len(part) >= _LEAST_BYTES]


def opening(message: bytes) -> tuple[int, ...]:
    """Return the first passage in the first OPENING_BYTES of a message, if there is one."""
    return tuple(passages(message[:OPENING_BYTES])[:1])


def latest(answer: bytes) -> tuple[int, ...]:
    """Return the last passages of a turn's answer."""
    return _last(answer, _ANSWER_BYTES, _ANSWER_PASSAGES)


@dataclass(slots=True, eq=False)
class SummaryRequest:
    """A request without tools, and the sessions whose summary it may ask for."""

    key: bytes
    sent_at: float
    sessions: Mapping[int, bool] | None
    """Serial numbers of those it points to, and whether it holds all that was kept of them. None: too many."""


def summary_request(conversations: Conversations, call: Call, now: float) -> SummaryRequest:
    """Return the sessions that a request without tools points to by its text."""
    if not conversations.has_clues:
        return SummaryRequest(call.key, now, {})
    text = frozenset(passages(b"".join(call.messages)))
    pointed = _pointed_to(conversations, text)
    if pointed is None:
        return SummaryRequest(call.key, now, None)
    return SummaryRequest(call.key, now, {one.serial: text.issuperset((*one.clues, *one.task)) for one in pointed})


class Summaries:
    """The latest answers to requests without tools: hashes of their ends, at most `limit`.

    An agent that runs out of context asks, without tools, for a summary of its history, and goes on from that. The
    session is found by its last words: passages of its latest answer (of its last message, where that failed)
    stand in the request for the summary, or the client keeps them behind the summary. It goes on in a prompt that
    1. has the same system text and tools, begins with that summary, and in it the model has spoken before: a
       summary handed to a new agent is a first message;
    2. points to exactly one such session, idle since before the summary was requested; to be pointed to, one
       passage is enough: it makes another link doubtful;
    3. holds all of those passages; or the request for the summary does, and the opening of the task too.
    """

    def __init__(self, limit: int = 1024) -> None:
        self._kept: deque[tuple[SummaryRequest, tuple[int, ...]]] = deque(maxlen=limit)

    def __len__(self) -> int:
        return len(self._kept)

    def keep(self, request: SummaryRequest, answer: bytes) -> None:
        """Keep the answer of a request."""
        if end := _last(answer, _SUMMARY_BYTES, _SUMMARY_PASSAGES):
            self._kept.append((request, end))

    def restarted(self, conversations: Conversations, prompt: Prompt) -> Conversation | None:
        """Return the session that goes on in this prompt from a summary of itself; its task is now that
        summary."""
        head = passages(b"".join(prompt.call.messages[:_HEAD_MESSAGES]))
        places: dict[int, list[int]] = {}
        for place, passage in enumerate(head):
            places.setdefault(passage, []).append(place)
        likely = [entry for entry in self._kept if entry[1][0] in places and entry[0].key == prompt.call.key]
        found = [entry for entry in likely if _stands_in(head, places[entry[1][0]], entry[1])]
        if not found:
            return None
        text = frozenset(passages(b"".join(prompt.call.messages)))
        pointed = _pointed_to(conversations, text)
        if pointed is None:
            return None
        carried = {one.serial: text.issuperset(one.clues) for one in pointed}
        candidates = {_only_one(conversations, prompt, request, carried) for request, _ in found}
        conversation = candidates.pop()
        if candidates or conversation is None:
            return None
        served = [entry for entry in found if conversation.serial in (entry[0].sessions or ())] or found[:1]
        for entry in served:
            self._kept.remove(entry)
        conversation.task, conversation.first_len = served[0][1][-1:], len(prompt.chain)
        return conversation


def _only_one(
    conversations: Conversations, prompt: Prompt, request: SummaryRequest, carried: Mapping[int, bool]
) -> Conversation | None:
    """Return the one session that waited for this summary, if the request or the prompt holds all that is kept of
    it.

    `carried`: sessions that the prompt itself points to, and whether it holds all of what they said last.
    """
    if request.sessions is None:
        return None
    known = map(conversations.with_serial, {**carried, **request.sessions})
    waiting = [one for one in known if one is not None and _waits(one, prompt, request.sent_at)]
    if len(waiting) != 1:
        return None
    serial = waiting[0].serial
    return waiting[0] if request.sessions.get(serial) or carried.get(serial) else None


def _waits(conversation: Conversation, prompt: Prompt, since: float) -> bool:
    """Whether the same agent has been idle since then."""
    agent = (conversation.key, conversation.tools, conversation.chain[0])
    is_same = agent == (prompt.call.key, prompt.tools, prompt.chain[0])
    return is_same and not conversation.running and conversation.seen_at <= since


def _pointed_to(conversations: Conversations, text: Iterable[int]) -> Collection[Conversation] | None:
    """Return the sessions of which a passage stands in the text; None: too many."""
    pointed: dict[Conversation, None] = {}
    for passage in text:
        pointed.update(dict.fromkeys(conversations.with_clue(passage)))
        if len(pointed) > SEARCHED:
            return None
    return pointed


def _last(text: bytes, num_bytes: int, count: int) -> tuple[int, ...]:
    found = passages(text[-num_bytes:])
    is_cut = len(text) > num_bytes and len(found) > 1
    return tuple(found[is_cut:][-count:])


def _stands_in(text: Sequence[int], starts: Sequence[int], end: tuple[int, ...]) -> bool:
    """Whether the passages `end` stand in the text. `starts`: where the first of them does, so that a text that
    repeats it endlessly is not searched to its end."""
    return any(tuple(text[start : start + len(end)]) == end for start in starts[:SEARCHED])
