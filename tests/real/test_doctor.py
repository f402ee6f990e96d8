"""What `turngate doctor` advises for real engines: nothing for one that is started well, else what it lacks."""

import asyncio
import sys
from collections.abc import Mapping

import pytest

from tests.real.dynamo import Dynamo, DynamoOptions, dynamo_stack
from tests.real.gateway import engine_url
from tests.real.sglang import FLAGS, Sglang, SglangOptions, sglang_server
from tests.real.vllm import Vllm, VllmOptions, vllm_server

pytestmark = pytest.mark.asyncio(loop_scope="session")

SGLANG_REMEDIES = {
    "--enable-metrics": "--enable-metrics",
    "--enable-cache-report": "--enable-cache-report",
    "--enable-priority-scheduling": "--enable-priority-scheduling",
    "--enable-session-radix-cache": "--enable-session-radix-cache",
    "--default-priority-value=0": "--default-priority-value 0",
}
"""Flag -> what doctor advises without it."""
DYNAMO_REMEDIES: Mapping[str, DynamoOptions] = {
    "--router-mode kv on the frontend": DynamoOptions(
        router_mode="round-robin", speedup_ratio=1000.0, max_context_tokens=8192
    ),
    "DYN_ENABLE_ANTHROPIC_API=1 on the frontend": DynamoOptions(
        anthropic_api=False, speedup_ratio=1000.0, max_context_tokens=8192
    ),
}
"""What doctor advises -> the stack without it."""


async def doctor(kind: str, engine: Vllm | Sglang | Dynamo) -> str:
    """Its report about the engine."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "gateway", "doctor", "--engine", engine_url(kind, engine.base_url)),
        *("--set", "probing.timeout_s=120"),
        stdout=asyncio.subprocess.PIPE,
    )
    out, _ = await process.communicate()
    return out.decode().partition("\n\n")[0]


def advised(report: str) -> list[str]:
    return [line.strip().removeprefix("try: ") for line in report.splitlines() if "try: " in line]


async def test_doctor_advises_nothing_to_a_well_started_vllm(vllm_process: Vllm) -> None:
    report = await doctor("vllm", vllm_process)
    assert advised(report) == [], report
    assert "--scheduling-policy priority" not in report, "in dev mode vLLM states its policy"


async def test_doctor_advises_the_flags_that_a_vllm_lacks() -> None:
    options = VllmOptions(
        num_blocks=500, block_tokens=128, max_context_tokens=8192, report_cached_tokens=False, tool_parser=None
    )
    async with vllm_server(options) as running:
        report = await doctor("vllm", running)
    parser = "--enable-auto-tool-choice --tool-call-parser NAME, the name being that of the model's format"
    assert advised(report) == ["--enable-prompt-tokens-details", parser, "--block-size 32"], report


async def test_doctor_advises_nothing_to_a_well_started_sglang_and_knows_its_prompt_order(
    sglang_process: Sglang,
) -> None:
    report = await doctor("sglang", sglang_process)
    assert advised(report) == [], report
    assert "system before tools" in report
    assert "not known" not in report


@pytest.mark.parametrize("missing", FLAGS)
async def test_doctor_advises_the_one_flag_that_a_sglang_lacks(missing: str) -> None:
    flags = tuple(flag for flag in FLAGS if flag != missing)
    if missing == "--enable-priority-scheduling":  # which the default value needs
        flags = tuple(flag for flag in flags if not flag.startswith("--default-priority-value"))
    async with sglang_server(SglangOptions(flags=flags, max_running=2)) as running:
        report = await doctor("sglang", running)
    assert advised(report) == [SGLANG_REMEDIES[missing]], report


async def test_doctor_advises_nothing_to_a_well_started_dynamo() -> None:
    async with dynamo_stack(DynamoOptions(speedup_ratio=1000.0, max_context_tokens=8192)) as running:
        report = await doctor("dynamo", running)
    assert advised(report) == [], report


@pytest.mark.parametrize("remedy", DYNAMO_REMEDIES)
async def test_doctor_advises_the_one_setting_that_a_dynamo_lacks(remedy: str) -> None:
    async with dynamo_stack(DYNAMO_REMEDIES[remedy]) as running:
        report = await doctor("dynamo", running)
    assert advised(report) == [remedy], report
