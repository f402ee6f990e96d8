"""`turngate bench` on real engines. On Dynamo its sentence agrees with benchmarks/fleet, where `base` gains (0.74
of the mean, 0.83 of the makespan) and `ctl`, where all contexts fit, gains nothing (1.00). On SGLang, whose model
of a few megabytes computes prompts in no time, any verdict is right, and the page is what counts."""

import asyncio
import json
import sys
from pathlib import Path

import pytest

from tests.real.dynamo import DynamoOptions, dynamo_stack
from tests.real.gateway import engine_url
from tests.real.sglang import SglangOptions, sglang_server

BLOCKS = 1_000
"""A pool of 16,000 tokens, under which a run takes less than half a minute."""
DEADLINE_S = 300.0


@pytest.mark.parametrize(
    ("flags", "verdict", "said"),
    [
        (["--agents", "16"], "nothing", "as all contexts fit into the cache at once"),
        ([], "gains", "The gate gains here"),
    ],
    ids=["all fit", "half fit"],
)
async def test_its_sentence_agrees_with_the_fleet_benchmark(
    flags: list[str], verdict: str, said: str, tmp_path: Path
) -> None:
    report = tmp_path / "bench.json"
    async with dynamo_stack(DynamoOptions(num_blocks=BLOCKS)) as dynamo, asyncio.timeout(DEADLINE_S):
        engine = engine_url("dynamo", dynamo.base_url)
        arguments = ["bench", "--engine", engine, *flags, "--repeats", "1", "--report", str(report)]
        process = await asyncio.create_subprocess_exec(sys.executable, "-m", "gateway", *arguments)
        assert await process.wait() == 0
    found = json.loads(report.read_text())
    assert found["pool_tokens"] == 16 * BLOCKS
    assert (found["verdict"], said in found["sentence"]) == (verdict, True), found["sentence"]


async def test_a_bench_on_sglang_ends_with_its_pool_all_arms_and_a_sentence(tmp_path: Path) -> None:
    report = tmp_path / "bench.json"
    options = SglangOptions(capacity_tokens=6_000, max_running=16)
    async with sglang_server(options) as server, asyncio.timeout(DEADLINE_S):
        arguments = ["bench", "--engine", engine_url("sglang", server.base_url), "--repeats", "1"]
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "gateway", *arguments, "--agents", "16", "--report", str(report))
        )
        assert await process.wait() == 0
    found = json.loads(report.read_text())
    assert found["pool_tokens"] == options.capacity_tokens
    assert found["verdict"] in ("gains", "nothing", "costs")
    assert [run["arm"] for run in found["runs"]] == ["straight", "observe", "turns"]
    assert all(run["prompt_tokens"] > run["cached_tokens"] > 0 for run in found["runs"])
