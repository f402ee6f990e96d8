"""The forecast of one pool: what its residents are expected to add or give back, summed per family and stage."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from policies.types import Family, FamilyId, Session, SessionId

Stage: TypeAlias = tuple[int, int | None]
"""(turns begun, declared remaining turns): sessions of a family at one stage are expected to grow alike."""
Forecast: TypeAlias = Callable[[Family, int, int | None], Sequence[float]]


class Reserve:
    """Re-computes only the family that a fact touched, never session by session."""

    def __init__(self, forecast: Forecast) -> None:
        self._forecast = forecast
        self._stages: dict[FamilyId, dict[Stage, int]] = {}
        self._families: dict[FamilyId, list[float]] = {}
        self._placed: dict[SessionId, tuple[Stage, int]] = {}
        self.tail_chars = 0
        """Characters of the residents' prompts behind their last whole block."""
        self.forecast: list[float] = []
        """Expected change after 0, 1, ... turns, in tokens; empty without residents."""

    def put(self, session: Session, family: Family, tail_chars: int) -> None:
        """Count a resident at its present stage, in place of its earlier one."""
        self._unplace(session.id, family)
        stage = (session.num_begun, session.remaining_turns)
        stages = self._stages.setdefault(family.id, {})
        stages[stage] = stages.get(stage, 0) + 1
        self._placed[session.id] = stage, tail_chars
        self.tail_chars += tail_chars
        self.refresh(family)

    def drop(self, session_id: SessionId, family: Family) -> None:
        """Stop counting a session; nothing happens when it was not counted."""
        if self._unplace(session_id, family):
            self.refresh(family)

    def refresh(self, family: Family) -> None:
        """The family's statistics or members changed."""
        stages = self._stages.get(family.id)
        if stages is None:
            return
        before = self._families.pop(family.id, None)
        forecasts = [(number, self._forecast(family, *stage)) for stage, number in stages.items()]
        if forecasts:
            self._families[family.id] = [
                sum(number * values[ahead] for number, values in forecasts)
                for ahead in range(len(forecasts[0][1]))
            ]
        else:
            del self._stages[family.id]
        self._add(self._families.get(family.id), before)

    def _add(self, new: list[float] | None, old: list[float] | None) -> None:
        if not self._families:
            self.forecast = []  # also ends the rounding errors of adding and subtracting
            return
        length = len(next(iter(self._families.values())))
        none = [0.0] * length
        self.forecast = [
            total + plus - minus
            for total, plus, minus in zip(self.forecast or none, new or none, old or none, strict=True)
        ]

    def _unplace(self, session_id: SessionId, family: Family) -> bool:
        placed = self._placed.pop(session_id, None)
        if placed is None:
            return False
        stage, tail_chars = placed
        self.tail_chars -= tail_chars
        stages = self._stages[family.id]
        stages[stage] -= 1
        if not stages[stage]:
            del stages[stage]
        return True
