"""Laws of `/v1/turngate/live`, `/ui` and `turngate top` at a running gateway."""

from __future__ import annotations

import asyncio
import io
from pathlib import Path
from typing import Any

import orjson
import pytest
from rich.console import Console

from gateway.cli import top
from gateway.cli.top import key_of
from gateway.config.settings import Settings
from gateway.transport.aiohttp_upstream import AiohttpUpstream
from tests.deadline import DEADLINE_S
from tests.path.conftest import Gateway, Start
from tests.path.fake_engine import DONE, FakeEngine, chunk, finish, stalls_after, streams

LIVE = "/v1/turngate/live"
SECRET = "a word of the prompt"
ASK = {"model": "m", "stream": True, "messages": [{"role": "user", "content": SECRET}]}
TOOL = {"index": 0, "id": "c1", "function": {"name": "ls", "arguments": "{}"}}


async def live(gateway: Gateway, key: str = "") -> Any:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    async with gateway.get(LIVE, **headers) as response:
        assert response.status == 200
        return await response.json()


async def phase(gateway: Gateway) -> str:
    (row,) = (await live(gateway))["sessions"]
    return str(row["phase"])


async def test_a_session_is_followed_through_a_turn_and_its_tool(start: Start, engine: FakeEngine) -> None:
    speaks, ends = asyncio.Event(), asyncio.Event()
    rest = streams([chunk(tool_calls=[TOOL]), finish("tool_calls"), DONE])
    text = stalls_after(chunk(role="assistant"), chunk(content="x"), then=rest, until=ends)
    engine.plays = [stalls_after(then=text, until=speaks)]
    gateway = await start(engine)
    client = gateway.begin(ASK)
    await engine.has_seen(1)
    assert await phase(gateway) == "prefill"
    speaks.set()
    async with asyncio.timeout(DEADLINE_S):
        while await phase(gateway) != "decode":
            await asyncio.sleep(0)
    ends.set()
    await client
    told = await live(gateway)
    assert (
        told["sessions"][0].items() >= {"phase": "tool", "replica": "e1", "turn": 1, "is_resident": True}.items()
    )
    (turn,) = told["turns"]
    assert turn["is_answered"]
    assert turn["began_s"] >= turn["prefill_s"] >= turn["decode_s"] >= turn["ended_s"]


async def test_a_turn_that_is_held_says_for_what(start: Start, engine: FakeEngine) -> None:
    engine.plays = [stalls_after()]
    gateway = await start(engine, policy={"slots_per_replica": 1})
    gateway.begin(ASK)
    await engine.has_seen(1)
    gateway.begin(ASK | {"messages": [{"role": "user", "content": "another"}]})
    await gateway.until(lambda: gateway.num_waiting == 1)
    told = await live(gateway)
    waiting = [row for row in told["sessions"] if row["phase"] == "waiting"]
    assert [row["waits_for"] for row in waiting] == ["slot"]
    assert (told["states"]["waiting"], told["waiting"]) == (1, {"residency": 0, "slot": 1, "replica": 0})


async def test_it_holds_no_content_and_no_other_tenant(start: Start, engine: FakeEngine, tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).write_text(f"key-{name}")
    keys = [{"key": f"file:{tmp_path / name}", "tenant": name} for name in "ab"]
    gateway = await start(engine, keys=keys)
    for name in "ab":
        await gateway.ask(ASK | {"user": name}, Authorization=f"Bearer key-{name}")
    seen = {name: await live(gateway, f"key-{name}") for name in "ab"}
    sessions = {name: {row["session"] for row in told["sessions"]} for name, told in seen.items()}
    assert [len(each) for each in sessions.values()] == [1, 1]
    assert not sessions["a"] & sessions["b"]
    assert SECRET.encode() not in orjson.dumps(seen)
    async with gateway.get(LIVE) as response:
        assert response.status == 401


async def test_the_admin_key_sees_all_tenants_by_name(start: Start, engine: FakeEngine, tmp_path: Path) -> None:
    for name in ("a", "b", "admin"):
        (tmp_path / name).write_text(f"key-{name}")
    keys = [{"key": f"file:{tmp_path / name}", "tenant": name} for name in "ab"]
    gateway = await start(engine, keys=keys, admin={"key": f"file:{tmp_path / 'admin'}"})
    for name in "ab":
        await gateway.ask(ASK | {"user": name}, Authorization=f"Bearer key-{name}")
    told = await live(gateway, "key-admin")
    assert sorted(row["tenant"] for row in told["sessions"]) == ["a", "b"]


async def test_the_page_is_served_under_its_own_policy(start: Start, engine: FakeEngine) -> None:
    gateway = await start(engine)
    async with gateway.get("/ui") as response:
        assert response.status == 200
        assert response.content_type == "text/html"
        assert "default-src 'none'" in response.headers["Content-Security-Policy"]
        assert LIVE in await response.text()


async def once(url: str, key: str = "") -> tuple[int, str]:
    upstream, out = AiohttpUpstream(), io.StringIO()
    try:
        told = await top.once(
            lambda: top.read_snapshot(upstream, url, key, 5.0, 10), url, "phase", Console(file=out, width=80)
        )
    finally:
        await upstream.close()
    return told, out.getvalue()


async def test_top_prints_the_fleet_once(start: Start, engine: FakeEngine) -> None:
    gateway = await start(engine)
    await gateway.ask(ASK)
    status, text = await once(gateway.url("/v1"))
    assert status == 0
    assert "e1" in text
    assert "lease" in text
    assert "\x1b" not in text
    assert max(map(len, text.splitlines())) <= 80


async def test_top_says_why_it_cannot(
    start: Start, engine: FakeEngine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a").write_text("key-a")
    keys = [{"key": f"file:{tmp_path / 'a'}"}]
    gateway = await start(engine, keys=keys)
    for url, why in (
        (gateway.url(""), "--key env:NAME"),
        (f"http://127.0.0.1:{engine.port}", "is no Turngate"),
        ("http://127.0.0.1:1", "nothing answers at http://127.0.0.1:1"),
    ):
        assert await once(url) == (1, "")
        assert why in capsys.readouterr().err
    assert (await once(gateway.url(""), key_of(Settings.model_validate({"keys": keys}), None)))[0] == 0
