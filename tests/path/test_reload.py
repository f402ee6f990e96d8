"""A configuration that changes while requests run."""

from __future__ import annotations

import asyncio
import re
import signal
import sys
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from gateway.config.settings import RequestLimits, Settings
from gateway.core.errors import ConfigError
from gateway.engines.breaker import BreakerState
from gateway.reload import AT_RUN_TIME, Reloading, changes, effective, reload
from tests.deadline import DEADLINE_S
from tests.engines.kv_event_batches import stored
from tests.engines.test_kv_events_listener import Publisher
from tests.path.conftest import Gateway, Start
from tests.path.fake_engine import DONE, FakeEngine, chunk, cuts_after, finish, stalls_after, streams
from tests.path.reloaded import changed
from tests.path.secured import by, keys
from tests.path.test_cancellation import ASK, STREAM


def entries(*engines: FakeEngine) -> list[dict[str, str]]:
    return [{"url": f"vllm://127.0.0.1:{engine.port}", "name": f"n{engine.port}"} for engine in engines]


async def test_engines_are_exchanged_and_begun_answers_end_where_they_began(
    start: Start, engine: FakeEngine
) -> None:
    go_on, second = asyncio.Event(), FakeEngine()
    engine.plays = [stalls_after(chunk(content="half"), until=go_on, then=streams([finish(), DONE]))]
    gateway = await start(engine)
    await second.start()
    gateway.engines.append(second)
    running = gateway.begin(STREAM)
    await engine.has_seen(1)
    found = await reload(gateway.app, changed(gateway, engines=entries(second)))
    assert [change.key for change in found] == ["engines"]
    assert (await gateway.ask(ASK)).status == 200
    assert len(second.calls) == 1
    go_on.set()
    answer = await running
    assert not answer.is_cut
    assert answer.body == chunk(content="half") + finish() + DONE


class SlowToCome(FakeEngine):
    """Lets those wait who ask what it serves."""

    def __init__(self) -> None:
        super().__init__()
        self.is_asked, self.may_tell = asyncio.Event(), asyncio.Event()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        if request.path == "/v1/models":
            self.is_asked.set()
            await self.may_tell.wait()
        return await super()._answer(request)


async def test_while_engines_are_exchanged_there_is_always_one(start: Start, engine: FakeEngine) -> None:
    gateway, second = await start(engine), SlowToCome()
    await second.start()
    gateway.engines.append(second)
    reloading = asyncio.create_task(reload(gateway.app, changed(gateway, engines=entries(second))))
    await second.is_asked.wait()
    assert (await gateway.ask(ASK)).status == 200
    second.may_tell.set()
    await reloading
    assert (await gateway.ask(ASK)).status == 200
    assert (len(engine.calls), len(second.calls)) == (1, 1)


async def test_an_engine_does_not_pay_for_the_one_that_had_its_name(start: Start) -> None:
    old, new, other, fail = FakeEngine(), FakeEngine(), FakeEngine(), asyncio.Event()
    old.plays = [stalls_after(until=fail, then=cuts_after())] * 20
    gateway = await start(old)
    running = [gateway.begin(STREAM | {"user": str(n)}) for n in range(20)]
    await old.has_seen(20)
    for one in (new, other):
        await one.start()
        gateway.engines.append(one)
    named = [{"url": f"vllm://127.0.0.1:{one.port}", "name": f"e{n}"} for n, one in enumerate((new, other), 1)]
    await reload(gateway.app, changed(gateway, engines=named))
    fail.set()
    await asyncio.gather(*running)
    assert gateway.app.parts.monitor.state("e1") is BreakerState.CLOSED


