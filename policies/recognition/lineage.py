"""Recognition of sessions and families: remembers the prompts that were sent, and applies the rules to the next
one."""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence

from policies.recognition.chains import (
    Beginnings,
    Chain,
    Known,
    Texts,
    block_chain,
    block_chain_in_steps,
    common,
    own_name,
    size_of,
)
from policies.recognition.continuation import NOBODY, Call, Match, Rule, is_restart, judge, parent_of, title_of
from policies.recognition.conversations import Conversation, Conversations
from policies.recognition.families import Families, FamilyRecord
from policies.recognition.passages import OPENING_BYTES, errand, latest, opening
from policies.recognition.prompts import Prompt, SummaryRequest, SystemChange
from policies.recognition.summaries import Summaries, sum_up_of, summary_request
from policies.types import BLOCK_CHARS, SIDE, Blocks, FamilyId, SessionId, TurnKind, value

_MOST_CALLS = 8
_LONG_BYTES = 256 * 1024


@value
class Sighting:
    """The session of a prompt. It goes back to `answered` once, however the call ends."""

    session_id: SessionId
    family_id: FamilyId
    parent_id: SessionId | None
    kind: TurnKind
    turn_index: int
    rule: Rule
    is_named: bool
    """Whether the client's id took part in the decision."""
    blocks: Blocks
    """Residency chain; shared with the session's memory, never changed."""
    chars: int
    conversation: Conversation | None
    attempt: int
    served: Conversation | None = None
    """Of a side request."""
    summary_request: SummaryRequest | None = None
    """Of a request without tools and without a name."""
    last_message: bytes = b""
    """The start of it."""
    system: int = 0
    """Hash of its system text; 0: of a side request."""
    system_change: SystemChange | None = None
    """Of a later turn on the same model. None: its system text is that of the turn before."""


_GOES_ON = frozenset((Rule.NEXT, Rule.RETRY, Rule.EDITED, Rule.RESTART))
_BEGINS = frozenset((Rule.NEW, Rule.FORK, Rule.SIBLING))
_BEGINS_ALONE = frozenset((Rule.NEW, Rule.SIBLING))
_GROWS = frozenset((Rule.NEXT, Rule.EDITED))
_FORK, _SERVES, _SINGLE = Rule.FORK, Rule.SIDE, TurnKind.SINGLE
"""Globals, as is `SIDE`."""
_BEGINNINGS, _FAMILIES = 0.25, 0.125
"""Shares of the bytes; the rest is for conversations."""


