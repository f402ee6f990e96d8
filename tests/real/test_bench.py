"""`turngate bench` on the real Dynamo: its sentence agrees with benchmarks/fleet, of which `base` gains (0.74 of
the mean, 0.83 of the makespan) and `ctl`, where all contexts fit, gains nothing (1.00)."""

import asyncio
import json
import sys
from pathlib import Path

import pytest

from tests.real.dynamo import DynamoOptions, dynamo_stack
from tests.real.gateway import engine_url

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
