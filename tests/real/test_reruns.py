"""Each client runs the same task several times in one gateway: sessions of equal content, as many as runs.

client -> shim that may hide who it is -> gateway -> scripted engine
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.path.fake_engine import FakeEngine
from tests.real.agents import AgentRun
from tests.real.clients import CLIENTS, VERDICT, Client
from tests.real.gateway import Gateway, Json, gateway
from tests.real.rewrites import anonymous
from tests.real.scripted_engine import scripted_engine
from tests.real.shim import Rewrite, Shim, shim

NUM_RUNS = 2
NUM_SIBLINGS = 3
THINKS_S = 0.3
KEEP_ALIVES = {"stream__silent_queue_s": 0.05, "stream__keep_alive_s": 0.05}
"""So every streamed answer begins with some, which the client has to read."""
KEEP_ALIVE_MARKS = (b'"turngate-', b'"resp_tg', b"event: ping")
"""Ids that the gateway gives, and the event that no scripted engine sends."""
CASES = [
    pytest.param(client, is_hidden, id=f"{client.name} hidden" if is_hidden else client.name)
    for client in CLIENTS
    for is_hidden in ((False, True) if client.tells_session else (False,))
]


WITHOUT_DIRECTORY = [pytest.param(client, id=client.name) for client in CLIENTS if not client.names_directory]


@asynccontextmanager
async def line(client: Client, *rewrites: Rewrite) -> AsyncIterator[tuple[Shim, Gateway, FakeEngine]]:
    async with (
        scripted_engine(client.script, THINKS_S) as engine,
        gateway(f"vllm://127.0.0.1:{engine.port}", probing__hints=False, **KEEP_ALIVES) as front,
        shim(front.base_url, *rewrites) as outside,
    ):
        yield outside, front, engine


@pytest.mark.parametrize(("client", "is_hidden"), CASES)
async def test_a_task_that_is_run_again_is_a_session_again(
    client: Client, is_hidden: bool, tmp_path: Path
) -> None:
    """In the same directory, so that nothing in its prompts is new. A title that comes before all else is not
    known to be a side request where nothing says whose it is."""
    runs: list[list[Json]] = []
    async with line(client, *([anonymous()] if is_hidden else [])) as (outside, front, engine):
        for _ in range(NUM_RUNS):
            num_before = len(front.receipts())
            assert_done(await client.start(outside.base_url, tmp_path / "agent"))
            await front.until_idle()
            runs.append(front.receipts()[num_before:])
        rows = await front.sessions()
    assert_kept_alive(outside, client)
    num_calls = client.num_turns + client.num_side_requests
    assert [[r["outcome"] for r in receipts] for receipts in runs] == [["answered"] * num_calls] * NUM_RUNS
    assert len(engine.calls) == NUM_RUNS * num_calls
    assert [(row["kind"], row["turns"]) for row in rows] == [("agent", client.num_turns)] * NUM_RUNS, said(runs)
    assert [{r["session"] for r in receipts} for receipts in runs] == [{row["session"]} for row in rows], said(
        runs
    )
    num_sides = [row["side_requests"] for row in rows]
    if is_hidden and client.num_side_requests:
        num_sides[0] += 1
    assert num_sides == [client.num_side_requests] * NUM_RUNS, said(runs)


@pytest.mark.parametrize("client", WITHOUT_DIRECTORY)
async def test_siblings_at_once_are_as_many_sessions(client: Client, tmp_path: Path) -> None:
    """What they send is the same, so that any of them may be any session."""
    async with line(client) as (outside, front, _):
        starts = [client.start(outside.base_url, tmp_path / f"agent-{n}") for n in range(NUM_SIBLINGS)]
        for run in await asyncio.gather(*starts):
            assert_done(run)
        await front.until_idle()
        rows, receipts = await front.sessions(), front.receipts()
    assert {r["outcome"] for r in receipts} == {"answered"}
    found = [(row["kind"], row["turns"], row["side_requests"]) for row in rows]
    assert found == [("agent", client.num_turns, client.num_side_requests)] * NUM_SIBLINGS, said([receipts])


def assert_done(run: AgentRun) -> None:
    assert run.exit_code == 0, run.stderr
    assert VERDICT in run.stdout, run.stdout + run.stderr


def assert_kept_alive(link: Shim, client: Client) -> None:
    answers = link.to("/v1/")
    is_streamed = [json.loads(exchange.received.body).get("stream", False) for exchange in answers]
    is_kept = [any(mark in exchange.response_body for mark in KEEP_ALIVE_MARKS) for exchange in answers]
    assert is_streamed == is_kept == [client.streams] * len(answers)


def said(runs: list[list[Json]]) -> str:
    """By the receipts of each call."""
    lines = [f"run {n}: {r['session']} {r['kind']} {r.get('notes')}" for n, rs in enumerate(runs) for r in rs]
    return "\n".join(lines)
