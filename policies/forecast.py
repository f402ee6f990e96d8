"""How many turns a session still has, declared or learned from the survival curve of its family, and how much it
will grow.

The curve is Kaplan and Meier's product-limit estimate over turns (J. Am. Stat. Assoc. 53, 1958): the hazard
after k turns is ended[k] / (ended[k] + continued[k]). A session that is still at k counts in neither, as
right-censoring requires. A prior keeps young families finite: `PRIOR_WEIGHT` imaginary sessions that end with the
hazard of `PRIOR_TURNS` remaining turns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import repeat
from operator import add, sub
from typing import TypeAlias

from policies.types import Family, FamilyId, IdleTimes, Session, SessionId

PRIOR_TURNS = 3.0
"""Expected remaining turns where nothing is known."""
PRIOR_WEIGHT = 1.0
PRIOR_ENDED = PRIOR_WEIGHT / (PRIOR_TURNS + 1)
"""Of the imaginary sessions, how many end after each turn."""
FEWEST_GAPS = 8
"""Idle times from which a quantile is taken."""


def hazard(family: Family, num_turns: int) -> float:
    """Probability that a session of the family ends after `num_turns` turns, given that it got there."""
    if num_turns >= len(family.ended):
        return PRIOR_ENDED / PRIOR_WEIGHT
    return _share_ended(family.ended[num_turns], family.continued[num_turns])


def _share_ended(ended: int, continued: int) -> float:
    """Share of the sessions that ended, the imaginary ones included."""
    return (ended + PRIOR_ENDED) / (ended + continued + PRIOR_WEIGHT)


def curve(family: Family) -> list[float]:
    """Expected remaining turns after k turns, for each k that the family has shown; computed backwards from
    E(k) = (1 - h(k)) (1 + E(k + 1)), with the prior beyond the last k."""
    expected = PRIOR_TURNS
    values = [expected]
    for ended, continued in zip(reversed(family.ended), reversed(family.continued), strict=True):
        expected = (1 - _share_ended(ended, continued)) * (1 + expected)
        values.append(expected)
    values.reverse()
    return values


def expected_turns(family: Family, num_begun: int, declared: int | None, keeps: bool = True) -> float:
    """Turns still to come after the `num_begun`-th one. `keeps`: whether the family caches the curve until there
    is news. An observer must not cause that, or a look at the fleet would change decisions."""
    if declared is not None:
        return float(declared)
    values = family.expected_remaining or curve(family)
    if keeps:
        family.expected_remaining = values
    return values[num_begun] if num_begun < len(values) else values[-1]


def remaining_tokens(family: Family, num_begun: int, declared: int | None) -> float:
    """Prompt tokens that a session is expected to add yet, with those of the turn that it is in."""
    return (1 + expected_turns(family, num_begun, declared)) * append_tokens(family)


def will_return(session: Session, family: Family) -> float:
    """Chance that a session sends another turn, as of its last answer.

    In a family whose agents call tools, an answer without a call is mostly the last one. Such answers have a
    chance of their own, with a prior of two answers of which half a one goes on.
    """
    if session.tool_s is not None:
        return 1.0  # the gateway runs its tools and asks the next turn itself
    if session.remaining_turns is not None:
        return 1.0 if session.remaining_turns > 0 else 0.0
    alive = 1 - hazard(family, session.num_begun)
    if family.calls_tools and not session.tools:
        alive = min(alive, (family.num_reopened + 0.5) / (family.num_reopened + family.num_closed + 2))
    return alive


def chance_of_return(session: Session, family: Family, now: float) -> float:
    """Chance that an idle session sends another turn after its silence so far: by Bayes, from the idle times of
    its family."""
    alive = will_return(session, family)
    idle_s = now - session.idle_since
    gaps_s = gaps_of(session, family)
    silent = alive * (1 + gaps_s.num_longer(idle_s)) / (1 + len(gaps_s))
    return silent / (silent + 1 - alive) if silent else 0.0


def gaps_of(session: Session, family: Family) -> IdleTimes:
    """Past idle times after the same tools, or after any while those are few."""
    gaps_s = family.gaps_s.get(session.tools)
    if gaps_s is None or len(gaps_s) < FEWEST_GAPS:
        gaps_s = family.gaps_s.get("")
    return IdleTimes() if gaps_s is None else gaps_s


# ---- what sessions will hold some turns from now

HORIZON = 4
"""Turns that a forecast looks ahead; further growth is met when it comes nearer."""
LEAST_TOKENS, MOST_TOKENS = 256.0, 2_048.0
"""Bounds of the guess for a family whose sessions have not shown a second turn: a tool result is about as long as
the private part of the first prompt."""
OUTPUT_TOKENS = 256.0
"""Length of an answer where nothing is known: that of the median agent turn (facts, scheduling 5)."""


def append_tokens(family: Family) -> float:
    """Tokens that one more turn adds to the prompt, its answer included."""
    if family.append_tokens is not None:
        return family.append_tokens
    guess_tokens = min(MOST_TOKENS, max(LEAST_TOKENS, private_tokens(family)))
    return guess_tokens + output_tokens(family)


def private_tokens(family: Family) -> float:
    """Tokens of a first prompt that are not the family's; all of the only one that has arrived."""
    if family.private_chars is not None:
        return family.private_chars * family.tokens_per_char
    return min(MOST_TOKENS, family.first_chars * family.tokens_per_char or MOST_TOKENS)


