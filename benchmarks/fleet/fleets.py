"""The workloads: which sessions run against how large a cache, and which runs together answer a question."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.cli.demo_fleet import FleetShape

BASE_RATE_PER_S = 40 / 45.0
"""R: the sessions per second that the base engine finishes when all go straight (`--fleet base`, straight)."""


@dataclass(frozen=True, slots=True)
class FleetSpec:
    """A workload, and the engine's KV cache under it."""

    shape: FleetShape
    num_blocks: int
    """Per worker."""
    num_workers: int = 1
    block_tokens: int = 16
    session_cap: int = 20
    """Of the arm that knows the best one."""

    @property
    def capacity_tokens(self) -> int:
        """Of all workers together."""
        return self.num_workers * self.num_blocks * self.block_tokens

    @property
    def within_s(self) -> float:
        """A run that takes longer has failed."""
        rate = self.shape.arrival_rate_per_s
        return 240.0 + (2 * self.shape.num_sessions / rate if rate else 6.0 * self.shape.num_sessions)


def _open(load: float) -> FleetSpec:
    return FleetSpec(FleetShape(200, arrival_rate_per_s=load * BASE_RATE_PER_S), 2_500, session_cap=24)


def _cpu(num_sessions: int) -> FleetSpec:
    """For the 7M model on a CPU: about five sessions fit."""
    shape = FleetShape(num_sessions, first_tokens=600, append_tokens=600, output_tokens=(36, 84), gap_s=(0.5, 0.5))
    return FleetSpec(shape, num_blocks=600, block_tokens=32, session_cap=5)


FLEETS = {
    "below": FleetSpec(FleetShape(8), 8_192),
    "base": FleetSpec(FleetShape(40), 2_500),
    "base-37": FleetSpec(FleetShape(37), 2_500),
    "base-43": FleetSpec(FleetShape(43), 2_500),
    "base-50": FleetSpec(FleetShape(50), 2_500),
    "ctl": FleetSpec(FleetShape(40), 8_192),
    "mixed": FleetSpec(FleetShape(40, (2, 4, 8)), 2_500),
    "w4": FleetSpec(FleetShape(40), 900, num_workers=4, session_cap=28),
    "open": _open(1.0),
    "open-0.8": _open(0.8),
    "open-1.15": _open(1.15),
    "cpu-16": _cpu(16),
    "cpu-32": _cpu(32),
    "cpu-64": _cpu(64),
}
"""`below` is far from any cliff (8 sessions where 40 fit), `ctl` has no pressure either. In `base` about 20 of the
sessions fit, in `w4` 5 or 6 per worker. Each `open` fleet arrives at that multiple of BASE_RATE_PER_S."""


OURS = ("straight", "turns")
CAPS = ("passthrough", "request-cap", "session-cap")
LENGTHS = ("turns-declared", "turns-history")
PROXIES = ("smg", "vllm-router", "vllm-router-programs")
DYNAMOS = ("dynamo-priority", "dynamo-affinity", "thunderagent", "thunderagent-1s")
OTHERS = (*CAPS, *DYNAMOS, *PROXIES, "batch-agent-16")
OPEN_OTHERS = ("session-cap", "thunderagent-1s", "vllm-router-programs", "batch-agent-16")
FIVE = (1, 2, 3, 4, 5)
THREE = (1, 2, 3)


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
}
