"""A prompt and its client's claims, as recognition sees them: hashes, and the text of what is new."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice

from policies.recognition.chains import Chain, Links, Texts, own_key, size_of
from policies.recognition.passages import opening
from policies.types import SessionId, value

SEARCHED_BYTES, LOOK_BYTES, LOOK_MESSAGES = 32 * 2**20, 4 * 2**20, 1_024
"""Text searched for answers, for one prompt and in one look: a thousand siblings times a long prompt would take
minutes. An answer stands at the beginning of what is new; one that is not found counts as not carried."""

_FEW = 64
"""Messages that are looked at one by one, and the most in a row that are one answer."""
_ANSWER_BYTES = 16 * 2**10
"""Of each message of the latest answer, in which ids are looked for."""
SPEAKERS = ("assistant", "function_call", "custom_tool_call", "reasoning", "local_shell_call", "web_search_call")
"""What the model says: a message, or an item of one of these types."""
_SAID = tuple([f'["{speaker}"'.encode() for speaker in SPEAKERS])
"""A canonical message begins with its speaker."""


@value
class Call:
    """One prompt, and its client's claims about its session."""

    key: bytes
    """Hash key of its tenant and model, for families and residency. At most 64 bytes."""
    tools: tuple[bytes, ...]
    system: bytes
    messages: Sequence[bytes]
    tenant: bytes = b""
    """Hash key of its tenant; no session is found under another. Empty: that of `key`."""
    system_hash: int = 0
    """Of the system text, equal only for equal ones; 0: to be made."""
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
    blocks: Chain | None = None
    """The residency chain, where it was made beforehand."""

    @property
    def num_chars(self) -> int:
        return len(self.system) + sum(map(len, self.tools)) + size_of(self.messages)


@dataclass(slots=True, eq=False)
class SummaryRequest:
    """A request without tools, and the sessions whose summary it may ask for."""

    key: bytes
    sent_at: float
    sessions: Mapping[int, int]
    """Serial numbers of those it points to, and the place of the first of its last words; 0: it does not hold all
    that was kept of them."""
    author: int = 0
    """That of the session that it was counted for; 0: none was sure."""


@value
class SystemChange:
    """A later turn of a session has another system text than the turn before."""

    before: int
    """Hash of the earlier text."""
    num_messages: int
    """First messages that both prompts have."""


class Prompt:
    """A call with its hashes."""

    def __init__(self, call: Call, links: Links, now: float) -> None:
        self.call = call
        self.links = links
        self.now = now
        self.tools = hash(call.tools) or 1 if call.tools else 0
        """Hash of its tools; 0: offers none."""
        self.system = call.system_hash or hash(call.system)
        self.asks: SummaryRequest | None = None
        """Where it was looked for: the sessions whose summary it may ask for."""
        self._start = -1
        self._text = b""
        """That is searched: of the messages from `_start` on."""
        self._left_bytes = SEARCHED_BYTES

    def carries(self, marks: Sequence[bytes], start: int) -> int:
        """Return whether the messages from `start` on hold an answer with these marks: 1 they do, -1 they do not;
        0: it has none."""
        if not marks:
            return 0
        if start != self._start and self._left_bytes > 0:
            self._start = start
            self._look(range(start, len(self.call.messages)))
        return 1 if self._is_in_text(marks) else -1

    def holds(self, marks: Sequence[bytes], places: Sequence[int]) -> bool:
        """Return whether the messages at these places hold one of the marks."""
        if self._left_bytes > 0:
            self._start = -1
            self._look(places)
        return self._is_in_text(marks)

    def _look(self, places: Iterable[int]) -> None:
        """Take the first LOOK_MESSAGES and LOOK_BYTES at these places as the text that is searched."""
        texts, left = [], LOOK_BYTES
        for at in islice(places, LOOK_MESSAGES):
            texts.append(self.call.messages[at][:left])
            left -= len(texts[-1])
            if left <= 0:
                break
        self._text = b"\n".join(texts)
        self._left_bytes -= len(self._text)

    def _is_in_text(self, marks: Sequence[bytes]) -> bool:
        for mark in marks:
            if self._left_bytes <= 0:
                return False
            self._left_bytes -= len(self._text)
            if mark in self._text:
                return True
        return False

    @cached_property
    def places(self) -> dict[int, list[int]]:
        """The places of each message, by its hash, first to last."""
        places: dict[int, list[int]] = {}
        for place, message in enumerate(self.links.hashes):
            places.setdefault(message, []).append(place)
        return places

    @cached_property
    def has_history(self) -> bool:
        """Whether the model has spoken in it; then it is no first request."""
        return any(map(self.says, range(len(self.call.messages))))

    @cached_property
    def latest_answer(self) -> bytes:
        """What the model has said last, one message or several."""
        messages = self.call.messages
        at = next((at for at in range(len(messages) - 1, -1, -1) if self.says(at)), -1)
        start = at
        while start > max(0, at - _FEW) and self.says(start - 1):
            start -= 1
        return b"\n".join([message[:_ANSWER_BYTES] for message in messages[start : at + 1]])

    @cached_property
    def opening(self) -> tuple[int, ...]:
        """Key of the first passage of its first message, if there is one."""
        found = opening(self.call.messages[0]) if self.call.messages else ()
        return (own_key(self.links.chain[0], found[0]),) if found else ()

    def num_answers(self, start: int) -> int:
        """Return how often the model may have spoken in the messages from `start` on: 0, 1, or 2 for more."""
        end = len(self.links.hashes)
        if end - start < 3:
            return 1
        if end - start > _FEW:
            num_behind = len(self._begun) - bisect_right(self._begun, start)
            return min(2, self.says(start) + num_behind)
        count, was_said = 0, False
        for at in range(start, end):
            says = self.says(at)
            if says and not was_said:
                count += 1
                if count == 2:
                    return count
            was_said = says
        return count

    @cached_property
    def _begun(self) -> list[int]:
        """Where the model begins to speak."""
        said = list(map(self.says, range(len(self.links.hashes))))
        return [at for at, says in enumerate(said) if says and not (at and said[at - 1])]

    def says(self, at: int) -> bool:
        """Whether the model has said a message, which is not written for that."""
        messages = self.call.messages
        return is_said(messages.beginning(at) if type(messages) is Texts else messages[at])


def is_said(message: bytes) -> bool:
    """Whether the model has said it."""
    return message.startswith(_SAID)
