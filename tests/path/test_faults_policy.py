"""A policy of the operator that raises: the request in question ends with 500, and nothing of it is held."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from policies.types import SessionState
from tests.path.conftest import Gateway, Start
from tests.path.fake_engine import FakeEngine
from tests.path.faults import GATEWAY, fault, outcomes
from tests.path.test_waiting_rules import Held, ask
from tests.policies.test_scheduler_errors import Failing

ROOM_TOKENS, TASK_CHARS = 1_600, 4_000


class FailsWhenTold(Failing):
    """Raises as often as `times` says, from when a test says so."""

    times = 0

    def __init__(self, name: str) -> None:
        super().__init__((name,), self._is_next)

    @classmethod
    def _is_next(cls) -> bool:
        cls.times -= 1
        return cls.times >= 0


def named(function: str) -> dict[str, Any]:
    policy = f"{FailsWhenTold.__module__}:{FailsWhenTold.__name__}"
    return {"name": policy, "options": {"name": function}, "slots_per_replica": 1}


def held(gateway: Gateway) -> tuple[int, int, int, int]:
    """Slots, residents, turns that wait, and sessions with a turn."""
    view = gateway.app.parts.gate.view()
    [replica] = view.replicas
    num_busy = sum(num for state, num in view.sessions.items() if state is not SessionState.IDLE)
    return replica.slots_used, replica.num_residents, sum(view.waiting.values()), num_busy


@fault(
    GATEWAY,
    "its policy raises an error on a turn",
    "500; its slot, its room and its session are free, and those that wait go on",
    outcomes("gateway_error"),
)
@pytest.mark.parametrize("function", ["rank", "forecast"])
async def test_a_request_whose_decision_raises_gets_500_and_holds_nothing(
    start: Start, engine: FakeEngine, function: str
) -> None:
    engine.capacity_tokens = ROOM_TOKENS
    gateway = await start(engine, policy=named(function))
    FailsWhenTold.times = 1
    assert (await gateway.ask(ask("first", TASK_CHARS))).status == 500
    assert held(gateway) == (0, 0, 0, 0)
    assert not any(entry.open for entry in gateway.app.parts.handler.turns.sessions.of_tenant(None))
    assert not engine.calls
    assert (await gateway.ask(ask("second", TASK_CHARS))).status == 200


async def test_a_waiting_request_whose_decision_raises_gets_500_and_the_others_their_answers(
    start: Start, engine: FakeEngine
) -> None:
    engine.capacity_tokens, waiting = ROOM_TOKENS, Held()
    engine.plays = waiting.plays(1)
    gateway = await start(engine, policy=named("fits"))
    first = gateway.begin(ask("first", TASK_CHARS), X_Turngate_Final="1")
    await engine.has_seen(1)
    others = []
    for number, name in enumerate(("second", "third"), 1):
        others.append(gateway.begin(ask(name, TASK_CHARS), X_Turngate_Final="1"))
        await gateway.until(lambda number=number: gateway.num_waiting == number)  # type: ignore[misc]
    FailsWhenTold.times = 1
    waiting.gates[0].set()
    assert (await first).status == 200
    assert sorted([(await other).status for other in others]) == [200, 500]
    await gateway.until(lambda: held(gateway) == (0, 0, 0, 0))


async def test_an_error_behind_an_answer_spoils_neither_it_nor_those_that_wait_for_its_slot(
    start: Start, engine: FakeEngine, caplog: pytest.LogCaptureFixture
) -> None:
    waiting = Held()
    engine.plays = waiting.plays(1)
    gateway = await start(engine, policy=named("lease_s"))
    first = gateway.begin(ask("first"))
    await engine.has_seen(1)
    second = gateway.begin(ask("second"))
    await gateway.until(lambda: gateway.num_waiting == 1)
    FailsWhenTold.times = 1
    waiting.gates[0].set()
    assert [answer.status for answer in await asyncio.gather(first, second)] == [200, 200]
    await gateway.until(lambda: held(gateway)[0] == held(gateway)[3] == 0)
    assert "a decision of the Scheduler failed" in caplog.messages
