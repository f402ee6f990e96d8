"""Sessions and families from prompts: keeps what was sent, asks the rules, says who it is."""

from __future__ import annotations

from collections.abc import Sequence

from policies.recognition.chains import Beginnings, Chain, Texts, block_chain, common, own_name, size_of
from policies.recognition.continuation import (
    NOBODY,
    OPENING_BYTES,
    SEARCHED,
    Asked,
    Call,
    Carried,
    Match,
    Rule,
    Summaries,
    Telling,
    hash_of_tools,
    is_restart,
    judge,
    latest,
    opening,
    telling,
)
from policies.recognition.conversations import Conversation, Conversations
from policies.recognition.families import Families, FamilyRecord
from policies.types import BLOCK_CHARS, Blocks, FamilyId, SessionId, TurnKind, value


@value
class Sighting:
    """What a prompt was recognised as. Give it back to `answered`, once, however the call ended."""

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
    strand: Conversation | None
    attempt: int
    told: Telling | None = None
    """Of a request without tools and without a name."""
    last_message: bytes = b""
    """The start of it."""


_GOES_ON = frozenset((Rule.NEXT, Rule.RETRY, Rule.TAIL, Rule.RESTART))
_BEGINS = frozenset((Rule.NEW, Rule.FORK, Rule.SIBLING))


