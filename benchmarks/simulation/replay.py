"""Replays a log of facts: a fresh Scheduler is told the same facts at the same times and must decide the same."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from gateway import factlog
from gateway.scheduling import limits_of, policy_of
from gateway.settings import Settings
from policies.scheduler import Scheduler


@dataclass(frozen=True, slots=True)
class Report:
    num_facts: int
    num_decisions: int
    first_difference: str | None = None

    @property
    def is_same(self) -> bool:
        return self.first_difference is None

    def __str__(self) -> str:
        told = f"{self.num_facts:,} facts, {self.num_decisions:,} decisions"
        return (
            f"{told}: identical" if self.is_same else f"{told} until the first difference: {self.first_difference}"
        )


def replay(path: Path) -> Report:
    """Stops at the first difference. A log may hold several runs of a gateway, each behind its header. Raises
    ValueError on a line that is not of the log's format, or when facts come before any header."""
    num_facts = num_decisions = 0
    scheduler: Scheduler | None = None
    for line in factlog.lines(path):
        if isinstance(line, factlog.Header):
            settings = Settings.model_validate(line.settings)
            scheduler = Scheduler(policy_of(settings.policy), limits_of(settings))
            continue
        if scheduler is None:
            raise ValueError(f"{path} begins without a header: it was written by an older version")
        now, fact, recorded = line
        num_facts += 1
        num_decisions += len(recorded)
        decided, _ = scheduler.tell(fact, now)
        if decided != recorded:
            difference = f"fact {num_facts} at {now:.6f} s, {fact}: recorded {recorded}, decided {decided}"
            return Report(num_facts, num_decisions, difference)
    return Report(num_facts, num_decisions)
