"""Laws of `turngate bench`: one page with one sentence, and nothing is left behind."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gateway.cli.bench import bench_client
from gateway.cli.bench_report import ARMS
from gateway.cli.main import main
from gateway.telemetry.factlog import FactLog
from gateway.transport.aiohttp_upstream import STALE_WITHIN_S
from policies.types import Arrived, Ending, Left, Usage
from tests.deadline import DEADLINE_S
from tests.policies.turns_of import turn
from tests.transport.test_upstream import OK, TIMEOUTS, Engine, take

TINY = ("--set", "embedded.capacity_tokens=8000", "--set", "embedded.slots=256", "--set", "embedded.speed=50")
"""An engine under which a run takes a second."""


@asynccontextmanager
async def turngate(*arguments: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """A command, whose processes are gone at the end of the block however it ends."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "gateway", *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        for pid in group_of(process.pid):
            os.kill(pid, signal.SIGKILL)
        await process.wait()


def group_of(leader: int) -> list[int]:
    """The processes of a group that run."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, group = stat.read_text().rpartition(") ")[2].split()[:3]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(group) == leader and state != "Z":
            found.append(int(stat.parent.name))
    return found


async def test_a_connection_that_was_used_before_may_break_late_without_failing_a_session() -> None:
    """As from an engine on a busy machine, which closes an idle connection while a call is on its way."""

    async def act(number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await take(reader, 2)
        writer.write(OK)
        await take(reader, 2)
        if number == 1:
            await asyncio.sleep(1.1 * STALE_WITHIN_S)
            writer.transport.abort()
        writer.write(OK)

    engine, client = Engine(act), bench_client()
    async with engine as url:
        for _ in range(2):
            reply = await client.call("POST", url, [], b"{}", TIMEOUTS)
            assert await reply.read(10) == b"ok"
    await client.close()
    assert engine.num_connections == 2


async def test_a_bench_on_the_embedded_engine_ends_with_a_sentence_and_a_report(tmp_path: Path) -> None:
    file = tmp_path / "bench.json"
    async with (
        asyncio.timeout(DEADLINE_S),
        turngate("bench", "--engine", "embedded", *TINY, "--repeats", "1", "--report", str(file)) as process,
    ):
        out, error = await process.communicate()
    said = out.decode().splitlines()
    assert (process.returncode, error.decode()) == (0, "")
    assert said[0] == "turngate bench: looking at the engine ..."
    assert "a KV pool of 8,000 tokens" in said[1]
    assert "40 agents, 160 turns" in said[2]
    assert sum("160/160 turns" in line for line in said) == len(ARMS)
    found = json.loads(file.read_text())
    assert f"=> {found['sentence']}" in said
    assert found["verdict"] in ("gains", "nothing", "costs")
    assert [run["arm"] for run in found["runs"]] == list(ARMS)
    assert all(run["prompt_tokens"] > run["cached_tokens"] > 0 for run in found["runs"])
    prompt_tokens = [run["prompt_tokens"] for run in found["runs"]]
    assert max(prompt_tokens) == pytest.approx(min(prompt_tokens), rel=0.01)


async def test_a_log_of_facts_is_played_on_an_engine_that_asks_for_a_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine is a gateway with a key, which does not state a pool."""
    log = FactLog(tmp_path / "facts.jsonl")
    for number in range(3):
        asked = turn(f"t{number}", session=f"s{number}", at=float(number))
        log.record(float(number), Arrived(asked), [])
        log.record(number + 0.5, Left(asked.id, Ending.COMPLETE, Usage(100, 0, 5)), [])
    log.close()
    monkeypatch.setenv("BENCH_KEY", "sk-bench")
    keys = "keys=[{name: bench, key: env:BENCH_KEY}]"
    serve = ("serve", "--port", "0", "--engine", "embedded", "--set", keys, *TINY)
    async with asyncio.timeout(DEADLINE_S), turngate(*serve) as engine:
        assert engine.stdout is not None
        while (found := re.search(rb"http://([\d.:]+)/v1", line := await engine.stdout.readline())) is None:
            assert line
        config = tmp_path / "turngate.yaml"
        entry = {"url": f"vllm://{found[1].decode()}", "api_key": "env:BENCH_KEY"}
        config.write_text(json.dumps({"engines": [entry], "policy": {"capacity_tokens": 8000}}))
        facts = ("--facts", str(tmp_path / "facts.jsonl"), "--repeats", "1")
        async with turngate("bench", "--config", str(config), *facts) as process:
            out, error = await process.communicate()
    assert process.returncode == 0, error.decode()
    assert "3 agents, 3 turns" in out.decode()
    assert "=> The gate" in out.decode()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["bench", "--engine", "embedded", "--facts", "no.jsonl"], "--facts no.jsonl: No such file or directory"),
        (["why", "--facts", "no.jsonl"], "--facts no.jsonl: No such file or directory"),
        (["why", "--key", "sekret"], "--key: give a secret by reference"),
    ],
)
def test_what_is_not_there_is_named_without_words_of_a_library(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) in (1, 2)
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line
    assert "Errno" not in line


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_signal_leaves_nothing_behind(number: signal.Signals) -> None:
    slow = (*TINY[:-1], "embedded.speed=1")
    async with (
        asyncio.timeout(DEADLINE_S),
        turngate("bench", "--engine", "embedded", *slow) as process,
    ):
        assert process.stdout is not None
        while not (line := (await process.stdout.readline()).decode()).startswith("repeat 1, straight: 0/160"):
            assert line, (await process.communicate())[1].decode()
        assert len(group_of(process.pid)) > 1
        process.send_signal(number)
        assert await process.wait() == 130
        assert group_of(process.pid) == []


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--engine", "embedded", "--report", "bench.html"], "name a file that ends in .md or .json"),
        (["--engine", "embedded", "--report", "no/where.md"], "there is no such folder"),
        (["--engine", "openai://"], "is a rented model"),
        (["--engine", "embedded", "--engine", "vllm://gpu1:8000"], "a bench takes one embedded engine"),
        ([], "no engine is configured"),
    ],
)
def test_what_it_cannot_measure_is_refused(
    argv: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["bench", *argv]) == 2
    assert said in capsys.readouterr().err


def test_an_engine_that_does_not_answer_is_an_error_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--engine", "vllm://127.0.0.1:1"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("turngate bench: http://127.0.0.1:1 does not accept connections")