def output_tokens(family: Family) -> float:
    """Length of an answer."""
    if family.output_tokens is not None:
        return family.output_tokens
    return OUTPUT_TOKENS if family.most_output_tokens is None else min(OUTPUT_TOKENS, family.most_output_tokens)


def forecast(family: Family, num_begun: int, declared: int | None) -> list[float]:
    """Expected change of what a session holds, in tokens, after 0, 1, ... HORIZON turns; `num_begun` counts the
    turn that it is in, or was in last.

    Admission rests on it. At turns that no session has reached, a session counts as alive for `PRIOR_TURNS` turns,
    then as ended: one that is admitted by mistake evicts others, and one that is held by mistake waits until other
    sessions have shown more.
    """
    append, output = append_tokens(family), output_tokens(family)
    present = private_tokens(family) + max(0, num_begun - 1) * append
    if declared is not None:
        return [append * ahead + output if ahead <= declared else -present for ahead in range(HORIZON + 1)]
    ended, continued, num_shown = family.ended, family.continued, len(family.ended)
    alive, num_unknown, values = 1.0, 0, [output]
    for ahead in range(1, HORIZON + 1):
        after = num_begun + ahead - 1
        if after < num_shown and (ended[after] or continued[after]):
            went_on = continued[after] + PRIOR_WEIGHT
            alive *= went_on / (ended[after] + went_on)
        elif num_unknown == PRIOR_TURNS:
            return values + [-present] * (HORIZON + 1 - ahead)
        else:
            num_unknown += 1
        values.append(alive * (append * ahead + output) - (1 - alive) * present)
    return values


# ---- the forecast of one pool

Stage: TypeAlias = tuple[int, int | None]
"""(turns begun, declared remaining turns): sessions of a family at one stage are expected to grow alike."""
Forecast: TypeAlias = Callable[[Family, int, int | None], Sequence[float]]


