"""A configuration that changes while requests run."""

from __future__ import annotations

import asyncio
import re
import signal
import sys
from pathlib import Path

import aiohttp
import pytest

from gateway import config
from gateway.reload import AT_RUN_TIME, changes, effective, reload
from gateway.settings import Settings
from tests.deadline import DEADLINE_S
from tests.path.conftest import Gateway, Start
from tests.path.fake_engine import DONE, FakeEngine, chunk, finish, stalls_after, streams
from tests.path.test_cancellation import ASK, STREAM


def changed(gateway: Gateway, **sections: object) -> Settings:
    old = gateway.app.path.settings
    return Settings.model_validate(old.model_dump() | sections)


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
        "policy.ceiling": "policy.ceiling: 0.95 -> 0.5 (only after a restart)",
        "policy.max_wait_s": "policy.max_wait_s: 300 -> 7",
    }
    policy = gateway.app.path.settings.policy
    assert (policy.ceiling, policy.max_wait_s) == (0.95, 7)


@pytest.mark.parametrize(
    "sections",
    [{"engines": ["embedded"]}, {"engines": []}, {"keys": [{"key": "env:NO_SUCH_VARIABLE"}]}],
    ids=["an engine that needs a restart", "no engine", "a key without a value"],
)
async def test_a_configuration_that_cannot_be_used_changes_nothing(
    start: Start, engine: FakeEngine, sections: dict[str, object]
) -> None:
    gateway = await start(engine)
    before = gateway.app.path
    with pytest.raises(config.ConfigError):
        await reload(gateway.app, changed(gateway, **sections, limits={"body_bytes": 5}))
    assert gateway.app.path is before
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
