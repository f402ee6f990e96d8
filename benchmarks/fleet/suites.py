"""Which runs together answer a question, each in the order in which its results are wanted."""

from __future__ import annotations

from dataclasses import dataclass

OURS = ("straight", "turns")
BASELINES = ("straight", "passthrough", "request-cap", "session-cap", "turns")
PROXIES = ("smg", "vllm-router", "vllm-router-programs")
DYNAMOS = ("dynamo-priority", "dynamo-affinity", "thunderagent", "thunderagent-1s")
PEERS = (*DYNAMOS, *PROXIES, "batch-agent-16")
LENGTHS = ("turns-declared", "turns-history")
FIVE = (1, 2, 3, 4, 5)
THREE = (1, 2, 3)


@dataclass(frozen=True, slots=True)
class Job:
    engine: str
    fleet: str
    arms: tuple[str, ...]
    seeds: tuple[int, ...]

    @property
    def name(self) -> str:
        return f"fleet-{self.engine}-{self.fleet}"


SUITES = {
    "part-b": (
        Job("dynamo", "base", (*BASELINES, *PEERS), FIVE),
        Job("dynamo", "ctl", (*BASELINES, *PEERS), FIVE),
        Job("dynamo", "mixed", (*BASELINES, *LENGTHS, *PEERS), FIVE),
        Job("dynamo", "w4", (*BASELINES, *PEERS), FIVE),
        *(Job("dynamo", fleet, OURS, FIVE) for fleet in ("base-37", "base-43", "base-50", "below")),
        Job("dynamo", "open", (*OURS, "session-cap", *PEERS), FIVE),
        *(Job("dynamo", fleet, OURS, FIVE) for fleet in ("open-0.8", "open-1.15")),
        Job("vllm", "cpu-16", (*BASELINES, *PROXIES, "batch-agent-16"), THREE),
        *(Job("vllm", fleet, OURS, THREE) for fleet in ("cpu-32", "cpu-64")),
    ),
}