class Reserve:
    """The expected growth of a pool's residents. It is computed when it is read, and only for families that facts
    have touched since."""

    def __init__(self, forecast: Forecast) -> None:
        self._forecast = forecast
        self._stages: dict[FamilyId, dict[Stage, int]] = {}
        self._families: dict[FamilyId, Sequence[float]] = {}
        self._touched: dict[FamilyId, Family] = {}
        self._placed: dict[SessionId, tuple[int, int | None, int]] = {}
        """The stage at which a resident counts, and its part of `tail_chars`."""
        self._answers: dict[FamilyId, tuple[int, float, int]] = {}
        """Number of a family's residents, the expected length of an answer, and `edge_chars` of the family."""
        self._sum: list[float] = []
        self.tail_chars = 0
        """Characters of the residents' prompts behind their last whole block."""
        self.answer_tokens = 0.0
        """Expected length of the residents' next answers."""
        self.edge_chars = 0
        """Of the blocks in which prefixes end: characters that residents beyond the first of a family share with
        it, though the ledger counts them for each."""

    @property
    def forecast(self) -> list[float]:
        """Expected change after 0, 1, ... turns, in tokens; empty without residents."""
        while self._touched:
            self._refresh(self._touched.popitem()[1])
        return self._sum

    def stages(self) -> dict[tuple[FamilyId, Stage], float]:
        """Return the number of residents at each stage of each family."""
        return {
            (family_id, stage): float(num)
            for family_id, stages in self._stages.items()
            for stage, num in stages.items()
        }

    def of(self, family: Family, stage: Stage) -> Sequence[float]:
        """Return the forecast of one session."""
        known = family.forecasts.get(stage)
        if known is None:
            known = family.forecasts[stage] = self._forecast(family, *stage)
        return known

    def edge_chars_of(self, family_id: FamilyId) -> int:
        """Return the `edge_chars` that a further session of a family shares; 0 without a resident of it."""
        return self._answers.get(family_id, (0, 0.0, 0))[2]

    def put(self, session: Session, family: Family, tail_chars: int) -> None:
        """Count a resident at its present stage, in place of its earlier one."""
        self.drop(session.id, family)
        stage = session.num_begun, session.remaining_turns
        stages = self._stages.get(family.id)
        if stages is None:
            stages = self._stages[family.id] = {}
        stages[stage] = stages.get(stage, 0) + 1
        self._placed[session.id] = *stage, tail_chars
        self.tail_chars += tail_chars
        self._count_answers(family, 1)
        self._touched[family.id] = family

    def tail_chars_of(self, session_id: SessionId) -> int:
        """Return the characters of a resident's prompt behind its last whole block."""
        return self._placed[session_id][2]

    def drop(self, session_id: SessionId, family: Family) -> None:
        """Stop counting a session; harmless for one that was not counted."""
        placed = self._placed.pop(session_id, None)
        if placed is None:
            return
        num_begun, remaining_turns, tail_chars = placed
        self.tail_chars -= tail_chars
        stages, stage = self._stages[family.id], (num_begun, remaining_turns)
        if stages[stage] == 1:
            del stages[stage]
        else:
            stages[stage] -= 1
        self._count_answers(family, -1)
        self._touched[family.id] = family

    def touch(self, family: Family) -> None:
        """Take in that the family's statistics changed."""
        if family.id in self._answers:
            self._count_answers(family, 0)
            self._touched[family.id] = family

    def _count_answers(self, family: Family, more: int) -> None:
        num, before_tokens, before_edge = self._answers.pop(family.id, (0, 0.0, 0))
        tokens = output_tokens(family)
        if num + more:
            self._answers[family.id] = num + more, tokens, family.edge_chars
        self.edge_chars += max(0, num + more - 1) * family.edge_chars - max(0, num - 1) * before_edge
        # Zero without residents also ends the rounding errors.
        change_tokens = (num + more) * tokens - num * before_tokens
        self.answer_tokens = self.answer_tokens + change_tokens if self._answers else 0.0

    def _refresh(self, family: Family) -> None:
        stages = self._stages[family.id]
        after = self._total(family, stages) if stages else None  # first: the policy may raise
        before = self._families.pop(family.id, None)
        if after is not None:
            self._families[family.id] = after
        else:
            del self._stages[family.id]
        if not self._families:
            self._sum = []  # also ends the rounding errors of adding and subtracting
        elif after or before:
            none = repeat(0.0)
            self._sum = list(map(sub, map(add, self._sum or none, after or none), before or none))

    def _total(self, family: Family, stages: dict[Stage, int]) -> Sequence[float]:
        total: Sequence[float] = ()
        for stage, number in stages.items():
            one = self.of(family, stage)
            if number > 1:
                one = [number * more for more in one]
            total = list(map(add, total, one)) if total else one
        return total