class Lineage:
    """Recognises sessions and families. Synchronous, with one owner; bounded by its arguments."""

    def __init__(
        self,
        max_sessions: int = 20_000,
        ttl_s: float = 4 * 3600.0,
        max_families: int = 2_000,
        max_conversations: int | None = None,
        max_bytes: float = math.inf,
    ) -> None:
        """`max_conversations`: where several may have the id of one session; None: as many as sessions.
        `max_bytes`: of the numbers that all of them hold."""
        self._conversations = Conversations(
            max_conversations or max_sessions, ttl_s, max_bytes * (1 - _BEGINNINGS - _FAMILIES)
        )
        self._families = Families(max_families, max_bytes * _FAMILIES)
        self._beginnings = Beginnings(max_sessions, max_bytes * _BEGINNINGS)
        self._summaries = Summaries()

    @property
    def num_bytes(self) -> int:
        """About the memory of conversations, beginnings and families."""
        return self._conversations.num_bytes + self._beginnings.num_bytes + self._families.num_bytes

    @property
    def num_sessions(self) -> int:
        return len(self._conversations)

    @property
    def num_families(self) -> int:
        return len(self._families)

    def prepare(self, call: Call) -> Generator[None, None, Chain]:
        """Do beforehand, step by step, what takes `recognise` long with a large prompt. Nothing that it decides by
        changes. A text keeps its hash, as `bytes` of CPython do, and `Texts` keep what is written. Return the
        residency chain. A long message that is known is written, too, as recognition may look at it."""
        messages, known = call.messages, self._beginnings.longest(call.messages)
        num_known = len(known.sizes) if known is not None else 0
        if known is not None and type(messages) is Texts:
            messages.know(known)
            for at, size in enumerate(known.sizes):
                if size > _LONG_BYTES:
                    yield from messages.in_steps(at)
        for at in range(num_known, len(messages)):
            yield from _written(messages, at)
        for text in (*call.tools, call.system):
            hash(text)
            yield
        yield from self._families.heads.prepare(call.key, call.tools, call.system)
        blocks = self._blocks_there(call, known)
        if not blocks:
            blocks = self._families.heads.of(call.key, call.tools, call.system).blocks(call.tools_first)
        shared, at, chars = _behind(call, blocks)
        for place in range(at, num_known):
            yield from _written(messages, place)
        return (yield from block_chain_in_steps(call.key, (*shared, *messages[at:]), blocks, chars))

    def _blocks_there(self, call: Call, known: Known | None) -> Sequence[int]:
        """Return the blocks of a known beginning, of a session that stands there."""
        if known is None:
            return ()
        prompt = Prompt(call, known.links, 0.0)
        there = self._conversations.standing.at(known.links.chain[-1])
        return next((blocks for one in there if (blocks := _known_blocks(one, prompt))), ())

    def recognise(self, call: Call, now: float) -> Sighting:
        """Return the session of a prompt, which is remembered as sent."""
        self._conversations.forget(now)
        links = self._beginnings.links(call.tenant or call.key, call.messages)
        prompt = Prompt(call, links, now)
        match = self._unnamed(prompt) if call.name is None else self._by_name(prompt, call.name)
        if match.conversation is not None and match.rule in _GOES_ON:
            return self._go_on(match.conversation, match.rule, prompt, now)
        if match.rule is _SERVES:
            return self._serve(match.conversation, prompt, now)
        return self._begin(match, prompt, now)

    def answered(
        self,
        sighting: Sighting,
        is_complete: bool,
        marks: tuple[bytes, ...],
        now: float,
        answer: bytes = b"",
        calls: Sequence[bytes] = (),
    ) -> None:
        """The call is over. `marks`: what a prompt that follows its answer will carry, see Conversation. `answer`:
        as JSON text, for a history that restarts from it, or from a summary that tells of it. `calls`: arguments
        of its tool calls, as JSON."""
        if sighting.summary_request is not None and is_complete:
            self._summaries.keep(sighting.summary_request, answer)
        if sighting.served is not None:
            sighting.served.was_summed_up |= is_complete
        conversation = sighting.conversation
        if conversation is None:
            return
        conversation.running -= 1
        if self._conversations.with_serial(conversation.serial) is None:
            return  # forgotten while the call ran
        conversation.seen_at = max(conversation.seen_at, now)
        if sighting.attempt != conversation.attempt:
            return
        conversation.is_complete = is_complete
        conversation.marks = marks if is_complete else ()
        conversation.has_calls = bool(calls)
        errands = [found for text in calls[:_MOST_CALLS] if (found := errand(text))] if is_complete else ()
        self._conversations.put_answer(conversation, errands)
        if _has_clues(conversation):
            clues = latest(answer) if is_complete else opening(sighting.last_message)
            self._conversations.put_clues(conversation, clues)

    def forget_session(self, session_id: SessionId) -> None:
        """Drop what is remembered of a session. Its family is still known."""
        self._conversations.forget_session(session_id)

    # ---- finding

    def _unnamed(self, prompt: Prompt) -> Match:
        match = judge(self._conversations, prompt)
        if match.rule in _BEGINS and prompt.tools and self._summaries and prompt.has_history:
            restarted = self._summaries.restarted(self._conversations, prompt)
            return Match(Rule.RESTART, restarted) if restarted else match
        call, may_sum_up = prompt.call, match.rule in _BEGINS and not prompt.tools and self._conversations.clued
        if may_sum_up and not self._families.writes_titles(call.key, call.system):
            prompt.asks = summary_request(self._conversations, prompt)
            served = sum_up_of(self._conversations, prompt.asks)
            if served is not None:
                served.has_sum_up, prompt.asks.author = True, served.serial
                return Match(Rule.SIDE, served)
        return match

    def _by_name(self, prompt: Prompt, name_: SessionId) -> Match:
        recent = self._conversations.named.at(name_)
        if not recent:
            return self._first_named(prompt, name_)
        if not prompt.tools and (
            main := next((conversation for conversation in recent if conversation.tools), None)
        ):
            return Match(Rule.SIDE, main)
        match = judge(self._conversations, prompt, name_)
        if match.rule is Rule.FORK and match.conversation and not match.conversation.running:
            return Match(Rule.RESTART, match.conversation)
        if match is not NOBODY:
            return match
        restarted = (conversation for conversation in recent if is_restart(conversation, prompt))
        return next((Match(Rule.RESTART, conversation) for conversation in restarted), NOBODY)

    def _first_named(self, prompt: Prompt, name_: SessionId) -> Match:
        """Match a prompt under an id that comes for the first time: a new session, unless the chain shows that
        only the id is new."""
        match = judge(self._conversations, prompt)
        conversation = match.conversation
        if conversation is None or match.rule is Rule.SIBLING or prompt.call.parent:
            return NOBODY
        if conversation.name is None:
            if match.rule is not Rule.FORK:
                self._conversations.rename(conversation, name_)
            return match
        if match.rule is Rule.NEXT and not conversation.running and not conversation.has_steady_name:
            return match
        return Match(Rule.FORK, conversation) if match.rule in (Rule.NEXT, Rule.EDITED, Rule.FORK) else NOBODY

    # ---- remembering

    def _go_on(self, conversation: Conversation, rule: Rule, prompt: Prompt, now: float) -> Sighting:
        call = prompt.call
        conversation.has_steady_name |= call.name is not None and call.name == conversation.name
        blocks = self._blocks(call, _known_blocks(conversation, prompt))
        if rule is Rule.NEXT and not conversation.has_carried:
            conversation.has_carried = prompt.carries(conversation.marks, len(conversation.links.hashes)) > 0
        change = None
        if conversation.system != prompt.system and conversation.key == call.key:
            shared = common(conversation.links.chain, prompt.links.chain)
            change = SystemChange(conversation.system, shared - 1)
        if rule is Rule.RETRY:
            self._conversations.touch(conversation, now)
        else:
            was_side = conversation.kind is TurnKind.SIDE
            conversation.kind = TurnKind.AGENT
            if was_side and (conversation.is_taken or conversation.name is not None):
                self._conversations.change_id(conversation, self._new_id(conversation, prompt))
            conversation.num_turns += 1
            conversation.is_served = conversation.was_summed_up = conversation.has_sum_up = False
            self._conversations.advance(conversation, prompt.links, now)
        conversation.tools, conversation.system, conversation.key = prompt.tools, prompt.system, call.key
        return self._sent(conversation, rule, prompt, blocks, change)

    def _begin(self, match: Match, prompt: Prompt, now: float) -> Sighting:
        call = prompt.call
        family, head = self._families.find(call.key, call.tools, call.system, call.messages, call.group)
        if call.expects_tools and not call.tools:
            family.mark_side()
        trunk = match.conversation if match.rule is _FORK else None
        title = None
        parent_id = call.parent or (trunk.id if trunk else None)
        if call.name is None:
            title = title_of(self._conversations, prompt)
            if parent_id is None and (parent := parent_of(self._conversations, prompt)):
                parent_id = parent.id
        conversation = self._new(prompt, family, parent_id, _first_kind(call, family))
        conversation.first_len = len(prompt.links.chain)
        conversation.id = title.id if title else self._new_id(conversation, prompt)
        if title is not None:
            title.is_taken, title.kind, conversation.has_title = True, TurnKind.SIDE, True
            title.family.mark_side()
            title.family.writes_titles = title.family.is_side
        blocks = self._blocks(call, _known_blocks(trunk, prompt) or head.blocks(call.tools_first))
        self._conversations.add(conversation, now)
        self._conversations.advance(conversation, prompt.links, now)
        if call.name is None and not prompt.has_history:
            self._conversations.put_opening(conversation, prompt.opening)
        return self._sent(conversation, match.rule, prompt, blocks)

    def _serve(self, conversation: Conversation | None, prompt: Prompt, now: float) -> Sighting:
        """Record a side request. It belongs to a session and leaves no trace in its chain. Without a name it has
        one of its own: its history may come back, and then it is an agent."""
        assert conversation is not None
        call, conversation.is_served = prompt.call, True
        family = self._families.find(call.key, call.tools, call.system, call.messages, None)[0]
        family.mark_side()
        shadow = None
        if call.name is None:
            prompt.asks = prompt.asks or SummaryRequest(call.key, now, {conversation.serial: True})
            shadow = self._new(prompt, family, conversation.parent_id, TurnKind.SIDE)
            shadow.id, shadow.is_taken, shadow.first_len = conversation.id, True, len(prompt.links.chain)
            shadow.attempt = shadow.running = 1
            self._conversations.add(shadow, now)
            self._conversations.advance(shadow, prompt.links, now)
            self._conversations.weigh(shadow)
        blocks = self._blocks(call)
        return Sighting(
            session_id=conversation.id,
            family_id=conversation.family.id,
            parent_id=conversation.parent_id,
            kind=TurnKind.SIDE,
            turn_index=max(0, conversation.num_turns - 1),
            rule=Rule.SIDE,
            is_named=call.name is not None,
            blocks=blocks,
            chars=call.num_chars,
            conversation=shadow,
            attempt=1,
            served=conversation,
            summary_request=prompt.asks,
        )

    def _new(
        self, prompt: Prompt, family: FamilyRecord, parent_id: SessionId | None, kind: TurnKind
    ) -> Conversation:
        call = prompt.call
        # By place: names take thrice the time to pass.
        return Conversation(
            "",  # id
            call.key,
            self._conversations.next_serial(),  # serial
            call.name,
            parent_id,
            family,
            kind,
            prompt.tools,
            prompt.system,
            0,  # first_len
            num_turns=1,
        )

    def _sent(
        self,
        conversation: Conversation,
        rule: Rule,
        prompt: Prompt,
        blocks: Chain,
        change: SystemChange | None = None,
    ) -> Sighting:
        call = prompt.call
        request = None
        if call.name is None and not prompt.tools and rule not in _GROWS:
            request = prompt.asks or summary_request(self._conversations, prompt)
        conversation.blocks = blocks
        self._conversations.weigh(conversation)
        conversation.tools_first = call.tools_first
        conversation.attempt += 1
        conversation.running += 1
        conversation.is_complete = False
        conversation.marks = ()
        # By place: names take thrice the time to pass.
        return Sighting(
            conversation.id,  # session_id
            conversation.family.id,  # family_id
            conversation.parent_id,
            conversation.kind,
            conversation.num_turns - 1,  # turn_index
            rule,
            call.name is not None,  # is_named
            blocks,
            call.num_chars,  # chars
            conversation,
            conversation.attempt,
            None,  # GAP served
            request,  # summary_request
            call.messages[-1][:OPENING_BYTES] if call.messages else b"",  # last_message
            prompt.system,
            change,  # system_change
        )

    def _blocks(self, call: Call, known: Sequence[int] = ()) -> Chain:
        if call.blocks is not None:
            return call.blocks
        known = known or self._families.heads.of(call.key, call.tools, call.system).blocks(call.tools_first)
        shared, at, chars = _behind(call, known)
        return block_chain(call.key, (*shared, *call.messages[at:]), known, chars)

    def _new_id(self, conversation: Conversation, prompt: Prompt) -> SessionId:
        """Return the client's id for the first session under it, whatever side requests came before; else a new
        one."""
        free = conversation.name is not None and (
            conversation.kind is TurnKind.SIDE
            or not any(
                _holds_name(o, conversation)
                for o in self._conversations.named.at(conversation.name, len(self._conversations))
            )
        )
        if free and conversation.name is not None:
            return conversation.name
        return own_name(conversation.key, prompt.links.chain[-1], conversation.serial)