async def test_a_file_of_hosts_or_a_key_is_read_again_and_what_differs_is_told(
    start: Start, engine: FakeEngine, tmp_path: Path
) -> None:
    second, hosts, key = FakeEngine(), tmp_path / "hosts", tmp_path / "key"
    for one in (engine, second):
        await one.start()
    hosts.write_text(f"vllm://127.0.0.1:{engine.port}\n")
    key.write_text("sk-before-" + "x" * 40)
    in_files = {"hosts_file": str(hosts), "keys": [{"key": f"file:{key}", "name": "k"}]}
    gateway = await start(**in_files)
    gateway.engines += [engine, second]
    assert await reload(gateway.app, changed(gateway)) == []
    hosts.write_text(f"vllm://127.0.0.1:{second.port}\n")
    key.write_text("sk-after-" + "x" * 40)
    found = await reload(gateway.app, changed(gateway))
    assert [str(change) for change in found] == [
        f"engines: 127.0.0.1:{engine.port} -> 127.0.0.1:{second.port} (new)",
        "keys: k -> k (new)",
    ]
    assert (await gateway.ask(ASK, Authorization="Bearer sk-before-" + "x" * 40)).status == 401
    assert (await gateway.ask(ASK, Authorization="Bearer sk-after-" + "x" * 40)).status == 200
    assert (len(engine.calls), len(second.calls)) == (0, 1)


async def test_kv_events_of_an_engine_that_comes_are_heard(start: Start, engine: FakeEngine) -> None:
    gateway, publisher = await start(engine), Publisher()
    (entry,) = entries(engine)
    await reload(gateway.app, changed(gateway, engines=[entry | {"kv_events": [publisher.url]}]))
    (running,) = gateway.app.parts.monitor.engines
    await publisher.heard()
    await publisher.send(stored(1))
    await gateway.until(lambda: running.kv_events.num_batches == 1)
    publisher.context.destroy(linger=0)


async def test_names_are_listed_and_strangers_are_told_nothing_as_it_is_configured_now(
    start: Start, engine: FakeEngine
) -> None:
    gateway = await start(engine, listen={"host": "0.0.0.0", "port": 0, "open": True})
    assert [await status_of(gateway, path) for path in ("/metrics", "/v1/models/nick?")] == [200, 200]
    new = changed(gateway, models={"aliases": {"nick": "m"}, "answer_any_model": False}, keys=keys("a"))
    await reload(gateway.app, new)
    assert await status_of(gateway, "/metrics") == 403
    async with gateway.get("/v1/models", **by("a")) as response:
        assert [row["id"] for row in (await response.json())["data"]] == ["m", "nick"]


async def status_of(gateway: Gateway, path: str) -> int:
    async with gateway.get(path) as response:
        return int(response.status)


async def test_a_budget_in_money_waits_for_the_restart_that_brings_its_prices(
    start: Start, engine: FakeEngine
) -> None:
    gateway = await start(engine, keys=keys("a"))
    new = changed(gateway, keys=keys("a", limits={"budget_cost": 1}), prices={"*": {"prompt": 1}})
    with pytest.raises(ConfigError, match="needs a price of every model"):
        await reload(gateway.app, new)


async def test_a_signal_that_comes_during_a_reload_is_followed_by_another_one(
    start: Start, engine: FakeEngine
) -> None:
    gateway, second = await start(engine), SlowToCome()
    await second.start()
    gateway.engines.append(second)
    told = changed(gateway, engines=entries(engine, second))
    with Reloading(gateway.app, lambda: told):
        signal.raise_signal(signal.SIGHUP)
        async with asyncio.timeout(DEADLINE_S):
            await second.is_asked.wait()
        told = told.model_copy(update={"limits": RequestLimits(body_bytes=5)})
        signal.raise_signal(signal.SIGHUP)
        await gateway.until(lambda: gateway.app.settings.current.limits.body_bytes != 5)
        second.may_tell.set()
        await gateway.until(lambda: gateway.app.settings.current.limits.body_bytes == 5)


