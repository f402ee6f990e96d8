"""Who may call which tool of ours, who is asked first, and what is told of it."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from aiohttp import web

from tests.path.conftest import Start
from tests.path.fake_engine import FakeEngine
from tests.path.faults import metrics_of
from tests.path.toolkit import Bench, Says, says

ASK: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "find it"}]}
FIRST = Says("I look.", (("call_search_1", "search", '{"q": "secret plan"}'),))
LAST = Says("It is there.", id="chatcmpl-2")


@pytest.fixture
def bench() -> Bench:
    return Bench()


class Approver:
    """A callback that answers as the test says."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.answer: Any = {"approved": True}
        self.status = 200

    async def handle(self, request: web.Request) -> web.Response:
        self.asked.append(await request.json())
        return web.json_response(self.answer, status=self.status)


@pytest.fixture
async def approver() -> AsyncIterator[tuple[Approver, str]]:
    approver, app = Approver(), web.Application()
    app.router.add_post("/ask", approver.handle)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield approver, f"http://127.0.0.1:{runner.addresses[0][1]}/ask"
    await runner.cleanup()


def keys(directory: Path, **tools: list[str]) -> list[dict[str, Any]]:
    for name in tools:
        (directory / name).write_text(f"key-{name}")
    return [{"key": f"file:{directory / name}", "tenant": name, "tools": tools[name]} for name in tools]


async def test_a_key_gets_the_tools_that_it_is_allowed_and_no_others(
    start: Start, engine: FakeEngine, bench: Bench, tmp_path: Path
) -> None:
    gateway = await start(engine, tools=bench.settings(), keys=keys(tmp_path, some=["se*"], none=[], every=["*"]))
    offered = {}
    for name in ("some", "none", "every"):
        await gateway.ask(ASK, Authorization=f"Bearer key-{name}")
        tools = engine.calls[-1].body.get("tools", [])
        offered[name] = [tool["function"]["name"] for tool in tools]
        async with gateway.get("/v1/turngate/tools", Authorization=f"Bearer key-{name}") as response:
            assert [row["name"] for row in (await response.json())["tools"]] == offered[name]
    assert offered == {"some": ["search"], "none": [], "every": ["fail", "search", "write"]}
    async with gateway.get("/v1/turngate/tools") as response:
        assert response.status == 401


