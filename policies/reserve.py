"""Tokens that a replica's residents are still expected to add, summed per family and stage."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from policies.types import Family, FamilyId, Session, SessionId

Stage: TypeAlias = tuple[int, int | None]
"""(turns begun, declared remaining turns): sessions of a family at one stage are expected to grow alike."""
Growth: TypeAlias = Callable[[Family, int, int | None], float]


class Reserve:
    """Re-computes only the family that a fact touched, never session by session."""

    def __init__(self, growth: Growth) -> None:
        self._growth = growth
        self._stages: dict[FamilyId, dict[Stage, int]] = {}
        self._family_tokens: dict[FamilyId, float] = {}
        self._placed: dict[SessionId, tuple[FamilyId, Stage, int]] = {}
        self.tail_chars = 0
        """Characters of the residents' prompts behind their last whole block."""
        self.growth_tokens = 0.0

    def put(self, session: Session, family: Family, tail_chars: int) -> None:
        """Count a resident at its present stage, in place of its earlier one."""
        self.drop(session.id, family)
        stage = (session.num_begun, session.remaining_turns)
        stages = self._stages.setdefault(family.id, {})
        stages[stage] = stages.get(stage, 0) + 1
        self._placed[session.id] = (family.id, stage, tail_chars)
        self.tail_chars += tail_chars
        self.refresh(family)

    def drop(self, session_id: SessionId, family: Family) -> None:
        """Stop counting a session; nothing happens when it was not counted."""
        placed = self._placed.pop(session_id, None)
        if placed is None:
            return
        _, stage, tail_chars = placed
        self.tail_chars -= tail_chars
        stages = self._stages[family.id]
        stages[stage] -= 1
        if not stages[stage]:
            del stages[stage]
        self.refresh(family)

    def refresh(self, family: Family) -> None:
        """The family's statistics or members changed."""
        stages = self._stages.get(family.id)
        if stages is None:
            return
        tokens = sum(number * self._growth(family, *stage) for stage, number in stages.items())
        self.growth_tokens += tokens - self._family_tokens.pop(family.id, 0.0)
        if stages:
            self._family_tokens[family.id] = tokens
        else:
            del self._stages[family.id]
