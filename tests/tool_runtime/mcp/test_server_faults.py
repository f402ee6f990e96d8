"""What becomes of calls when a real server crashes, is slow, or breaks off."""

from __future__ import annotations

import asyncio
import os
import select
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.deadline import DEADLINE_S
from tests.tool_runtime.mcp.joined import Http, joined, joined_by, stdio
from tool_runtime.mcp import server
from tool_runtime.mcp.server import McpOptions, McpServer, McpServers
from tool_runtime.types import Status


@pytest.fixture
async def http() -> AsyncIterator[Http]:
    program = Http()
    await program.start()
    yield program
    await program.stop()


@pytest.mark.parametrize("kind", ["stdio", "http"])
async def test_a_message_that_is_too_long_costs_that_call_only(kind: str) -> None:
    async with joined_by(kind, max_message_bytes=300_000) as it:
        result = await it.call("it_big", num_bytes=1_000_000)
        assert (result.status, "was lost during the call" in result.text) == (Status.ERROR, True)
        assert (await it.call("it_add", a=1, b=2)).text == "3"


async def test_a_crash_is_told_as_it_is_and_the_server_is_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "FIRST_PAUSE_S", 600.0)  # longer than the test
    async with joined(stdio(), stdio("other")) as it:
        hanging = asyncio.create_task(it.call("other_hang", "bob"))
        await it.call("other_wait_until", "bob", what="begun")
        crashed = await it.call("it_crash")
        assert (crashed.status, "outcome of this call is unknown" in crashed.text) == (Status.UNKNOWN, True)
        assert "the last words" not in crashed.text
        assert it.problem == "it ended with status 3: the last words"
        assert (await it.call("it_add", a=1, b=2)).text == "3", (
            "the first start comes at once, and calls wait for it"
        )
        reading = await it.call("it_crash_reading")
        assert reading.status is Status.ERROR
        again = await it.call("it_add", a=1, b=3)
        assert (again.status, "is not running" in again.text) == (Status.ERROR, True), (
            "the next comes after a pause"
        )
        assert not hanging.done(), "another server, and another session, know nothing of it"
        assert (await it.call("other_add", "bob", a=1, b=2)).text == "3"
        assert [state.num_starts for state in it.servers.states] == [2, 1]
        assert "it_add" in it.runtime.tools, "prompts stay as they are"
        hanging.cancel()


async def test_a_server_over_http_that_crashes_is_reached_again(http: Http) -> None:
    async with joined(http.settings()) as it:
        crashed = await it.call("it_crash")
        assert crashed.status is Status.UNKNOWN
        await http.stop()
        down = await it.call("it_add", a=1, b=2)
        assert (down.status, "the outcome" in down.text) == (Status.ERROR, False), "it was not sent"
        await http.start()
        while (await it.call("it_add", a=1, b=2)).status is not Status.OK:
            await asyncio.sleep(0.1)


async def test_the_end_of_a_server_ends_its_calls() -> None:
    async with joined(stdio()) as it:
        tasks = [asyncio.create_task(it.call(f"it_{name}")) for name in ("hang", "hang_and_write")]
        await it.call("it_wait_until", what="begun")
        await it.servers.close()
        results = await asyncio.gather(*tasks)
        assert [result.status for result in results] == [Status.ERROR, Status.UNKNOWN]
        assert (await it.call("it_add", a=1, b=2)).status is Status.ERROR


async def test_a_slow_server_keeps_nobody_waiting_but_its_own_calls() -> None:
    async with joined(stdio("slow", "--slow-s", "1"), stdio("quick"), wait_s=0.0) as it:
        assert not it.runtime.tools
        while "quick_add" not in it.runtime.tools:
            await asyncio.wait_for(it.has_changed.wait(), DEADLINE_S)
            it.has_changed.clear()
        assert (await it.call("quick_add", a=1, b=2)).text == "3"


async def test_a_server_that_does_not_come_up_is_given_up_in_time(tmp_path: Path) -> None:
    child = tmp_path / "pid"
    async with joined(
        stdio("never", "--slow-s", "600", "--child", str(child), start_timeout_s=0.5), stdio("quick")
    ) as it:
        never, quick = it.servers.states
        assert (never.is_up, never.problem) == (False, "it gave no list of tools within 0.5 s")
        assert (quick.is_up, (await it.call("quick_add", a=1, b=2)).text) == (True, "3")


async def test_nothing_of_a_server_outlives_its_end(tmp_path: Path) -> None:
    file = tmp_path / "pid"
    async with joined(stdio("it", "--child", str(file))) as it:
        assert it.servers.states[0].is_up
        child = os.pidfd_open(int(file.read_text()))
        watch = select.poll()
        watch.register(child, select.POLLIN)
        assert not watch.poll(0)
    assert watch.poll(DEADLINE_S * 1000)
    os.close(child)


async def test_a_server_gets_the_environment_that_it_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURNGATE_SECRET", "secret")
    async with joined(stdio(env={"TOKEN": "token"})) as it:
        names = (await it.call("it_environment")).text.split()
    assert ("TOKEN" in names, "PATH" in names, "TURNGATE_SECRET" in names) == (True, True, False)


@pytest.mark.parametrize("command", ["/bin/false", "/no/such/program"])
async def test_a_server_that_cannot_run_is_tried_after_growing_pauses(command: str) -> None:
    pauses: list[float] = []
    enough = asyncio.Event()

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 9:
            enough.set()
            await asyncio.Event().wait()

    server = McpServer(McpOptions(name="it", command=command), lambda source, tools: None, sleep=sleep)
    server.start()
    await asyncio.wait_for(enough.wait(), DEADLINE_S)
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert server.state.problem in (
        "it ended with status 1",
        "its command, or the cwd of its options, is not there",
    )
    await asyncio.wait_for(server.close(), DEADLINE_S)


async def test_names_that_are_taken_are_told_and_nothing_else_is_lost(http: Http) -> None:
    async with joined(stdio("one", prefix="x_"), http.settings(prefix="x_")) as it:
        problems = sorted(state.problem for state in it.servers.states)
        assert problems[0] == ""
        assert problems[1].startswith("its tools are not offered: two tools are named 'x_add'")
        assert (await it.call("x_add", a=1, b=2)).text == "3"


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ([{}], "name is missing"),
        ([{"name": "a b", "command": "x"}], "letters, digits"),
        ([{"name": "a"}], "either a command or a url"),
        ([{"name": "a", "command": "x", "url": "y"}], "either a command or a url"),
        ([{"name": "a", "command": "x", "effects": {"t": "safe"}}], "no effect 'safe'"),
        ([{"name": "a", "comand": "x"}], "did you mean command"),
        ([{"name": "a", "command": "x"}, {"name": "a", "url": "y"}], "two MCP servers are named a"),
    ],
)
def test_settings_that_are_wrong_are_told(settings: list[dict[str, Any]], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        McpServers(settings, lambda source, tools: None)
