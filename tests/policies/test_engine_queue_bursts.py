"""A law of the inferred queue, over drawn engines and bursts: it is the engine's own figure, or it says by how
much it may be wrong."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from itertools import pairwise

from benchmarks.simulation.simulator import Simulation, World
from benchmarks.simulation.workloads import AgentRun, ModelCall, Text
from gateway.embedded.model import EngineSpec, Timing
from policies.admission import Limits
from policies.engine_queue import LEAST_S, UNCLEAR, EngineTime
from policies.fifo import Passthrough
from policies.scheduler import Scheduler
from policies.types import Decision, Fact, FirstByte, Left, ReplicaReported, TurnId

NUM_BURSTS = 150
MOST_UNCLEAR = 0.2
"""Part of the bursts of which so much of the time may be labelled as unclear that the label matters."""
JITTER_S = 0.005
"""Of first bytes on their way."""


@dataclass
class Timed:
    """A scheduler that is asked, as each call ends, where its time went."""

    scheduler: Scheduler
    is_whole: bool
    spent: dict[TurnId, EngineTime] = field(default_factory=dict)

    def tell(self, fact: Fact, now: float) -> tuple[list[Decision], float | None]:
        if isinstance(fact, Left):
            spent = self.scheduler.engine_time(fact.turn_id, fact.usage, self.is_whole, now)
            assert spent is not None
            self.spent[fact.turn_id] = spent
        return self.scheduler.tell(fact, now)


class Polled(Simulation):
    """A simulation whose engine is polled, and that knows when the engine began each call."""

    def __init__(self, timed: Timed, spec: EngineSpec, poll_s: float, first_poll_s: float) -> None:
        super().__init__(timed, World(spec))
        self.queue_s: dict[TurnId, float] = {}
        self._rng = random.Random(0)
        self._poll_s = poll_s
        self._at(first_poll_s, self._poll)

    def _poll(self) -> None:
        for replica_id, model in self._models.items():
            self._tell(ReplicaReported(replica_id, running=model.num_running, waiting=model.num_waiting))
        if self._events:
            self._at(self._now + self._poll_s, self._poll)

    def _step(self, replica_id: str) -> None:
        step = self._models[replica_id].step(self._horizon_s())
        if step is None:
            self._busy.discard(replica_id)
            return
        for name in step.admitted:
            self.queue_s.setdefault(name, self._now - self._open[name].simulated.dispatched_at)
        self._at(self._now + step.duration_s, lambda: self._stepped(replica_id, step))

    def _tell(self, fact: Fact) -> None:
        tell = super()._tell
        if isinstance(fact, FirstByte):
            self._at(self._now + self._rng.uniform(0.0, JITTER_S), lambda: tell(fact))
        else:
            tell(fact)


def call(name: str, at_s: float, prompt_tokens: int, output_tokens: int) -> AgentRun:
    text = Text((prompt_tokens + output_tokens, name))
    return AgentRun(name, "f", at_s, (ModelCall(text, prompt_tokens, output_tokens),))


def drawn(seed: int) -> tuple[Polled, Timed, list[AgentRun]]:
    """An engine, and calls for it: eight one after the other, which show its speed, and a burst."""
    rng = random.Random(seed)
    slowness, size, burst = (
        rng.choice([0.25, 1, 4, 16]),
        rng.choice([100, 400, 1000, 4000]),
        1 << rng.randint(2, 7),
    )
    base, poll_s = Timing(), rng.choice([0.1, 1.0, 1.0])
    timing = replace(
        base, prefill_base_s=slowness * base.prefill_base_s, prefill_token_s=slowness * base.prefill_token_s
    )
    spec = EngineSpec(
        rng.choice([200_000, max(3_000, burst * size // 48)]),
        max_num_seqs=rng.choice([2, 4, 8, 16, 32, 64, 256]),
        max_batched_tokens=rng.choice([512, 2048, 8192]),
        timing=timing,
    )
    timed = Timed(Scheduler(Passthrough(), Limits()), is_whole=rng.random() < 0.2)
    sizes = [max(50, rng.choice([2, 1, 4, 3]) * size // 2) for _ in range(8)]
    ends = [0.5]
    for tokens in sizes:
        ends.append(ends[-1] + 1.0 + 2 * timing.prefill_s(tokens))
    runs = [call(f"warm{at}", at, tokens, 4) for (at, _), tokens in zip(pairwise(ends), sizes, strict=True)]
    spread_s, width, output = (
        rng.choice([0.0, 0.0, 0.5, 3.0]),
        rng.choice([0.0, 0.0, 0.5]),
        rng.choice([8, 60, 200]),
    )
    for number in range(burst):
        tokens, num_output = round(size * rng.uniform(1 - width, 1 + width)), round(output * rng.uniform(0.7, 1.3))
        runs.append(call(f"burst{number}", ends[-1] + 2.0 + rng.uniform(0.0, spread_s), tokens, num_output))
    return Polled(timed, spec, poll_s, rng.uniform(0.0, poll_s)), timed, runs


def test_the_queue_of_a_burst_is_the_engine_s_own_figure_or_says_by_how_much_it_may_be_wrong() -> None:
    wrong, num_unclear = [], 0
    for seed in range(NUM_BURSTS):
        engine, timed, runs = drawn(seed)
        engine.run(runs)
        names = [name for name in timed.spent if name.startswith("burst")]
        real_s = sum(engine.queue_s[name] for name in names)
        queue_s, unclear_s = (
            sum(getattr(timed.spent[n], f"{what}_s") for n in names) for what in ("queue", "unclear")
        )
        if abs(queue_s - real_s) > UNCLEAR * real_s + LEAST_S * len(names) + unclear_s:
            wrong.append((seed, real_s, queue_s, unclear_s))
        num_unclear += unclear_s > UNCLEAR * queue_s
    assert not wrong
    assert num_unclear <= MOST_UNCLEAR * NUM_BURSTS