async def test_a_tool_that_a_prompt_makes_up_is_refused_counted_and_logged(
    start: Start, engine: FakeEngine, bench: Bench, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    injected = Says(calls=(("call_write_01", "write", "{}"), ("call_shell_01", "shell", '{"c": "rm"}')))
    engine.plays = [says(injected), says(LAST)]
    gateway = await start(engine, tools=bench.settings(), keys=keys(tmp_path, some=["search"]))
    with caplog.at_level(logging.WARNING, "turngate.tool"):
        answer = await gateway.ask(ASK, Authorization="Bearer key-some")
    assert orjson.loads(answer.body)["choices"][0]["message"]["content"] == LAST.text
    assert bench.ran == []
    lines = [record.__dict__["fields"] for record in caplog.records if record.name == "turngate.tool"]
    assert [(line["tool"], line["status"]) for line in lines] == [("write", "refused"), ("shell", "refused")]
    page = metrics_of(gateway)
    assert 'turngate_tool_failed_total{status="refused",tool="unknown"} 1.0' in page
    assert 'turngate_tool_failed_total{status="refused",tool="write"} 1.0' in page


async def test_more_calls_at_once_than_allowed_are_refused(start: Start, engine: FakeEngine, bench: Bench) -> None:
    bomb = Says(calls=tuple((f"call_search_{n}", "search", f'{{"q": "{n}"}}') for n in range(9)))
    engine.plays = [says(bomb), says(LAST)]
    gateway = await start(engine, tools=bench.settings() | {"max_calls": 3})
    await gateway.ask(ASK)
    results = [m["content"] for m in engine.calls[1].body["messages"] if m["role"] == "tool"]
    assert len(bench.ran) == 3
    assert sum(text.startswith("Error") for text in results) == 6


@pytest.mark.parametrize(
    ("answer", "status", "runs"),
    [
        ({"approved": True}, 200, True),
        ({"approved": False, "reason": "not today"}, 200, False),
        ({"approved": "yes"}, 200, False),
        ({"approved": True}, 500, False),
        (["approved"], 200, False),
    ],
)
async def test_a_call_runs_only_when_its_callback_says_so(
    start: Start,
    engine: FakeEngine,
    bench: Bench,
    approver: tuple[Approver, str],
    answer: Any,
    status: int,
    runs: bool,
) -> None:
    approves, url = approver
    approves.answer, approves.status = answer, status
    engine.plays = [says(FIRST), says(LAST)]
    gateway = await start(engine, tools=bench.settings(approval=url))
    await gateway.ask(ASK)
    assert bool(bench.ran) is runs
    result = engine.calls[1].body["messages"][-1]["content"]
    assert result.startswith("search found" if runs else "Error")
    assert ("not today" in result) is ("reason" in answer)
    [asked] = approves.asked
    assert (asked["tool"], asked["arguments"], asked["tenant"]) == ("search", {"q": "secret plan"}, "default")


@pytest.mark.parametrize("approval", ["always", "http://127.0.0.1:9/nobody"])
async def test_without_anybody_to_approve_a_call_is_refused(
    start: Start, engine: FakeEngine, bench: Bench, approval: str
) -> None:
    engine.plays = [says(FIRST), says(LAST)]
    gateway = await start(engine, tools=bench.settings(approval=approval))
    assert (await gateway.ask(ASK)).status == 200
    assert bench.ran == []
    assert engine.calls[1].body["messages"][-1]["content"].startswith("Error")


async def test_an_execution_leaves_one_line_without_content(
    start: Start, engine: FakeEngine, bench: Bench, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    engine.plays = [says(FIRST), says(LAST)]
    gateway = await start(engine, tools=bench.settings(), keys=keys(tmp_path, team=["*"]))
    with caplog.at_level(logging.INFO, "turngate.tool"):
        answer = await gateway.ask(ASK, Authorization="Bearer key-team")
    [line] = [record.__dict__["fields"] for record in caplog.records if record.name == "turngate.tool"]
    assert (line["tool"], line["tenant"], line["status"], line["shared_by"]) == ("search", "team", "ok", 1)
    assert line["session"] == answer.headers["X-Turngate-Session"]
    assert line["key"] == f"file:{tmp_path / 'team'}"
    assert "secret plan" not in json.dumps(line)
    assert "key-team" not in json.dumps(line)


async def test_no_tenant_s_execution_is_shared_with_another(
    start: Start, engine: FakeEngine, bench: Bench, tmp_path: Path
) -> None:
    bench.holds.clear()
    engine.plays = [says(FIRST), says(FIRST)]
    gateway = await start(
        engine, tools=bench.settings(ttl_s=60, names=["search"]), keys=keys(tmp_path, a=["*"], b=["*"])
    )
    clients = [gateway.begin(ASK, Authorization=f"Bearer key-{name}") for name in "ab"]
    await gateway.until(lambda: bench.num_running == 2)
    bench.holds.set()
    for client in clients:
        assert (await client).status == 200
    assert len(bench.ran) == 2


async def test_one_tenant_s_slow_calls_do_not_keep_another_s_from_a_tool(
    start: Start, engine: FakeEngine, bench: Bench, tmp_path: Path
) -> None:
    """The next place is for the tenant that holds fewer, in whatever order they came."""

    async def asks(tenant: str, number: int) -> asyncio.Task[Any]:
        call = ("call_write_1", "write", json.dumps({"q": f"{tenant} {number}"}))
        engine.plays += [says(Says(calls=(call,)))]
        num_calls = len(engine.calls)
        told = ASK | {"messages": [{"role": "user", "content": f"{tenant} {number}"}]}
        task = asyncio.create_task(gateway.ask(told, Authorization=f"Bearer key-{tenant}"))
        await engine.has_seen(num_calls + 1)
        return task

    gateway = await start(
        engine, tools=bench.settings(concurrency=2), keys=keys(tmp_path, heavy=["*"], light=["*"])
    )
    bench.holds.clear()
    tasks = [await asks("heavy", number) for number in range(6)]
    await gateway.until(lambda: bench.num_running == 2)
    tasks.append(await asks("light", 0))
    await gateway.is_empty()  # no model call runs any more, so all calls of the tool have come
    for _ in range(50):
        await asyncio.sleep(0)
    engine.plays += [says(LAST)] * 7
    bench.holds.set()
    assert [(await task).status for task in tasks] == [200] * 7
    assert [arguments["q"] for _, arguments in bench.ran][2] == "light 0"
