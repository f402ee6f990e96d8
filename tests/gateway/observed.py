"""A fleet and an exchange to observe."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

from gateway.core.errors import Outcome
from gateway.core.transport import Request
from gateway.dialects.base import Dialect
from gateway.exchange import Exchange, Recognition, Timings
from gateway.telemetry.observer import Observer
from gateway.telemetry.receipts import Receipts
from policies.types import Dispatch, Hold, Reason, SessionState, TurnKind, Usage
from policies.view import FleetView, ReplicaView


@dataclass
class Asked:
    headers: dict[str, str]


@dataclass
class Named:
    name: str


@dataclass
class Engine:
    name: str
    is_up: bool


FLEET = FleetView(
    sessions={SessionState.RUNNING: 3},
    num_families=2,
    waiting={Hold.RESIDENCY: 4},
    replicas=[
        ReplicaView("a", True, 8, 3, 600, 1000, 850),
        ReplicaView("b", False, 8, 0, 0, None, None),
    ],
)


def observer() -> Observer:
    engines = [Engine("a", True), Engine("b", False)]
    return Observer(lambda: 100.0, lambda: FLEET, lambda: engines, Receipts(600, 10, 2**20))


def exchange(**changes: Any) -> Exchange:
    """A second turn: queued 2 s, 0.5 s to the first byte, 10 ms of it in the gateway."""
    made = Exchange(
        id="x1",
        request=cast(Request, Asked({"x-request-id": "client-id"})),
        dialect=cast(Dialect, Named("chat")),
        tenant="a",
        timings=Timings(10.0, 10.004, 12.004, 12.01, 12.5, 13.0),
        asked_model="gpt-5",
        recognition=Recognition("s1", "f1", None, 1, TurnKind.AGENT, "chain", 0.9, False, (), 0),
        dispatch=Dispatch("t1", "a", Reason.RESIDENT, 900),
        engine_kind="vllm",
        outcome=Outcome.ANSWERED,
    )
    made.reply.usage = Usage(1000, 800, 50)
    for name, value in changes.items():
        setattr(made, name, value)
    return made
