"""Replays a log of facts (`logging.facts`): a fresh Scheduler gets the same facts and must decide the same.

python -m benchmarks.simulation.replay FILE
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path

from gateway.config.settings import Settings
from gateway.request.gate import limits_of, policy_of
from gateway.telemetry import factlog
from policies.scheduler import Scheduler


@dataclass(frozen=True, slots=True)
class ReplayReport:
    num_facts: int
    num_decisions: int
    first_difference: str | None = None

    @property
    def is_same(self) -> bool:
        return self.first_difference is None

    def __str__(self) -> str:
        verdict = ": identical" if self.is_same else f" until the first difference: {self.first_difference}"
        return f"{self.num_facts:,} facts, {self.num_decisions:,} decisions{verdict}"


def replay(path: Path) -> ReplayReport:
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
            return ReplayReport(num_facts, num_decisions, difference)
    return ReplayReport(num_facts, num_decisions)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("file", type=Path, metavar="FILE")
    report = replay(parser.parse_args().file)
    print(report)
    return 0 if report.is_same else 1


if __name__ == "__main__":
    sys.exit(main())
