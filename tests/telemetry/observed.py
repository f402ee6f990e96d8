"""A fleet and an exchange to observe."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

from gateway.access.keys import Caller
from gateway.core.errors import Failure, Outcome
from gateway.core.transport import Request
from gateway.dialects.base import Dialect
from gateway.exchange import EngineAttempt, Exchange, Payload, Recognition, RequestEnd, Timings
from gateway.telemetry.observer import Observer
from gateway.telemetry.receipts import Receipts
from policies.fleet import FleetView, ReplicaView
from policies.types import Dispatch, Hold, Reason, SessionState, TurnKind, Usage


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


@dataclass
class Engines:
    engines: list[Engine]


FLEET = FleetView(
    sessions={SessionState.RUNNING: 3},
    num_families=2,
    waiting={Hold.RESIDENCY: 4},
    replicas=[
        ReplicaView("a", True, 8, 3, 600, 1000, 850, stated_tokens=1100, gate_held_s=35.0, gate_saved_s=412.0),
        ReplicaView("b", False, 8, 0, 0, None, None),
    ],
)


DISPATCH = Dispatch("t1", "a", Reason.RESIDENT, 900)


def observer() -> Observer:
    made = Observer(lambda: 100.0, Receipts(600, 10, 2**20))
    made.metrics.show_fleet(lambda: FLEET, Engines([Engine("a", True), Engine("b", False)]))
    return made


def exchange(
    *,
    outcome: Outcome | None = Outcome.ANSWERED,
    failure: Failure | None = None,
    tenant: str = "a",
    key_id: str = "",
    model: str = "gpt-5",
    payload: Payload | None = None,
    dispatch: Dispatch | None = DISPATCH,
    **changes: Any,
) -> Exchange:
    """A second turn: queued 2 s, 0.5 s to the first byte, 10 ms of it in the gateway. Outcome None: it runs."""
    made = Exchange(
        id="x1",
        request=cast(Request, Asked({"x-request-id": "client-id"})),
        dialect=cast(Dialect, Named("chat")),
        timings=Timings(10.0, 10.004, 12.004, 12.01, 12.5, 13.0),
        payload=payload or Payload(requested_model=model, engine_model="m", wants_stream=True),
        caller=Caller(tenant, may_prioritise=False, id=key_id),
        recognition=Recognition("s1", "f1", None, 1, TurnKind.AGENT, "chain", 0.9, False, (), 0),
        attempt=EngineAttempt("vllm", 1, dispatch),
        end=RequestEnd(outcome, failure) if outcome is not None else None,
    )
    made.reply.usage = Usage(1000, 800, 50)
    for name, value in changes.items():
        setattr(made, name, value)
    return made
