"""The forecast of one pool: what its residents are expected to add or give back, summed per family and stage."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import repeat
from operator import add, sub
from typing import TypeAlias

from policies.types import Family, FamilyId, Session, SessionId

Stage: TypeAlias = tuple[int, int | None]
"""(turns begun, declared remaining turns): sessions of a family at one stage are expected to grow alike."""
Forecast: TypeAlias = Callable[[Family, int, int | None], Sequence[float]]


class Reserve:
    """Computes anew only when it is asked, and only the families that facts have touched since: what is never
    asked, as long as nobody new arrives, costs nothing."""

    def __init__(self, forecast: Forecast) -> None:
        self._forecast = forecast
        self._stages: dict[FamilyId, dict[Stage, int]] = {}
        self._families: dict[FamilyId, Sequence[float]] = {}
        self._touched: dict[FamilyId, Family] = {}
        self._placed: dict[SessionId, tuple[Stage, int]] = {}
        self._sum: list[float] = []
        self.tail_chars = 0
        """Characters of the residents' prompts behind their last whole block."""

    @property
    def forecast(self) -> list[float]:
        """Expected change after 0, 1, ... turns, in tokens; empty without residents."""
        while self._touched:
            self._refresh(self._touched.popitem()[1])
        return self._sum

    def of(self, family: Family, stage: Stage) -> Sequence[float]:
        """The forecast of one session."""
        known = family.forecasts.get(stage)
        if known is None:
            known = family.forecasts[stage] = self._forecast(family, *stage)
        return known

    def put(self, session: Session, family: Family, tail_chars: int) -> None:
        """Count a resident at its present stage, in place of its earlier one."""
        self.drop(session.id, family)
        stage = session.num_begun, session.remaining_turns
        stages = self._stages.get(family.id)
        if stages is None:
            stages = self._stages[family.id] = {}
        stages[stage] = stages.get(stage, 0) + 1
        self._placed[session.id] = stage, tail_chars
        self.tail_chars += tail_chars
        self._touched[family.id] = family

    def drop(self, session_id: SessionId, family: Family) -> None:
        """Stop counting a session; nothing happens when it was not counted."""
        placed = self._placed.pop(session_id, None)
        if placed is None:
            return
        stage, tail_chars = placed
        self.tail_chars -= tail_chars
        stages = self._stages[family.id]
        if stages[stage] == 1:
            del stages[stage]
        else:
            stages[stage] -= 1
        self._touched[family.id] = family

    def touch(self, family: Family) -> None:
        """The family's statistics changed."""
        if family.id in self._stages:
            self._touched[family.id] = family

    def _refresh(self, family: Family) -> None:
        stages = self._stages[family.id]
        before, after = self._families.pop(family.id, None), None
        if stages:
            after = self._families[family.id] = self._total(family, stages)
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
