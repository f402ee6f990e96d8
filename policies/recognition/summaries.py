"""Histories that restart from a summary: which session goes on there, told by content alone.

An agent that runs out of context asks, without tools, for a summary of its history, and goes on from that. The
session is found by what it said last: passages of its latest answer (of its last message, where that failed)
stand in the request for the summary, or the client keeps them behind the summary. It goes on in a prompt that
1. has the same system text and tools, begins with that summary, and in it the model has spoken before: a
   summary handed to a new agent is a first message;
2. points to exactly one such session, idle since before the summary was asked for; to be pointed to, one
   passage is enough: it makes another link doubtful;
3. holds all of those passages; or the request for the summary does, and the opening of the task too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from policies.recognition.continuation import SEARCHED, Asked, Call
from policies.recognition.conversations import Conversation, Conversations

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
    """Hashes of what stands between line breaks, quotes and colons of JSON text; this process's own.

    They stay equal when a client quotes the text, escapes it once more, or puts a role before it.
    """
    for break_ in _BREAKS:
        text = text.replace(break_, b"\n")
    long = (part.strip(b"\\ ") for part in text.split(b"\n") if len(part) >= _LEAST_BYTES)
    return [hash(part) for part in long if len(part) >= _LEAST_BYTES]


def opening(message: bytes) -> tuple[int, ...]:
    """The first passage of a message, looked for in OPENING_BYTES; nothing if it has none."""
    return tuple(passages(message[:OPENING_BYTES])[:1])


def latest(answer: bytes) -> tuple[int, ...]:
    """The last passages of a turn's answer."""
    return _last(answer, _ANSWER_BYTES, _ANSWER_PASSAGES)


@dataclass(slots=True, eq=False)
class Telling:
    """A request without tools, and the sessions that it may tell of."""

    key: bytes
    asked_at: float
    sessions: Mapping[Conversation, bool] | None
    """Those it points to, and whether it holds all that was kept of them. None: too many to say."""


def telling(strands: Conversations, call: Call, now: float) -> Telling:
    """What a request without tools tells of, going by its text."""
    if not strands.has_clues:
        return Telling(call.key, now, {})
    told = frozenset(passages(b"".join(call.messages)))
    pointed = _pointed_to(strands, told)
    if pointed is None:
        return Telling(call.key, now, None)
    return Telling(call.key, now, {strand: told.issuperset((*strand.clues, *strand.task)) for strand in pointed})


class Summaries:
    """The latest answers to requests without tools: hashes of their ends, at most `limit`."""

    def __init__(self, limit: int = 1024) -> None:
        self._kept: deque[tuple[Telling, tuple[int, ...]]] = deque(maxlen=limit)

    def __len__(self) -> int:
        return len(self._kept)

    def keep(self, told: Telling, answer: bytes) -> None:
        """The request was answered so."""
        if end := _last(answer, _SUMMARY_BYTES, _SUMMARY_PASSAGES):
            self._kept.append((told, end))

    def restarted(self, strands: Conversations, asked: Asked) -> Conversation | None:
        """The session that goes on in this prompt from a summary of itself; that is now what it began with."""
        head = passages(b"".join(asked.call.messages[:_HEAD_MESSAGES]))
        places: dict[int, list[int]] = {}
        for place, passage in enumerate(head):
            places.setdefault(passage, []).append(place)
        likely = [entry for entry in self._kept if entry[1][0] in places and entry[0].key == asked.call.key]
        found = [entry for entry in likely if _stands_in(head, places[entry[1][0]], entry[1])]
        if not found:
            return None
        prompt = frozenset(passages(b"".join(asked.call.messages)))
        carried = _pointed_to(strands, prompt)
        if carried is None:
            return None
        whole = {strand: prompt.issuperset(strand.clues) for strand in carried}
        those = {_only_one(strands, asked, told, whole) for told, _ in found}
        strand = those.pop()
        if those or strand is None:
            return None
        served = [entry for entry in found if strand in (entry[0].sessions or ())] or found[:1]
        for entry in served:
            self._kept.remove(entry)
        strand.task, strand.first_len = served[0][1][-1:], len(asked.chain)
        return strand


def _only_one(
    strands: Conversations, asked: Asked, told: Telling, carried: Mapping[Conversation, bool]
) -> Conversation | None:
    """The one session that waited for this summary, if the request or the prompt holds all that is kept of it.

    `carried`: sessions that the prompt itself points to, and whether it holds all of what they said last.
    """
    if told.sessions is None:
        return None
    waiting = [s for s in {**carried, **told.sessions} if _waits(strands, s, asked, told.asked_at)]
    if len(waiting) != 1 or not (told.sessions.get(waiting[0]) or carried.get(waiting[0])):
        return None
    return waiting[0]


def _waits(strands: Conversations, strand: Conversation, asked: Asked, since: float) -> bool:
    """Whether the same agent has been idle since then."""
    is_same = (strand.key, strand.tools, strand.chain[0]) == (asked.call.key, asked.tools, asked.chain[0])
    return is_same and not strand.running and strand.seen_at <= since and strand in strands


def _pointed_to(strands: Conversations, told: Iterable[int]) -> Collection[Conversation] | None:
    """Sessions of which some passage is told; None: too many."""
    pointed: dict[Conversation, None] = {}
    for passage in told:
        pointed.update(dict.fromkeys(strands.with_clue(passage)))
        if len(pointed) > SEARCHED:
            return None
    return pointed


def _last(text: bytes, num_bytes: int, count: int) -> tuple[int, ...]:
    found = passages(text[-num_bytes:])
    is_cut = len(text) > num_bytes and len(found) > 1
    return tuple(found[is_cut:][-count:])


def _stands_in(text: Sequence[int], starts: Sequence[int], end: tuple[int, ...]) -> bool:
    """`starts`: where its first passage stands. A text that repeats that endlessly is not searched to its end."""
    return any(tuple(text[start : start + len(end)]) == end for start in starts[:SEARCHED])