async def test_keys_limits_and_names_change_for_the_next_request(
    start: Start, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NEW_KEY", "sk-new")
    gateway = await start(engine)
    new = changed(
        gateway, keys=[{"key": "env:NEW_KEY"}], limits={"body_bytes": 200}, models={"aliases": {"nick": "m"}}
    )
    await reload(gateway.app, new)
    assert (await gateway.ask(ASK)).status == 401
    auth = {"Authorization": "Bearer sk-new"}
    assert (await gateway.ask(ASK | {"model": "nick"}, **auth)).status == 200
    assert engine.calls[-1].body["model"] == "m"
    assert (await gateway.ask(ASK | {"user": "x" * 200}, **auth)).status == 413


async def test_what_cannot_change_is_named_and_keeps_its_value(start: Start, engine: FakeEngine) -> None:
    gateway = await start(engine)
    new = changed(gateway, policy={"ceiling": 0.5, "max_wait_s": 7})
    found = {change.key: str(change) for change in await reload(gateway.app, new)}
    assert found == {
        "policy.ceiling": "policy.ceiling: 0.98 -> 0.5 (only after a restart)",
        "policy.max_wait_s": "policy.max_wait_s: 300 -> 7",
    }
    policy = gateway.app.settings.current.policy
    assert (policy.ceiling, policy.max_wait_s) == (0.98, 7)


@pytest.mark.parametrize(
    "sections",
    [{"engines": ["embedded"]}, {"engines": []}, {"keys": [{"key": "env:NO_SUCH_VARIABLE"}]}],
    ids=["an engine that needs a restart", "no engine", "a key without a value"],
)
async def test_a_configuration_that_cannot_be_used_changes_nothing(
    start: Start, engine: FakeEngine, sections: dict[str, object]
) -> None:
    gateway = await start(engine)
    before = gateway.app.settings.current
    with pytest.raises(ConfigError):
        await reload(gateway.app, changed(gateway, **sections, limits={"body_bytes": 5}))
    assert gateway.app.settings.current is before
    assert (await gateway.ask(ASK)).status == 200


def test_the_effective_settings_differ_from_the_new_ones_only_in_what_needs_a_restart() -> None:
    old = Settings()
    new = Settings.model_validate(
        {"listen": {"port": 1}, "limits": {"queue_turns": 5, "attempts": 9}, "engines": ["vllm://a:1"]}
    )
    left = {change.key for change in changes(effective(old, new), new)}
    assert left == {"listen.port", "limits.queue_turns"}
    assert not any(change.applies for change in changes(effective(old, new), new))


def test_the_manual_names_every_key_that_can_change() -> None:
    manual = (Path(__file__).parents[2] / "docs/operations.md").read_text()
    section = manual.partition("## Change the configuration while it runs")[2].partition("Everything else")[0]
    assert set(re.findall(r"`([a-z_.]+)`", section)) == AT_RUN_TIME


@pytest.mark.parametrize("more", [(), ("--workers", "2")], ids=["alone", "workers"])
async def test_sighup_reads_the_file_again_and_a_wrong_one_is_refused_with_its_fault(
    engine: FakeEngine, tmp_path: Path, more: tuple[str, ...]
) -> None:
    await engine.start()
    file, address = tmp_path / "turngate.yaml", f"vllm://127.0.0.1:{engine.port}"
    head = f"engines: ['{address}']\nlisten: {{port: 0}}\nprobing: {{hints: false}}\n"
    file.write_text(head)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "gateway", "serve", "--config", str(file), *more),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stderr is not None

    async def line_with(stream: asyncio.StreamReader, text: bytes) -> bytes:
        while text not in (line := await stream.readline()):
            assert line
        return line

    async with asyncio.timeout(DEADLINE_S), aiohttp.ClientSession() as client:
        base = (await line_with(process.stdout, b"OPENAI_BASE_URL=")).decode().partition("=")[2].strip()
        file.write_text(head + "limits: {body_bytez: 9}\n")
        process.send_signal(signal.SIGHUP)
        assert b"limits.body_bytez" in await line_with(process.stderr, b"nothing was changed")
        file.write_text(head + "limits: {body_bytes: 9}\n")
        process.send_signal(signal.SIGHUP)
        assert b"read again" in await process.stdout.readline()
        assert await process.stdout.readline() == b"  limits.body_bytes: 33554432 -> 9\n"
        num_refused = 0
        while num_refused < 8:  # one after the other: the second worker is not heard of
            url, own_connection = f"{base}/chat/completions", {"Connection": "close"}
            async with client.post(url, json=ASK, headers=own_connection) as response:
                num_refused = num_refused + 1 if response.status == 413 else 0
        process.terminate()
        assert await process.wait() == 0
    await engine.stop()