class Lineage:
    """Recognises sessions and families. One owner, synchronous; bounded by its arguments."""

    def __init__(self, max_sessions: int = 20_000, ttl_s: float = 4 * 3600.0, max_families: int = 2_000) -> None:
        self._strands = Conversations(max_sessions, ttl_s)
        self._families = Families(max_families)
        self._beginnings = Beginnings(max_sessions)
        self._summaries = Summaries()

    @property
    def num_sessions(self) -> int:
        return len(self._strands)

    @property
    def num_families(self) -> int:
        return len(self._families)

    def recognise(self, call: Call, now: float) -> Sighting:
        """Whose turn this is; remembered as sent."""
        self._strands.forget(now)
        chain = self._beginnings.chain(call.key, call.system, call.messages)
        asked = Asked(call, chain, hash_of_tools(call.key, call.tools), Carried(call.messages))
        match = self._unnamed(asked) if call.name is None else self._by_name(asked, call.name)
        if match.strand is not None and match.rule in _GOES_ON:
            return self._go_on(match.strand, match.rule, asked, now)
        if match.rule is Rule.SIDE:
            return self._serve(match.strand, asked, now)
        return self._begin(match, asked, now)

    def answered(
        self, sighting: Sighting, is_complete: bool, marks: tuple[bytes, ...], now: float, answer: bytes = b""
    ) -> None:
        """The call is over. `marks`: what a prompt that follows its answer will carry, see Strand. `answer`: as
        JSON text, for a history that restarts from it, or from a summary that tells of it."""
        strand = sighting.strand
        if strand is None:
            return
        if sighting.told is not None and is_complete:
            self._summaries.keep(sighting.told, answer)
        if sighting.rule is Rule.SIDE:
            strand.was_summed_up |= is_complete
            return
        strand.running -= 1
        strand.seen_at = max(strand.seen_at, now)
        if sighting.attempt == strand.attempt:
            strand.is_complete = is_complete
            strand.marks = marks if is_complete else ()
            if _has_clues(strand):
                self._strands.put_clues(strand, latest(answer) if is_complete else opening(sighting.last_message))

    # Finding.

    def _unnamed(self, asked: Asked) -> Match:
        match = self._by_chain(asked)
        if match.rule in _BEGINS and asked.tools and self._summaries and asked.has_history():
            restarted = self._summaries.restarted(self._strands, asked)
            return Match(Rule.RESTART, restarted) if restarted else match
        return match

    def _by_chain(self, asked: Asked, name_: SessionId | None = None) -> Match:
        """The deepest point where a known session left off, and what the prompt is to that session.

        `name_`: look only at sessions under this id.
        """
        for last in range(len(asked.chain) - 1, 0, -1):
            there = self._strands.at(asked.chain[last])
            if name_ is not None:
                there = [strand for strand in there if strand.name == name_]
            if there and (match := judge(there, asked, last)):
                is_side = match.strand is not None and match.strand.tools and not asked.tools
                return Match(Rule.SIDE, match.strand) if is_side else match
        return NOBODY

    def _by_name(self, asked: Asked, name_: SessionId) -> Match:
        under = self._strands.named(name_)
        if not under:
            return self._first_named(asked, name_)
        recent = under[: -SEARCHED - 1 : -1]
        if not asked.tools and (main := next((strand for strand in recent if strand.tools), None)):
            return Match(Rule.SIDE, main)
        match = self._by_chain(asked, name_)
        if match.rule is Rule.FORK and match.strand and not match.strand.running:
            return Match(Rule.RESTART, match.strand)
        if match is not NOBODY:
            return match
        has_history = asked.has_history()
        restarted = (strand for strand in recent if is_restart(strand, asked, has_history))
        return next((Match(Rule.RESTART, strand) for strand in restarted), NOBODY)

    def _first_named(self, asked: Asked, name_: SessionId) -> Match:
        """An id that nobody has sent: a new session, unless the chain says that only the id is new."""
        match = self._by_chain(asked)
        strand = match.strand
        if strand is None or match.rule is Rule.SIBLING or asked.call.parent:
            return NOBODY
        if strand.name is None:
            if match.rule is not Rule.FORK:
                self._strands.rename(strand, name_)
            return match
        if match.rule is Rule.NEXT and not strand.running and not strand.has_steady_name:
            return match
        return Match(Rule.FORK, strand) if match.rule in (Rule.NEXT, Rule.TAIL, Rule.FORK) else NOBODY

    # Remembering.

    def _go_on(self, strand: Conversation, rule: Rule, asked: Asked, now: float) -> Sighting:
        call = asked.call
        strand.has_steady_name |= call.name is not None and call.name == strand.name
        blocks = self._blocks(call, _known_blocks(strand, asked))
        if rule is Rule.RETRY:
            self._strands.touch(strand, now)
        else:
            was_side = strand.kind is TurnKind.SIDE
            strand.kind = TurnKind.AGENT
            if was_side:
                strand.id = self._new_id(strand, asked)
            strand.num_turns += 1
            strand.was_summed_up = False
            self._strands.advance(strand, asked.chain, now)
        strand.tools = asked.tools
        return self._sent(strand, rule, asked, blocks, now)

    def _begin(self, match: Match, asked: Asked, now: float) -> Sighting:
        call = asked.call
        kin = self._families.find(call.key, call.tools, call.system, call.messages, call.group)
        if call.expects_tools and not call.tools:
            _mark_side(kin, call)
        parent = match.strand if match.rule is Rule.FORK else None
        strand = Conversation(
            id="",
            key=call.key,
            serial=self._strands.next_serial(),
            name=call.name,
            parent_id=call.parent or (parent.id if parent else None),
            kin=kin,
            kind=_first_kind(call, kin),
            tools=asked.tools,
            first_len=len(asked.chain),
            num_turns=1,
        )
        strand.id = self._new_id(strand, asked)
        blocks = self._blocks(call, _known_blocks(parent, asked))
        self._strands.add(strand, now)
        self._strands.advance(strand, asked.chain, now)
        if _has_clues(strand) and not asked.has_history():
            strand.task = opening(call.messages[0]) if call.messages else ()
        return self._sent(strand, match.rule, asked, blocks, now)

    def _serve(self, strand: Conversation | None, asked: Asked, now: float) -> Sighting:
        """A side request: it belongs to a session and leaves no trace in its chain."""
        assert strand is not None
        call = asked.call
        if call.name is not None:
            _mark_side(self._families.find(call.key, call.tools, call.system, call.messages, None), call)
        blocks = self._blocks(call)
        return Sighting(
            session_id=strand.id,
            family_id=strand.kin.id,
            parent_id=strand.parent_id,
            kind=TurnKind.SIDE,
            turn_index=max(0, strand.num_turns - 1),
            rule=Rule.SIDE,
            is_named=call.name is not None,
            blocks=blocks,
            chars=call.num_chars,
            strand=strand,
            attempt=strand.attempt,
            told=Telling(call.key, now, {strand: True}) if call.name is None else None,
        )

    def _sent(self, strand: Conversation, rule: Rule, asked: Asked, blocks: Chain, now: float) -> Sighting:
        call = asked.call
        told = None
        if call.name is None and not asked.tools and rule not in (Rule.NEXT, Rule.TAIL):
            told = telling(self._strands, call, now)
        strand.blocks = blocks
        strand.tools_first = call.tools_first
        strand.attempt += 1
        strand.running += 1
        strand.is_complete = False
        strand.marks = ()
        return Sighting(
            session_id=strand.id,
            family_id=strand.kin.id,
            parent_id=strand.parent_id,
            kind=strand.kind,
            turn_index=strand.num_turns - 1,
            rule=rule,
            is_named=call.name is not None,
            blocks=blocks,
            chars=call.num_chars,
            strand=strand,
            attempt=strand.attempt,
            told=told,
            last_message=call.messages[-1][:OPENING_BYTES] if call.messages else b"",
        )

    def _blocks(self, call: Call, known: Sequence[int] = ()) -> Chain:
        known = known or self._families.heads.of(call.key, call.tools, call.system).blocks(call.tools_first)
        shared = (*call.tools, call.system) if call.tools_first else (call.system, *call.tools)
        chars, at = sum(map(len, shared)), 0
        if len(known) * BLOCK_CHARS < chars or type(call.messages) is not Texts:
            return block_chain(call.key, (*shared, *call.messages), known)
        for size in call.messages.sizes:
            if chars + size > len(known) * BLOCK_CHARS:
                break
            chars, at = chars + size, at + 1
        return block_chain(call.key, call.messages[at:], known, chars)

    def _new_id(self, strand: Conversation, asked: Asked) -> SessionId:
        """The client's id for the first session under it, whatever side requests came before; else one of ours."""
        free = strand.name is not None and (
            strand.kind is TurnKind.SIDE
            or not any(_holds_name(o, strand) for o in self._strands.named(strand.name))
        )
        if free and strand.name is not None:
            return strand.name
        return own_name(strand.key, asked.chain[-1], strand.serial)


