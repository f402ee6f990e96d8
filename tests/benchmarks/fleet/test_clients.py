"""Laws of the clients that do more than an unmodified one."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress

import pytest

from benchmarks.fleet.clients import RetryingClient, SessionCapClient, SlotsClient
from benchmarks.simulation.workloads import AgentRun
from gateway.cli.demo_fleet import CallRefused, TurnRecord
from gateway.core.transport import UpstreamCut, UpstreamRefused
from tests.deadline import DEADLINE_S


def session(number: int, parent_id: str | None = None) -> AgentRun:
    return AgentRun(f"s{number}", "family", 0.0, (), parent_id=parent_id)


async def test_session_cap_lets_the_next_session_in_when_one_has_left() -> None:
    client = SessionCapClient(1)
    async with client.place(session(0), 0):
        pass
    waiting = asyncio.ensure_future(client.place(session(1), 0).__aenter__())
    await asyncio.sleep(0)
    assert not waiting.done()
    await client.left(session(0))
    await asyncio.wait_for(waiting, DEADLINE_S)


async def test_sub_agent_runs_under_the_place_of_its_parent() -> None:
    client = SessionCapClient(1)
    async with client.place(session(0), 0):
        pass
    async with asyncio.timeout(DEADLINE_S), client.place(session(1, parent_id="s0"), 0):
        await client.left(session(1, parent_id="s0"))
    waiting = asyncio.ensure_future(client.place(session(2), 0).__aenter__())
    await asyncio.sleep(0)
    assert not waiting.done()
    waiting.cancel()


async def test_free_slot_goes_to_the_session_with_most_turns_done() -> None:
    client, order = SlotsClient(1), []

    async def turn(number: int, index: int) -> None:
        async with client.place(session(number), index):
            order.append(number)

    async with client.place(session(0), 0):
        waiting = [asyncio.ensure_future(turn(number, index)) for number, index in ((1, 0), (2, 1), (3, 1))]
        await asyncio.sleep(0)
    await asyncio.wait_for(asyncio.gather(*waiting), DEADLINE_S)
    assert order == [2, 3, 1]


@pytest.mark.parametrize(
    ("failures", "tries"),
    [
        pytest.param([], 1, id="an answer"),
        pytest.param([UpstreamRefused("gone"), UpstreamCut("cut")], 3, id="connections that fail and break"),
        pytest.param([CallRefused(503, "stopping", 3.0)], 2, id="a refusal for now"),
        pytest.param([CallRefused(400, "wrong", None)], 1, id="a refusal for good"),
        pytest.param([UpstreamRefused("gone")] * 20, RetryingClient.TRIES + 1, id="a gateway that stays away"),
    ],
)
async def test_a_retrying_client_says_how_often_it_asked_and_waits_as_it_is_told(
    failures: list[Exception], tries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, pauses_s = list[str](), list[float]()

    async def sleep(seconds: float) -> None:
        pauses_s.append(seconds)

    async def ask(headers: Sequence[tuple[str, str]]) -> str:
        seen.append(dict(headers)["x-stainless-retry-count"])
        if failures:
            raise failures.pop(0)
        return "answer"

    monkeypatch.setattr(asyncio, "sleep", sleep)
    turn = TurnRecord(0, 1.0, first_token_at=2.0)
    with suppress(UpstreamRefused, CallRefused):
        assert await RetryingClient().call(ask, turn) == "answer"
    assert seen == list(map(str, range(tries)))
    stated = tries == 2
    assert all(pause == 3.0 if stated else 0.37 < pause <= 8.0 for pause in pauses_s)
    assert turn.first_token_at == (2.0 if tries == 1 else 0.0)
