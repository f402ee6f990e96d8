"""What engines are told about turns under the default policy, and that a shared Dynamo queue acts on it."""

import json
from collections.abc import AsyncIterator
from itertools import pairwise
from typing import Any

import pytest
import pytest_asyncio

from benchmarks.fleet.hints import run_arm
from tests.real.dynamo import Dynamo
from tests.real.sglang import Sglang
from tests.real.vllm import Vllm
from tests.real.wire import Seen, Wire, wire

pytestmark = pytest.mark.asyncio(loop_scope="module")

CHAT = "/v1/chat/completions"
BASH = {"type": "function", "function": {"name": "bash", "parameters": {"type": "object", "properties": {}}}}
NUM_TURNS = 4
MAX_TTFT_RATIO = 0.6
VLLM_PRIORITY, DYNAMO_PRIORITY = "x-vllm-priority", "x-dynamo-request-priority"
DYNAMO_TIER = "x-dynamo-request-strict-priority"


@pytest.fixture(scope="module")
def engines(vllm_process: Vllm, sglang_process: Sglang, dynamo: Dynamo) -> None:
    """All run before the first recording: the start of an engine blocks the loop that records."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def on_vllm(vllm_process: Vllm, engines: None) -> AsyncIterator[Wire]:
    async with wire("vllm", vllm_process.base_url, vllm_process.model) as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def on_sglang(sglang_process: Sglang, engines: None) -> AsyncIterator[Wire]:
    async with wire("sglang", sglang_process.base_url, sglang_process.model) as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def on_dynamo(dynamo: Dynamo, engines: None) -> AsyncIterator[Wire]:
    async with wire("dynamo", dynamo.base_url, dynamo.model) as running:
        yield running


async def session(wire: Wire, family: str, name: str, is_declared: bool) -> list[Seen]:
    """A session of NUM_TURNS turns, each grown from the one before; says at its end that it has ended."""
    system = {"role": "system", "content": f"You are an agent of the {family} family. " * 60}
    messages: list[dict[str, Any]] = [system, {"role": "user", "content": f"Task of {name}."}]
    turns = []
    for remaining in reversed(range(NUM_TURNS)):
        headers = {"X_Turngate_Session": name}
        if is_declared:
            headers["X_Turngate_Remaining_Turns"] = str(remaining)
        if remaining == 0:
            headers["X_Turngate_Final"] = "1"
        body = {"model": wire.model, "messages": messages, "tools": [BASH], "max_tokens": 8}
        seen = await wire.send(CHAT, body, **headers)
        assert seen.status == 200, seen.received
        turns.append(seen)
        answer = json.loads(seen.received)["choices"][0]["message"]
        messages = [*messages, {"role": "assistant", "content": answer["content"] or "-"}]
        messages.append({"role": "user", "content": f"Result {remaining}."})
    return turns


def numbers(turns: list[Seen], header: str) -> list[int]:
    return [int(turn.engine_headers[header]) for turn in turns]


def is_rising(values: list[int]) -> bool:
    return all(before < after for before, after in pairwise(values))


async def test_vllm_is_told_a_lower_number_with_each_turn_that_is_done(on_vllm: Wire) -> None:
    """Lower goes first there. The last turn's urgency is 80 (`policies.slots`), earlier ones are a share of it."""
    turns = await session(on_vllm, "north", "north-declared", is_declared=True)
    assert numbers(turns, VLLM_PRIORITY) == [-20, -27, -40, -80]
    assert len({turn.engine_headers["x-session-id"] for turn in turns}) == 1


async def test_sglang_is_told_few_levels_that_rise_with_the_turns_that_are_done(on_sglang: Wire) -> None:
    turns = await session(on_sglang, "north", "north-declared", is_declared=True)
    told = [json.loads(turn.asked) for turn in turns]
    assert [body["priority"] for body in told] == [2, 2, 3, 3]
    assert len({body["session_id"] for body in told}) == 1


async def test_dynamo_is_told_a_higher_number_with_each_turn_that_is_done(on_dynamo: Wire) -> None:
    """Higher goes first there: tiers, and inside them seconds of queue that are credited."""
    turns = await session(on_dynamo, "north", "north-declared", is_declared=True)
    assert numbers(turns, DYNAMO_PRIORITY) == [15, 20, 30, 60]
    assert numbers(turns, DYNAMO_TIER) == [1, 1, 2, 4]
    assert len({turn.engine_headers["x-dynamo-session-id"] for turn in turns}) == 1


@pytest.mark.parametrize(
    ("engine", "header", "soonest"), [("vllm", VLLM_PRIORITY, -1), ("dynamo", DYNAMO_PRIORITY, 1)]
)
async def test_turns_to_come_are_learned_from_siblings_that_ended(
    request: pytest.FixtureRequest, engine: str, header: str, soonest: int
) -> None:
    running: Wire = request.getfixturevalue(f"on_{engine}")
    first, *_, last = [await session(running, "south", f"south-{n}", is_declared=False) for n in range(4)]
    told = {"first": numbers(first, header), "last": numbers(last, header)}
    urgency = {name: [soonest * value for value in values] for name, values in told.items()}
    assert len(set(urgency["first"])) == 1, "nothing was known of the family yet"
    assert is_rising(urgency["last"])
    assert urgency["last"][-1] > urgency["first"][-1]


async def test_dynamo_is_told_how_long_the_familys_answers_are(on_dynamo: Wire) -> None:
    turns = await session(on_dynamo, "east", "east-1", is_declared=False)
    hints = [json.loads(turn.asked).get("nvext", {}) for turn in turns]
    assert hints == [{}, *[{"agent_hints": {"osl": 8}}] * (NUM_TURNS - 1)]


async def test_hints_cost_no_request(on_vllm: Wire, on_sglang: Wire, on_dynamo: Wire) -> None:
    """Not one call to an engine, the start's probes included, was refused or tried again."""
    for running in (on_vllm, on_sglang, on_dynamo):
        await session(running, "west", "west-1", is_declared=True)
        posts = await running.ended_posts()
        assert {call.status for call in posts} == {200}
        assert await running.gateway.metric("turngate_hints_total", result="sent") > 0
        assert await running.gateway.metric("turngate_hints_total", result="refused") == 0
        assert await running.gateway.metric("turngate_retries_total") == 0


async def test_two_gateways_share_one_dynamo_queue_by_their_hints() -> None:
    found = await run_arm(num_gateways=2, seed=1)
    assert found.num_queued > 0, "the router's queue was empty: nothing could be ordered"
    assert (found.num_failed, found.num_refused_hints) == (0, 0)
    assert found.ratio <= MAX_TTFT_RATIO, found
