"""Lessons: the throughput of a pool, the statistics of a family, the tokens per character of a model."""

from __future__ import annotations

from collections.abc import Sequence

from policies.types import Family, IdleTimes, Session, TurnId

PREFILL_TOKENS_PER_S = 8_000.0
CYCLE_S = 3.0
"""Assumed until both have been seen: a 32B-class model on one 80 GB GPU, and agents with short tools."""
FEWEST_TOKENS = 256
"""A shorter prefill measures the engine's overhead rather than its speed."""


class Pace:
    """Throughput of one pool, and the cycle of its sessions: how long one decodes and waits for its tool. Written
    by the Scheduler."""

    def __init__(self) -> None:
        self._prefill_tokens_per_s: float | None = None
        self._cycle_s: float | None = None
        self._others_tokens: float | None = None
        self.prefilled_tokens = 0.0
        """Prompt tokens that the pool has computed since the start."""
        self._alone: dict[TurnId, tuple[float, float]] = {}
        """Prefills that began while no other one ran: (begin, tokens)."""

    @property
    def cycle_s(self) -> float:
        """Time in which a session decodes and waits for its tool."""
        return CYCLE_S if self._cycle_s is None else self._cycle_s

    @property
    def cycle_tokens(self) -> float:
        """Tokens that the pool can prefill in one cycle of a session that the prefill of others does not delay:
        the most that a turn of a session is worth."""
        if self._prefill_tokens_per_s is None or self._cycle_s is None or self._others_tokens is None:
            return PREFILL_TOKENS_PER_S * CYCLE_S
        return max(0.0, self._prefill_tokens_per_s * self._cycle_s - self._others_tokens)

    def prefill_s(self, tokens: float) -> float:
        """Time to compute so many prompt tokens, with nothing beside them."""
        return tokens / (self._prefill_tokens_per_s or PREFILL_TOKENS_PER_S)

    def prefill_began(self, turn_id: TurnId, tokens: float, is_alone: bool, now: float) -> None:
        self._alone.clear()  # a second prefill slows down the first
        if is_alone and tokens >= FEWEST_TOKENS:
            self._alone[turn_id] = now, tokens

    def prefill_ended(self, turn_id: TurnId, tokens: float, now: float) -> None:
        """Its first byte came."""
        self.prefilled_tokens += tokens
        began_at, alone_tokens = self._alone.pop(turn_id, (now, 0.0))
        if now > began_at:
            self._prefill_tokens_per_s = blend(self._prefill_tokens_per_s, alone_tokens / (now - began_at))

    def saw_cycle(self, cycle_s: float, others_tokens: float) -> None:
        """Record the cycle of a session: decoding and the wait for its tool. Queues and its own prefill are not in
        it; the prefill of others while it decoded is."""
        self._others_tokens = blend(self._others_tokens, others_tokens)
        self._cycle_s = blend(self._cycle_s, cycle_s)


# ---- what finished turns teach

WEIGHT = 0.1
"""Weight of a new value in the running means; about the last ten turns count."""
MAX_NAMES_CHARS = 128
STALE = 4
"""Most lessons of a family after which the values derived from its statistics are computed again."""
MAX_TOOLS = 64
"""Sets of tools of a family whose idle times are kept apart."""


def blend(old: float | None, new: float, weight: float = WEIGHT) -> float:
    """Return the exponentially weighted mean, which starts at the first value."""
    return new if old is None else old + weight * (new - old)


def is_news(family: Family) -> bool:
    """Count a lesson; return whether it is time to compute again what is derived from the family's statistics.
    Each lesson counts while there are few, later each sixteenth part of them. If so, the family's caches are
    emptied."""
    family.num_lessons += 1
    if family.num_lessons < family.next_lesson:
        return False
    family.next_lesson = family.num_lessons + min(STALE, 1 + family.num_lessons // 16)
    family.expected_remaining, family.forecasts = [], {}
    return True


def saw_bound(family: Family, max_output_tokens: int | None) -> None:
    """Record the bound that a turn puts on its answer."""
    if max_output_tokens is not None:
        family.most_output_tokens = max(family.most_output_tokens or 0, max_output_tokens)


def saw_gap(family: Family, session: Session, gap_s: float) -> None:
    """Record that a session came back after `gap_s` of idle time."""
    for tools in ("", session.tools) if session.tools else ("",):
        gaps_s = family.gaps_s.get(tools)
        if gaps_s is None:
            if len(family.gaps_s) >= MAX_TOOLS:
                continue
            gaps_s = family.gaps_s[tools] = IdleTimes()
        gaps_s.add(gap_s)


def saw_continuation(family: Family, session: Session) -> None:
    """Record a further turn of a session, and take back the end that its silence suggested."""
    _reach(family, session.num_begun)
    if session.is_presumed_ended:
        session.is_presumed_ended = False
        family.ended[session.num_begun] -= 1
        family.num_closed -= not session.tools
    family.num_reopened += not session.tools
    family.continued[session.num_begun] += 1


def saw_end(family: Family, session: Session) -> None:
    """Record the end of a session, or a silence that counts as its end."""
    if not session.is_presumed_ended:
        session.is_presumed_ended = True
        _reach(family, session.num_begun)
        family.ended[session.num_begun] += 1
        family.num_closed += not session.tools


def _reach(family: Family, num_turns: int) -> None:
    """Make both histograms this long."""
    while len(family.ended) <= num_turns:
        family.ended.append(0)
        family.continued.append(0)


def saw_first_prompt(family: Family, private_tokens: float) -> None:
    """Record how many tokens of a sibling's first prompt no earlier sibling had sent."""
    family.private_tokens = blend(family.private_tokens, private_tokens)


def saw_answer(
    family: Family, session: Session, prompt_tokens: int, output_tokens: int | None, is_retry: bool
) -> None:
    """Record a complete call of the session, and the growth of its prompt since the call before."""
    if session.prompt_tokens and prompt_tokens > session.prompt_tokens and not is_retry:
        family.append_tokens = blend(family.append_tokens, prompt_tokens - session.prompt_tokens)
    session.prompt_tokens = prompt_tokens
    if output_tokens is not None:
        family.output_tokens = blend(family.output_tokens, output_tokens)


def saw_tools(family: Family, session: Session, names: Sequence[str], tool_s: float | None) -> None:
    """Record the tools that an answer called, and how long they take if that is known."""
    joined = "+".join(sorted(set(names))) if len(names) > 1 else "".join(names)
    session.tools, session.tool_s = joined[:MAX_NAMES_CHARS], tool_s
    family.calls_tools = family.calls_tools or bool(session.tools)


class TokenRatio:
    """Tokens per character of a model's prompts: a prior, then the ratio of a sample, then those that `usage`
    shows."""

    PRIOR = 1 / 3
    """Rather too high than too low: a session that is admitted too early evicts others; one that is held too long
    is admitted with the first answer's usage."""

    def __init__(self) -> None:
        self.value = self.PRIOR
        self._is_learned = False

    def suppose(self, value: float) -> None:
        """Take the ratio of a sample, unless answers have shown a better one."""
        if not self._is_learned:
            self.value = _bounded(value)

    def saw(self, chars: int, prompt_tokens: int) -> None:
        """Record the usage of an answer."""
        if chars > 0:
            self.value = blend(self.value if self._is_learned else None, _bounded(prompt_tokens / chars))
            self._is_learned = True


def _bounded(ratio: float) -> float:
    return min(2.0, max(0.05, ratio))