def _holds_name(other: Conversation, strand: Conversation) -> bool:
    if other is strand or other.id != strand.name:
        return False
    return other.kind is TurnKind.AGENT or (other.kind is TurnKind.SINGLE and not strand.tools)


def _has_clues(strand: Conversation) -> bool:
    """Whether content has to say where its history restarts."""
    return strand.tools != 0 and strand.name is None


def _mark_side(kin: FamilyRecord, call: Call) -> None:
    """All requests like this one are side requests, if its system text is long enough to tell what it is."""
    kin.is_side |= not kin.offers_tools and len(call.system) >= BLOCK_CHARS


def _first_kind(call: Call, kin: FamilyRecord) -> TurnKind:
    if call.tools:
        return TurnKind.AGENT
    return TurnKind.SIDE if call.expects_tools or kin.is_side or kin.offers_tools else TurnKind.SINGLE


def _known_blocks(strand: Conversation | None, asked: Asked) -> Sequence[int]:
    """Blocks of the strand's last prompt that lie wholly in what this prompt repeats."""
    call = asked.call
    if strand is None or strand.tools != asked.tools or strand.tools_first != call.tools_first:
        return ()
    shared = common(strand.chain, asked.chain)
    if not shared:
        return ()
    size = len(call.system) + size_of(call.tools) + size_of(call.messages, shared - 1)
    return strand.blocks[: size // BLOCK_CHARS]
