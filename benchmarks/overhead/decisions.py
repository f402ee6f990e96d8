"""What deciding costs: microseconds per fact with an empty queue, and with 1,000 and 10,000 turns at the gate.

python -m benchmarks.overhead.decisions [--rounds 2000] [--runs 5] [--profile]

One replica; agents of 20 families, whose prompts share 64 blocks of 512 characters and grow by 8 blocks a turn
from 80 on. Each round one session finishes its turn and comes back for the next one, or ends and a new one
arrives, so that as many turns wait as before; a Tick comes when the Scheduler asks for one, as in a gateway.
Times are processor time of `Scheduler.tell` on one core, less what reading the clock takes. Of several runs of the
same facts the one that was disturbed least counts, whole.
"""

from __future__ import annotations

import cProfile
import random
import time
from array import array
from collections import deque
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field

from benchmarks.results import command_parser, write
from gateway.cli.demo_fleet import quantile
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
    Tick,
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
KINDS = ("first turn", "later turn", "first byte", "end", "tick")


@dataclass(slots=True)
class Load:
    """A fleet that keeps its queue as long as it is."""

    scheduler: Scheduler
    rng: random.Random
    now: float = 0.0
    wake_at: float | None = None
    clock_us: float = 0.0
    spent_us: list[float] = field(default_factory=list)
    """Of each fact."""
    kinds: list[str] = field(default_factory=list)
    """Likewise, of KINDS."""
    running: deque[TurnId] = field(default_factory=deque)
    turns: dict[TurnId, tuple[str, int]] = field(default_factory=dict)
    """Turn -> its session and number."""
    num_sessions: int = 0

    def tell(self, fact: Fact, kind: str) -> None:
        while self.wake_at is not None and self.wake_at <= self.now:
            self._tell(Tick(), "tick", self.wake_at)
        self._tell(fact, kind, self.now)

    def _tell(self, fact: Fact, kind: str, now: float) -> None:
        began_at = time.thread_time_ns()
        decisions, self.wake_at = self.scheduler.tell(fact, now)
        self.spent_us.append((time.thread_time_ns() - began_at) / 1e3 - self.clock_us)
        self.kinds.append(kind)
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
        turn = Turn(turn_id, session, f"f{family}", "t", "m", self.now, blocks, chars, max_wait_s=1e12)
        self.tell(Arrived(turn), "first turn" if number == 1 else "later turn")

    def finish(self) -> None:
        """The oldest running turn is answered; its session comes back after a tool, or a new one arrives."""
        turn_id = self.running.popleft()
        session, number = self.turns.pop(turn_id)
        self.now += self.rng.expovariate(20.0)
        self.tell(FirstByte(turn_id), "first byte")
        self.now += self.rng.expovariate(20.0)
        tokens = TOKENS_PER_BLOCK * (FIRST_BLOCKS + APPEND_BLOCKS * number)
        self.tell(Left(turn_id, Ending.COMPLETE, Usage(tokens, tokens - 1_000, 200), ("bash",)), "end")
        self.now += self.rng.expovariate(20.0)
        if number < TURNS and self.rng.random() > 0.1:
            self.arrive(session, number + 1)
        else:
            self.arrive()


def load(num_waiting: int) -> Load:
    """A fleet with so many turns at the gate, settled."""
    fleet = Load(Scheduler(Turns(), Limits(max_queue=1_000_000)), random.Random(7), clock_us=_clock_us())
    fleet.tell(ReplicaReported("r", None, CAPACITY_TOKENS, 10_000, 0, TOKENS_PER_BLOCK / BLOCK_CHARS), "")
    for _ in range(num_waiting + RESIDENT if num_waiting else RESIDENT // 4):
        fleet.arrive()
    for _ in range(1_000):
        fleet.finish()
    fleet.spent_us.clear()
    fleet.kinds.clear()
    return fleet


def _clock_us() -> float:
    """Between two readings at once."""
    return min(-time.thread_time_ns() + time.thread_time_ns() for _ in range(1_000)) / 1e3


def run(num_waiting: int, rounds: int, profile: bool) -> Load:
    """`rounds` turns, each of three facts and some ticks."""
    fleet = load(num_waiting)
    profiler = cProfile.Profile() if profile else nullcontext()
    with profiler:
        for _ in range(rounds):
            fleet.finish()
    if isinstance(profiler, cProfile.Profile):
        profiler.print_stats("tottime")
    return fleet


def measure(num_waiting: int, rounds: int, runs: int, profile: bool) -> Mapping[str, float]:
    """Microseconds."""
    fleet = min((run(num_waiting, rounds, profile) for _ in range(runs)), key=lambda fleet: sum(fleet.spent_us))
    spent_us = fleet.spent_us
    mean_us = sum(spent_us) / len(spent_us)
    by_kind: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for kind, one_us in zip(fleet.kinds, spent_us, strict=True):
        by_kind[kind].append(one_us)
    return {
        "waiting": num_waiting,
        "held": sum(fleet.scheduler.view().waiting.values()),
        "fact_us": mean_us,
        "turn_us": sum(spent_us) / rounds,
        "p99_us": quantile(spent_us, 0.99),
        "p99_over_mean": quantile(spent_us, 0.99) / mean_us,
        "bar_us": BARS_US[num_waiting],
        **{f"{kind}_us": sum(all_us) / max(1, len(all_us)) for kind, all_us in by_kind.items()},
    }


def main() -> None:
    parser = command_parser(__doc__, __file__)
    parser.add_argument("--rounds", type=int, default=2_000)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--profile", action="store_true", help="print where the time goes, write nothing")
    options = parser.parse_args()
    runs = 1 if options.profile else options.runs
    rows = [measure(num_waiting, options.rounds, runs, options.profile) for num_waiting in BARS_US]
    head = "| waiting | at the gate | a fact, us | a turn's facts, us | p99, us | p99 / mean | bar, us |"
    lines = [
        f"| {row['waiting']:,.0f} | {row['held']:,.0f} | {row['fact_us']:.1f} | {row['turn_us']:.1f} "
        f"| {row['p99_us']:.1f} | {row['p99_over_mean']:.1f} | {row['bar_us']:.0f} |"
        for row in rows
    ]
    kinds = [
        f"| {row['waiting']:,.0f} | " + " | ".join(f"{row[f'{kind}_us']:.1f}" for kind in KINDS) + " |"
        for row in rows
    ]
    text = (
        "Microseconds of `Scheduler.tell` on one core. The bar of the first row is for all facts of a turn "
        "together, of the others for each fact.\n\n"
    )
    parts = [text + head, "|---" * 7 + "|", *lines, "\nMean by fact, us:\n"]
    parts += [f"| waiting | {' | '.join(KINDS)} |", "|---" * (1 + len(KINDS)) + "|", *kinds]
    table = "\n".join(parts)
    print(table)
    write(None if options.profile else options.results, "decisions", table, rows)


if __name__ == "__main__":
    main()
