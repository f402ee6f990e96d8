"""What deciding costs: microseconds per fact with an empty queue, and with 1,000 and 10,000 turns at the gate.

python -m benchmarks.decisions [--rounds 2000] [--profile]

One replica; agents of 20 families, whose prompts share 64 blocks of 512 characters and grow by 8 blocks a turn
from 80 on. Each round one session finishes its turn and comes back for the next one, or ends and a new one
arrives, so that the number of those who wait stays. Times are processor time of `Scheduler.tell`, on one core.
"""

from __future__ import annotations

import argparse
import cProfile
import random
import time
from array import array
from collections import deque
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field

from benchmarks import results
from gateway.demo.report import quantile
from policies.admission import Limits
from policies.scheduler import Scheduler
from policies.turns import Turns
from policies.types import (
    BLOCK_CHARS,
    Arrived,
    Decision,
    Dispatch,
    Ending,
    Fact,
    FirstByte,
    Left,
    ReplicaReported,
    Turn,
    TurnId,
    Usage,
)

FAMILIES, SHARED_BLOCKS, FIRST_BLOCKS, APPEND_BLOCKS, TURNS = 20, 64, 80, 8, 6
TOKENS_PER_BLOCK = 128
CAPACITY_TOKENS = 400_000
RESIDENT = 100
"""About as many sessions of full size fit."""
BARS_US = {0: 30.0, 1_000: 50.0, 10_000: 200.0}
"""All facts of a turn together with an empty queue; else each fact, amortised."""


@dataclass(slots=True)
class Load:
    """A fleet that keeps its queue as long as it is; `spent_us` of each fact."""

    scheduler: Scheduler
    rng: random.Random
    now: float = 0.0
    spent_us: list[float] = field(default_factory=list)
    running: deque[TurnId] = field(default_factory=deque)
    turns: dict[TurnId, tuple[str, int]] = field(default_factory=dict)
    """Turn -> its session and number."""
    num_sessions: int = 0

    def tell(self, fact: Fact) -> None:
        began_at = time.thread_time_ns()
        decisions, _ = self.scheduler.tell(fact, self.now)
        self.spent_us.append((time.thread_time_ns() - began_at) / 1e3)
        self.started(decisions)

    def started(self, decisions: list[Decision]) -> None:
        self.running.extend(decision.turn_id for decision in decisions if isinstance(decision, Dispatch))

    def arrive(self, session: str = "", number: int = 1) -> None:
        """The next turn of a session, or the first of a new one."""
        if not session:
            self.num_sessions += 1
            session = f"s{self.num_sessions}"
        turn_id = f"{session}.{number}"
        family = int(session[1:]) % FAMILIES
        first = (1 + int(session[1:])) << 24
        blocks = array("Q", range(family << 12, (family << 12) + SHARED_BLOCKS))
        blocks.extend(range(first, first + FIRST_BLOCKS - SHARED_BLOCKS + APPEND_BLOCKS * (number - 1)))
        self.turns[turn_id] = session, number
        chars = len(blocks) * BLOCK_CHARS
        self.tell(
            Arrived(Turn(turn_id, session, f"f{family}", "t", "m", self.now, blocks, chars, max_wait_s=1e12))
        )

    def finish(self) -> None:
        """The oldest running turn is answered; its session comes back after a tool, or a new one arrives."""
        turn_id = self.running.popleft()
        session, number = self.turns.pop(turn_id)
        self.now += self.rng.expovariate(20.0)
        self.tell(FirstByte(turn_id))
        self.now += self.rng.expovariate(20.0)
        tokens = TOKENS_PER_BLOCK * (FIRST_BLOCKS + APPEND_BLOCKS * number)
        self.tell(Left(turn_id, Ending.COMPLETE, Usage(tokens, tokens - 1_000, 200), ("bash",)))
        self.now += self.rng.expovariate(20.0)
        if number < TURNS and self.rng.random() > 0.1:
            self.arrive(session, number + 1)
        else:
            self.arrive()


def load(num_waiting: int) -> Load:
    """A fleet with so many turns at the gate, settled."""
    fleet = Load(Scheduler(Turns(), Limits(max_queue=1_000_000)), random.Random(7))
    fleet.tell(ReplicaReported("r", None, CAPACITY_TOKENS, 10_000, 0, TOKENS_PER_BLOCK / BLOCK_CHARS))
    for _ in range(num_waiting + RESIDENT if num_waiting else RESIDENT // 4):
        fleet.arrive()
    for _ in range(1_000):
        fleet.finish()
    fleet.spent_us.clear()
    return fleet


def measure(num_waiting: int, rounds: int, profile: bool) -> Mapping[str, float]:
    """Microseconds; `rounds` turns, each of three facts."""
    fleet = load(num_waiting)
    profiler = cProfile.Profile() if profile else nullcontext()
    with profiler:
        for _ in range(rounds):
            fleet.finish()
    if isinstance(profiler, cProfile.Profile):
        profiler.print_stats("tottime")
    spent_us = fleet.spent_us
    mean_us = sum(spent_us) / len(spent_us)
    return {
        "waiting": num_waiting,
        "held": sum(fleet.scheduler.view().waiting.values()),
        "fact_us": mean_us,
        "turn_us": sum(spent_us) / rounds,
        "p99_us": quantile(spent_us, 0.99),
        "p99_over_mean": quantile(spent_us, 0.99) / mean_us,
        "bar_us": BARS_US[num_waiting],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=2_000)
    parser.add_argument("--profile", action="store_true", help="print where the time goes, write nothing")
    options = parser.parse_args()
    rows = [measure(num_waiting, options.rounds, options.profile) for num_waiting in BARS_US]
    head = "| waiting | at the gate | a fact, us | a turn's facts, us | p99, us | p99 / mean | bar, us |\n"
    lines = [
        f"| {row['waiting']:,.0f} | {row['held']:,.0f} | {row['fact_us']:.1f} | {row['turn_us']:.1f} "
        f"| {row['p99_us']:.1f} | {row['p99_over_mean']:.1f} | {row['bar_us']:.0f} |"
        for row in rows
    ]
    text = (
        "Microseconds of `Scheduler.tell` on one core. The bar of the first row is for all facts of a turn "
        "together, of the others for each fact.\n\n"
    )
    table = text + head + "|---|---|---|---|---|---|---|\n" + "\n".join(lines)
    print(table)
    if not options.profile:
        results.write("decisions", table, list(rows))


if __name__ == "__main__":
    main()
