"""The experiment on the ledger of time: what it says that the gate saved, and what the gate really saved."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.simulation.fleets import FLEETS, AgentFleet
from benchmarks.simulation.report import Bar, Outcome
from benchmarks.simulation.router import Ungated
from benchmarks.simulation.simulator import Decider, Simulation
from policies.admission import Limits
from policies.fifo import Observe
from policies.scheduler import Scheduler
from policies.turns import Turns
from policies.types import Tick

NEAR = ("base", "mixed", "heavy")
"""Fleets whose net has to be near the difference, or near none."""
FORESEEN = ("base", "n80")
"""Fleets whose gain `observe` has to foresee."""
CALM = ("ctl", "bursts", "fam4lo")
"""Fleets without pressure."""
AFTERWARDS = 1e6
"""When the silence of all sessions counts as their end."""
CLEAR = 0.02
"""Of the sum without a gateway: a smaller difference has no sign."""


@dataclass(frozen=True, slots=True)
class LedgerFigures:
    """One fleet over all seeds, in seconds of sessions, sub-agents included."""

    num_sessions: int
    straight_s: float
    difference_s: float
    """What the sessions took without the gateway, less what they took with it."""
    held_s: float
    saved_s: float
    foreseen_s: float
    """What the ledger of `observe` said that the gate would save, net."""

    @property
    def net_s(self) -> float:
        return self.saved_s - self.held_s

    @property
    def has_sign(self) -> bool:
        """Whether the net has the sign of the difference, where that is clear."""
        return abs(self.difference_s) <= CLEAR * self.straight_s or self.difference_s * self.net_s > 0

    @property
    def error(self) -> float:
        """Of the net."""
        return self._error(self.net_s)

    @property
    def foreseen_error(self) -> float:
        """Of what `observe` said."""
        return self._error(self.foreseen_s)

    def _error(self, net_s: float) -> float:
        """As a part of the difference; where that is not clear, as a part of the sum."""
        is_clear = abs(self.difference_s) > CLEAR * self.straight_s
        return abs(net_s - self.difference_s) / (abs(self.difference_s) if is_clear else self.straight_s)


COLUMNS = [
    "fleet",
    "straight s",
    "saved really",
    "net of the ledger",
    "net / really",
    "held s",
    "saved s",
    "observe",
]


def ledger(seeds: Sequence[int]) -> Outcome:
    """What the ledger says against what is."""
    found = {name: of_fleet(fleet, seeds) for name, fleet in FLEETS.items()}
    rows = [
        [
            name,
            one.straight_s,
            one.difference_s / one.straight_s,
            one.net_s / one.straight_s,
            one.net_s / one.difference_s if abs(one.difference_s) > CLEAR * one.straight_s else "",
            one.held_s,
            one.saved_s,
            one.foreseen_s / one.straight_s,
        ]
        for name, one in found.items()
    ]
    return Outcome(
        "Seconds of all sessions, sub-agents included, without a gateway; the part of them that `turns` really "
        "saved, with the same seeds; the part that its ledger says, saved less held; and the part that the ledger "
        "of `observe` says on the fleet without a gate. A difference below 2 % has no sign, and no ratio.",
        COLUMNS,
        rows,
        found,
        [
            Bar("fleets whose net has the wrong sign", sum(not one.has_sign for one in found.values()), most=0),
            *(Bar(f"error of the net, {name}", found[name].error, most=0.3) for name in NEAR),
            *(Bar(f"error of `observe`, {name}", found[name].foreseen_error, most=0.4) for name in FORESEEN),
            *(
                Bar(f"seconds held per session, {name}", found[name].held_s / found[name].num_sessions, most=1.0)
                for name in CALM
            ),
        ],
    )


def of_fleet(fleet: AgentFleet, seeds: Sequence[int]) -> LedgerFigures:
    """Play a fleet without a gateway, through one that holds sessions, and through one that only observes."""
    num_sessions, straight_s, turns_s, held_s, saved_s, foreseen_s = 0, 0.0, 0.0, 0.0, 0.0, 0.0
    for seed in seeds:
        gated, observing = Scheduler(Turns(), Limits()), Scheduler(Observe(), Limits())
        num, one_s = _played(fleet, seed, Ungated())
        num_sessions, straight_s, turns_s = (
            num_sessions + num,
            straight_s + one_s,
            turns_s + _played(fleet, seed, gated)[1],
        )
        held_s += sum(replica.gate_held_s for replica in gated.view().replicas)
        saved_s += sum(replica.gate_saved_s for replica in gated.view().replicas)
        _played(fleet, seed, observing)
        observing.tell(Tick(), AFTERWARDS)
        foreseen_s += sum(replica.gate_saved_s - replica.gate_held_s for replica in observing.view().replicas)
    return LedgerFigures(num_sessions, straight_s, straight_s - turns_s, held_s, saved_s, foreseen_s)


def _played(fleet: AgentFleet, seed: int, decider: Decider) -> tuple[int, float]:
    """Return the number of sessions, and the seconds that they took in sum."""
    sessions = Simulation(decider, fleet.world).run(fleet.draw(seed)).sessions
    return len(sessions), sum(session.completion_s for session in sessions)