def _holds_name(other: Conversation, conversation: Conversation) -> bool:
    if other is conversation or other.id != conversation.name:
        return False
    return other.kind is TurnKind.AGENT or (other.kind is TurnKind.SINGLE and not conversation.tools)


def _has_clues(conversation: Conversation) -> bool:
    """Whether only content can show where its history restarts."""
    return conversation.tools != 0 and conversation.name is None


def _first_kind(call: Call, family: FamilyRecord) -> TurnKind:
    if call.tools:
        return TurnKind.AGENT
    return SIDE if call.expects_tools or family.is_side or family.offers_tools else _SINGLE


def _written(messages: Sequence[bytes], at: int) -> Generator[None, None, None]:
    """Write a message, and hash it."""
    text = (yield from messages.in_steps(at)) if isinstance(messages, Texts) else messages[at]
    yield
    hash(text)
    yield


def _behind(call: Call, known: Sequence[int]) -> tuple[tuple[bytes, ...], int, int]:
    """Return the part of a prompt that these blocks do not cover: tools and system text, or none of them; the
    index of the first message; and the characters before that."""
    shared = (*call.tools, call.system) if call.tools_first else (call.system, *call.tools)
    chars = sum(map(len, shared))
    if len(known) * BLOCK_CHARS < chars or type(call.messages) is not Texts:
        return shared, 0, 0
    sizes = call.messages.sizes
    at, chars = len(sizes), chars + sum(sizes)
    while at and chars > len(known) * BLOCK_CHARS:
        at -= 1
        chars -= sizes[at]
    return (), at, chars


def _known_blocks(conversation: Conversation | None, prompt: Prompt) -> Sequence[int]:
    """Return the blocks of the conversation's last prompt that lie wholly in the part that this prompt repeats."""
    call = prompt.call
    if conversation is None or conversation.tools != prompt.tools or conversation.tools_first != call.tools_first:
        return ()
    if conversation.system != prompt.system or conversation.key != call.key:
        return ()
    shared = common(conversation.links.chain, prompt.links.chain)
    size = len(call.system) + size_of(call.tools) + size_of(call.messages, shared - 1)
    return conversation.blocks[: size // BLOCK_CHARS]
