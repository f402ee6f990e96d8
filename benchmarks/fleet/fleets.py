"""The fleets that are played on real engines, those of the simulator and more, and which runs together answer a
question."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from benchmarks.simulation.fleets import BASE, R_PER_S, AgentFleet, Population, poisson
from benchmarks.simulation.fleets import FLEETS as SIMULATED
from benchmarks.simulation.simulator import World
from gateway.embedded.model import EngineSpec

CPU = World(EngineSpec(600, block_tokens=32))
"""For the 7M model on a CPU: about five sessions fit."""


def _cpu(num_sessions: int) -> AgentFleet:
    [population] = SIMULATED["cpu16"].populations
    return AgentFleet([replace(population, num_sessions=num_sessions)], CPU)


FLEETS: Mapping[str, AgentFleet] = {
    **SIMULATED,
    "below": AgentFleet([Population(8)], SIMULATED["ctl"].world, "far from any cliff: 8 sessions where 40 fit"),
    "base-37": AgentFleet([Population(37)], BASE),
    "base-43": SIMULATED["b43"],
    "base-50": AgentFleet([Population(50)], BASE),
    "open": AgentFleet([Population(200, arrivals=poisson(R_PER_S))], BASE),
    "open-0.8": AgentFleet([Population(200, arrivals=poisson(0.8 * R_PER_S))], BASE),
    "open-1.15": SIMULATED["open1.15"],
    "cpu-16": _cpu(16),
    "cpu-24": _cpu(24),
    "cpu-32": _cpu(32),
    "cpu-64": _cpu(64),
}

SESSION_CAP = 20
SESSION_CAPS = {
    "w4": 28,
    "open": 24,
    "open-0.8": 24,
    "open-1.15": 24,
    "cpu-16": 5,
    "cpu-24": 5,
    "cpu-32": 5,
    "cpu-64": 5,
}
"""Of the arm that knows the best cap; SESSION_CAP on other fleets."""


OURS = ("straight", "turns")
CAPS = ("passthrough", "request-cap", "session-cap")
LENGTHS = ("turns-declared", "turns-history")
PROXIES = ("smg", "vllm-router", "vllm-router-programs")
DYNAMOS = ("dynamo-priority", "dynamo-affinity", "thunderagent", "thunderagent-1s")
OTHERS = (*CAPS, *DYNAMOS, *PROXIES, "batch-agent-16")
OPEN_OTHERS = ("session-cap", "thunderagent-1s", "vllm-router-programs", "batch-agent-16")
PEERS = ("dynamo-affinity", "vllm-router-programs", "batch-agent-16")
FIVE = (1, 2, 3, 4, 5)
THREE = (1, 2, 3)
TWO = (1, 2)


@dataclass(frozen=True, slots=True)
class Job:
    """One fleet on one engine: some arms at all seeds, others at some of them."""

    engine: str
    fleet: str
    arms: tuple[str, ...]
    seeds: tuple[int, ...]
    others: tuple[str, ...] = ()
    other_seeds: tuple[int, ...] = THREE

    @property
    def name(self) -> str:
        return f"{self.engine}-{self.fleet}"

    def cells(self) -> list[tuple[str, int]]:
        """(arm, seed), seed by seed, each starting with another arm."""
        cells = []
        for seed in self.seeds:
            arms = self.arms + (self.others if seed in self.other_seeds else ())
            cells += [(arms[(seed + place) % len(arms)], seed) for place in range(len(arms))]
        return cells


SUITES = {
    "part-b": (
        Job("dynamo", "base", OURS, FIVE, OTHERS),
        Job("dynamo", "ctl", OURS, FIVE, OTHERS),
        Job("dynamo", "mixed", (*OURS, *LENGTHS), FIVE, OTHERS),
        Job("dynamo", "w4", OURS, FIVE, OTHERS),
        *(Job("dynamo", fleet, OURS, FIVE) for fleet in ("base-37", "base-43", "base-50", "below")),
        Job("dynamo", "open", OURS, FIVE, OPEN_OTHERS),
        *(Job("dynamo", fleet, OURS, FIVE) for fleet in ("open-0.8", "open-1.15")),
        Job("vllm", "cpu-16", OURS, THREE, (*CAPS, *PROXIES, "batch-agent-10"), (1,)),
        *(Job("vllm", fleet, OURS, THREE) for fleet in ("cpu-32", "cpu-64")),
    ),
    "sglang": tuple(
        Job(engine, fleet, OURS, THREE) for engine in ("sglang", "vllm") for fleet in ("cpu-24", "cpu-16")
    ),
    "no-harm": (
        *(
            Job("dynamo", fleet, OURS, FIVE, PEERS, TWO)
            for fleet in ("base", "mixed", "w4", "heavy", "sub", "subf", "chat")
        ),
        *(
            Job("dynamo", fleet, OURS, TWO, PEERS, TWO)
            for fleet in (
                *("n80", "n120", "open1.5", "ctl", "bursts", "pauses", "chatwarm", "giant"),
                *("declared", "classes", "w4x80", "fam4lo", "fam4hi"),
            )
        ),
    ),
}
"""`sglang`: the 7M model on a CPU, by SGLang and by vLLM. `no-harm`: the gateway against going straight on every
shape of fleet, beside the peers that do most."""
