"""Which runs together answer a question, each in the order in which its results are wanted."""

from __future__ import annotations

from dataclasses import dataclass

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
        return f"fleet-{self.engine}-{self.fleet}"

    def cells(self) -> list[tuple[str, int]]:
        """(arm, seed), seed by seed, each starting with another arm."""
        found = []
        for seed in self.seeds:
            arms = self.arms + (self.others if seed in self.other_seeds else ())
            found += [(arms[(seed + place) % len(arms)], seed) for place in range(len(arms))]
        return found


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
