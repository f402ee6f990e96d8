"""Histories that restart from a summary, without an id: the session is found by content alone."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from itertools import count

from policies.recognition.chains import own_key, own_keys, size_of
from policies.recognition.conversations import SEARCHED, Conversation, Conversations
from policies.recognition.passages import last, passages
from policies.recognition.prompts import Prompt, SummaryRequest

_SUMMARY_BYTES = 4096
_HEAD_MESSAGES, _HEAD_BYTES = 4, 128 * 1024
"""A summary stands in one of the first messages, near its beginning."""
_SUMMARY_PASSAGES = 8
_FIRST_BYTES, _LAST_BYTES = 64 * 1024, 448 * 1024
"""Of a prompt, in which passages are looked for: the task stands at its beginning, what was said last at its end.
The passages of 8 MB took 170 ms."""


def summary_request(conversations: Conversations, prompt: Prompt) -> SummaryRequest:
    """Return the sessions that a request without tools points to by its text."""
    call = prompt.call
    clued = conversations.clued.there
    if not clued or clued.keys().isdisjoint(found := _passages_of(prompt)):
        return SummaryRequest(call.key, prompt.now, {})
    text = dict(zip(found, count(), strict=False))
    pointed = _pointed_to(conversations, text)
    depths = {}
    for one in pointed:
        is_held = text.keys() >= {*one.clues, *one.task}
        depths[one.serial] = 1 + min(map(text.__getitem__, one.clues)) if is_held else 0
    return SummaryRequest(call.key, prompt.now, depths)


class Summaries:
    """The latest answers to requests without tools: hashes of their ends, at most `limit`.

    An agent that runs out of context asks, without tools, for a summary of its history, and goes on from that. The
    session is found by its last words: passages of its latest answer (of its last message, where that failed)
    stand in the request for the summary, or the client keeps them behind the summary. It goes on in a prompt that
    1. has the same system text and tools, begins with that summary, and in it the model has spoken before: a
       summary handed to a new agent is a first message;
    2. points to a session that has been idle since before the summary was requested;
    3. asked for the summary, see `sum_up_of`; else the prompt holds all of those passages, or the request for
       the summary does, and the opening of the task too. Of twins any counts; of others there must be only one.
    """

    def __init__(self, limit: int = 1024) -> None:
        self._kept: deque[tuple[SummaryRequest, tuple[int, ...]]] = deque(maxlen=limit)

    def __len__(self) -> int:
        return len(self._kept)

    def keep(self, request: SummaryRequest, answer: bytes) -> None:
        """Keep the answer of a request."""
        if end := last(answer, _SUMMARY_BYTES, _SUMMARY_PASSAGES):
            self._kept.append((request, end))

    def restarted(self, conversations: Conversations, prompt: Prompt) -> Conversation | None:
        """Return the session that goes on in this prompt from a summary of itself; its task is now that
        summary."""
        first = prompt.call.messages[:_HEAD_MESSAGES]
        head = passages(b"".join([message[:_HEAD_BYTES] for message in first]))
        places: dict[int, list[int]] = {}
        for place, passage in enumerate(head):
            places.setdefault(passage, []).append(place)
        likely = [entry for entry in self._kept if entry[1][0] in places and entry[0].key == prompt.call.key]
        found = [entry for entry in likely if _stands_in(head, places[entry[1][0]], entry[1])]
        if not found:
            return None
        text = frozenset(_passages_of(prompt))
        pointed = _pointed_to(conversations, text)
        carried = {one.serial: text.issuperset(one.clues) for one in pointed}
        candidates = [_waiting_one(conversations, prompt, request, carried) for request, _ in found]
        conversation = candidates[0]
        if conversation is None or not are_twins(list(dict.fromkeys(one for one in candidates if one))):
            return None
        served = [entry for entry in found if entry[0].author == conversation.serial]
        served = served or [entry for entry in found if conversation.serial in entry[0].sessions] or found[:1]
        if any(len(entry[0].sessions) > 1 for entry in served):
            del served[1:]  # a twin may wait for the other one
        for entry in served:
            self._kept.remove(entry)
        conversation.task = tuple([own_key(prompt.links.chain[0], passage) for passage in served[0][1][-1:]])
        conversation.first_len = len(prompt.links.chain)
        return conversation


def _waiting_one(
    conversations: Conversations, prompt: Prompt, request: SummaryRequest, carried: Mapping[int, bool]
) -> Conversation | None:
    """Return the session that waited for this summary, if the request or the prompt holds all that is kept of it.

    `carried`: sessions that the prompt itself points to, and whether it holds all of what they said last.
    """
    known = map(conversations.with_serial, {**carried, **request.sessions})
    waiting = [one for one in known if one is not None and _waits(one, prompt, request.sent_at)]
    asking = next((one for one in waiting if one.serial == request.author), None)
    if asking is not None:
        return asking
    held = [one for one in waiting if request.sessions.get(one.serial) or carried.get(one.serial)]
    return min(held, key=lambda one: (not one.has_sum_up, one.serial)) if are_twins(held) else None


def sum_up_of(conversations: Conversations, request: SummaryRequest) -> Conversation | None:
    """Return the session whose summary is asked for: of those that the request holds one that waits, has not yet
    asked, and whose last words stand last. Of twins any counts; of other sessions there must be only one."""
    sessions = request.sessions
    known = map(conversations.with_serial, sessions)
    held = [one for one in known if one is not None and one.tools and not one.running and sessions[one.serial]]
    held = [one for one in held if not one.has_sum_up] or held
    if not are_twins(held):
        deepest = max([sessions[one.serial] for one in held], default=0)
        held = [one for one in held if sessions[one.serial] == deepest]
    return min(held, key=lambda one: one.serial) if are_twins(held) else None


def are_twins(conversations: Sequence[Conversation]) -> bool:
    """Whether it is one session, or all have sent the same and were answered the same; False: there is none."""
    looks = {(one.links.chain[-1], one.tools, one.system, one.marks, one.clues) for one in conversations}
    return len(conversations) == 1 or (len(looks) == 1 and conversations[0].marks != ())


def _waits(conversation: Conversation, prompt: Prompt, since: float) -> bool:
    """Whether the same agent has been idle since then."""
    agent = (conversation.key, conversation.tools, conversation.system)
    is_same = agent == (prompt.call.key, prompt.tools, prompt.system)
    return is_same and not conversation.running and conversation.seen_at <= since


def _passages_of(prompt: Prompt) -> list[int]:
    tenant = prompt.links.chain[0]
    return own_keys(tenant, passages(_ends(prompt.call.messages)))


def _ends(messages: Sequence[bytes]) -> bytes:
    """Return the beginning and the end of a prompt; a short one in whole. What is between is not written."""
    if size_of(messages) <= _FIRST_BYTES + _LAST_BYTES:
        return b"".join(messages)
    first: list[bytes] = []
    last: list[bytes] = []
    left = _FIRST_BYTES
    for at in range(len(messages)):
        first.append(messages[at][:left])
        if (left := left - len(first[-1])) <= 0:
            break
    left = _LAST_BYTES
    for at in range(len(messages) - 1, -1, -1):
        last.append(messages[at][-left:])
        if (left := left - len(last[-1])) <= 0:
            break
    return b"\n".join((*first, *reversed(last)))


def _pointed_to(conversations: Conversations, text: Iterable[int]) -> list[Conversation]:
    """Return sessions of which a passage stands in the text, those first of which a rare one does."""
    pointed: dict[Conversation, None] = {}
    for _, key in sorted((size, key) for key in text if (size := conversations.clued.size(key))):
        if len(pointed) > SEARCHED:
            break
        pointed.update(dict.fromkeys(conversations.clued.at(key)))
    return list(pointed)


def _stands_in(text: Sequence[int], starts: Sequence[int], end: tuple[int, ...]) -> bool:
    """Whether the passages `end` stand in the text. `starts`: where the first of them does, so that a text that
    repeats it endlessly is not searched to its end."""
    return any(tuple(text[start : start + len(end)]) == end for start in starts[:SEARCHED])
