"""The law of a reload: whichever way a request takes, one under way ends as it began, and the next one follows."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import pytest
from openai.types import BatchRequestCounts

from gateway.batches import AGENT_RUNS
from gateway.cluster.limit_sync import SharedCounters
from gateway.config.live_settings import LINE_DEADLINE_S
from gateway.core.transport import Timeouts
from gateway.reload import AT_RUN_TIME
from gateway.request.stored_responses import Home
from tests.path.batches import create, over
from tests.path.conftest import Clock
from tests.path.reloaded import CHAT, NEW, OLD, OTHER, WAYS, Case, Json, Seen, Stage, Staging
from tests.path.secured import keys

NO_CHAT = dict.fromkeys(("list", "embedding"), "it is no chat")
NOT_STREAMED = dict.fromkeys(("line", "embedding"), "it is not streamed")
SAYS_NOTHING = NOT_STREAMED | {"list": "it says nothing before its first answer"}
PATIENT = {"line": "it waits for hours, whatever is configured"}
UNQUEUED = {"embedding": "it is no turn"}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {}}}


def one_slot(**policy: float) -> Json:
    return {"policy": {"name": "fifo", "slots_per_replica": 1} | policy, "stream": {"silent_queue_s": 5}}


STREAM = {"stream": True}
A_KEEP_ALIVE = b'"delta":{},"finish_reason":null'


def status(seen: Seen) -> int:
    return seen.status


def models(seen: Seen) -> set[str]:
    return seen.models


def num_keep_alives(seen: Seen) -> int:
    """2: more than one."""
    return min(2, seen.body.count(A_KEEP_ALIVE))


def is_refused_for_its_wait(seen: Seen) -> bool:
    return "rejected_wait" in seen.outcomes


def was_at_the_first_engine(seen: Seen) -> tuple[int, bool]:
    return seen.status, "e1" in seen.engines


def attempts(seen: Seen) -> set[int]:
    """Of each model call that failed."""
    return {row.get("attempts", len(seen.calls)) for row in seen.rows if row["outcome"] == "engine_failed"}


def is_logged(seen: Seen) -> bool:
    return bool(seen.rows)


async def begins_with_tools(stage: Stage) -> None:
    """So that a request of this session that has none is a side request."""
    asked = stage.body(OTHER, tools=[TOOL])
    async with stage.door.client.post(stage.door.url(CHAT), json=asked, headers=stage.headers(OTHER)) as response:
        assert response.status == 200


async def takes_the_slot(stage: Stage) -> None:
    stage.may_answer[OTHER] = asyncio.Event()
    num_calls = len(stage.calls(OTHER))
    await stage.begin(OTHER)
    await stage.door.until(lambda: len(stage.calls(OTHER)) > num_calls)


async def waits_and_gets_the_slot(stage: Stage) -> None:
    await stage.door.until(lambda: stage.num_waiting > 0)
    await stage.door.clock.passes(5)
    stage.may_answer[OTHER].set()


async def is_awaited(stage: Stage) -> None:
    for _ in range(100):
        await asyncio.sleep(0)


async def is_awaited_for_some_seconds(stage: Stage) -> None:
    await stage.door.clock.passes(10)


def hosts(number: int, entries: list[Json], folder: Path) -> Json:
    file = folder / f"hosts{number}"
    file.write_text(entries[number - 1]["url"])
    return {"engines": [], "hosts_file": str(file)}


CASES = {
    "engines": Case(
        lambda entries, _: {"engines": entries[:1]},
        lambda entries, _: {"engines": entries[1:]},
        was_at_the_first_engine,
        (200, True),
        (200, False),
        engines=("m", "m"),
        fails="never",
        holds_upload=False,
    ),
    "hosts_file": Case(
        lambda entries, folder: hosts(1, entries, folder),
        lambda entries, folder: hosts(2, entries, folder),
        was_at_the_first_engine,
        (200, True),
        (200, False),
        engines=("m", "m"),
        fails="never",
        holds_upload=False,
    ),
    "keys": Case({"keys": keys("a")}, {"keys": keys("a", models=["n"])}, status, 200, 403, tenant="a"),
    "limits.attempts": Case(
        {"limits": {"attempts": 2}, "probing": {"breaker_failures": 1_000}},
        {"limits": {"attempts": 1}},
        attempts,
        {2},
        {1},
        engines=("m", "m"),
        fails="always",
        is_endless=frozenset((OLD, NEW)),
    ),
    "limits.body_bytes": Case(
        {"limits": {"body_bytes": 4_000}},
        {"limits": {"body_bytes": 1_000}},
        status,
        200,
        413,
        ask={"stop": ["x" * 2_000]},
    ),
    "limits.messages": Case(
        {"limits": {"messages": 3}},
        {"limits": {"messages": 2}},
        status,
        200,
        400,
        unconcerned=NO_CHAT,
        ask={"messages": [{"role": "user", "content": "hi"}] * 3},
    ),
    "limits.tools": Case(
        {"limits": {"tools": 3}},
        {"limits": {"tools": 2}},
        status,
        200,
        400,
        unconcerned=NO_CHAT,
        ask={"tools": [TOOL] * 3},
    ),
    "limits.values": Case(
        {"limits": {"values": 1_000}},
        {"limits": {"values": 300}},
        status,
        200,
        400,
        ask={"stop": ["x"] * 500},
    ),
    "logging.level": Case(
        {"logging": {"level": "info"}}, {"logging": {"level": "warning"}}, is_logged, False, False
    ),
    "models.aliases": Case(
        {"models": {"aliases": {"nick": "m"}}},
        {"models": {"aliases": {"nick": "n"}}},
        models,
        {"m"},
        {"n"},
        ask={"model": "nick"},
    ),
    "models.answer_any_model": Case(
        {"models": {"answer_any_model": True}},
        {"models": {"answer_any_model": False}},
        status,
        200,
        404,
        ask={"model": "whatever"},
        engines=("m", "m"),
    ),
    "models.side_model": Case(
        {"models": {"side_model": "m"}},
        {"models": {"side_model": "n"}},
        models,
        {"m"},
        {"n"},
        unconcerned=NO_CHAT | {"line": "a title that a line asks for is what its batch is about"},
        headers={"X-Session-Affinity": "ses", "X-Session-Id": "ses"},
        before=begins_with_tools,
    ),
    "policy.max_wait_plain_s": Case(
        one_slot(max_wait_plain_s=1_000),
        {"policy": {"max_wait_plain_s": 1}},
        is_refused_for_its_wait,
        False,
        True,
        unconcerned=PATIENT | UNQUEUED,
        engines=("m",),
        fails="never",
        is_endless=frozenset((NEW,)),
        before=takes_the_slot,
        during=waits_and_gets_the_slot,
    ),
    "policy.max_wait_s": Case(
        one_slot(max_wait_s=1_000),
        {"policy": {"max_wait_s": 1}},
        is_refused_for_its_wait,
        False,
        True,
        unconcerned=NOT_STREAMED,
        ask=STREAM,
        engines=("m",),
        fails="never",
        is_endless=frozenset((NEW,)),
        before=takes_the_slot,
        during=waits_and_gets_the_slot,
    ),
    "stream.keep_alive_s": Case(
        {"stream": {"silent_queue_s": 0, "keep_alive_s": 1_000}},
        {"stream": {"silent_queue_s": 0, "keep_alive_s": 1}},
        num_keep_alives,
        1,
        2,
        unconcerned=SAYS_NOTHING,
        ask=STREAM,
        fails="never",
        during=is_awaited_for_some_seconds,
    ),
    "stream.silent_queue_s": Case(
        {"stream": {"silent_queue_s": 1_000}},
        {"stream": {"silent_queue_s": 0}},
        num_keep_alives,
        0,
        1,
        unconcerned=SAYS_NOTHING,
        ask=STREAM,
        fails="never",
        during=is_awaited,
    ),
    "timeouts.connect_s": Case(
        {"timeouts": {"connect_s": 11}},
        {"timeouts": {"connect_s": 12}},
        lambda seen: {each.connect_s for each in seen.to_engines},
        {11},
        {12},
    ),
    "timeouts.first_byte_s": Case(
        {"timeouts": {"first_byte_s": 101}},
        {"timeouts": {"first_byte_s": 102}},
        lambda seen: {each.first_byte_s for each in seen.to_engines},
        {101},
        {102},
        unconcerned=PATIENT,
    ),
    "timeouts.idle_s": Case(
        {"timeouts": {"idle_s": 101}},
        {"timeouts": {"idle_s": 102}},
        lambda seen: {each.idle_s for each in (*seen.to_engines, *seen.to_members)},
        {101},
        {102},
    ),
}
OTHER_WAY_ROUND = {
    "limits.body_bytes": Case(
        {"limits": {"body_bytes": 1_000}},
        {"limits": {"body_bytes": 4_000}},
        status,
        413,
        200,
        unconcerned={"line": "its file is refused before"},
        ask={"stop": ["x" * 2_000]},
    ),
    "logging.level": Case(
        {"logging": {"level": "warning"}}, {"logging": {"level": "info"}}, is_logged, True, True
    ),
}


@pytest.fixture
async def staged(clock: Clock, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> AsyncIterator[Staging]:
    async with AsyncExitStack() as running:
        yield Staging(running, clock, tmp_path, caplog)


def test_every_key_that_can_change_has_a_case() -> None:
    assert CASES.keys() == AT_RUN_TIME


@pytest.mark.parametrize(
    ("key", "way", "case"),
    [
        pytest.param(key, way, case, id=f"{key} {way}{more}")
        for cases, more in ((CASES, ""), (OTHER_WAY_ROUND, " back"))
        for key, case in cases.items()
        for way in WAYS
        if way not in case.unconcerned
    ],
)
async def test_one_under_way_ends_as_it_began_and_the_next_one_follows(
    staged: Staging, key: str, way: str, case: Case
) -> None:
    old, new = await (await staged(case, way)).played()
    assert (case.effect(old), case.effect(new)) == (case.was, case.becomes)


async def test_lines_wait_for_hours_whatever_the_new_configuration_says(staged: Staging) -> None:
    stage = await staged(replace(CASES["policy.max_wait_plain_s"], before=None), "line")
    brief = {"timeouts": {"connect_s": 3, "first_byte_s": 1, "idle_s": 4}, "stream": {"silent_queue_s": 5}}
    await stage.reload(policy={"max_wait_plain_s": 1}, **brief)
    await takes_the_slot(stage)
    batch = await stage.in_progress(NEW)
    await waits_and_gets_the_slot(stage)
    await stage.door.until(lambda: bool(stage.calls(NEW)))
    await stage.door.clock.passes(600)
    stage.may_answer[NEW].set()
    assert (await over(stage.sdk, batch)).request_counts == BatchRequestCounts(completed=1, failed=0, total=1)
    assert [one.timeouts for one in stage.sent if NEW.encode() in one.body] == [Timeouts(3, LINE_DEADLINE_S, 4)]


async def test_a_file_is_checked_against_the_limit_and_the_names_of_now(staged: Staging) -> None:
    old = {"limits": {"body_bytes": 1_000}, "models": {"answer_any_model": False}}
    case = Case(old, {}, status, 0, 0, ask={"stop": ["x" * 2_000], "model": "nick"}, fails="never")
    stage = await staged(case, "line")
    stage.may_answer[OLD].set()
    assert (await stage.in_progress(OLD)).status == "failed"
    await stage.reload(limits={"body_bytes": 4_000})
    failed = await stage.in_progress(OLD)
    assert failed.errors is not None
    assert [fault.code for fault in failed.errors.data or ()] == ["model_not_found"]
    await stage.reload(models={"aliases": {"nick": "m"}, "answer_any_model": False})
    assert (await over(stage.sdk, await stage.in_progress(OLD))).status == "completed"


async def test_the_next_model_call_of_an_agent_run_follows(staged: Staging) -> None:
    old, new = ({"models": {"aliases": {"nick": model}}} for model in "mn")
    stage = await staged(Case(old, new, models, 0, 0, fails="never"), "line")
    body = {"task": OLD, "model": "nick", "schema": {"type": "integer"}}
    row = {"custom_id": "run", "method": "POST", "url": AGENT_RUNS, "body": body}
    batch = await create(stage.sdk, [row], endpoint=AGENT_RUNS)
    await stage.has_come(OLD)
    await stage.reload(**new)
    stage.may_answer[OLD].set()
    await over(stage.sdk, batch)
    assert stage.rows()[0]["engine_model"] == "m"
    assert {row["engine_model"] for row in stage.rows()[1:]} == {"n"}


@pytest.mark.parametrize("path", ["/v1/files", "/v1/responses/resp_1/cancel"])
async def test_what_belongs_to_another_member_and_is_too_long_is_refused(staged: Staging, path: str) -> None:
    case = Case({"batches": {"file_bytes": 1_000}}, {}, status, 0, 0)
    stage = await staged(case, "home")
    first, second = stage.gateways
    await stage.reload(limits={"body_bytes": 2**20})
    first.app.parts.stored.homes.remember("default", "resp_1", Home("e1", "resp_1"))
    async with second.client.post(second.url(path), data=BytesIO(bytes(2**21))) as response:
        assert response.status == 413
        assert (await response.json())["error"]["type"] == "invalid_request_error"


async def test_members_share_a_limit_as_it_is_now(staged: Staging) -> None:
    stage = await staged(Case({"keys": keys("a", limits={"requests": 5})}, {}, status, 0, 0), "home")
    await stage.reload(keys=keys("a", limits={"requests": 9}))
    counters = [gateway.app.parts.handler.limiter.counters for gateway in stage.gateways]
    assert [each.limits for each in counters if isinstance(each, SharedCounters)] == [{"key-a/requests": 9}] * 2


@pytest.mark.parametrize("way", ["home", "forwarded"])
async def test_a_member_does_not_take_a_page_of_the_web_for_its_visitor(staged: Staging, way: str) -> None:
    headers = {"Origin": "https://evil.example/", "X-Turngate-Session": "s"}
    stage = await staged(Case({}, {}, status, 0, 0, headers=headers), way)
    answer = await (await stage.begin(OTHER))
    assert (answer.status, b"foreign_origin" in answer.body) == (403, True)
    assert stage.calls(OTHER) == []
