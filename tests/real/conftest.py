"""One server per test session; tests isolate themselves by an empty cache, not by a restart."""

from collections.abc import AsyncIterator

import pytest_asyncio

from tests.real.dynamo import Dynamo, DynamoOptions, dynamo_stack
from tests.real.sglang import Sglang, SglangOptions, sglang_server
from tests.real.vllm import Vllm, VllmOptions, vllm_server

FUNCTIONAL_SPEEDUP = 1000.0
VLLM_BLOCKS = 4000
"""Eight OpenCodes (10k tokens each, of which 2.7k are shared) fit with room to spare."""


SGLANG_TOKENS = VLLM_BLOCKS * 32
SGLANG_CONTEXT_TOKENS = 48_000
"""More than the 32,768 of its model: by its small vocabulary the first prompt of Claude Code is that long."""


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def vllm_process() -> AsyncIterator[Vllm]:
    async with vllm_server(VllmOptions(num_blocks=VLLM_BLOCKS)) as running:
        yield running


@pytest_asyncio.fixture
async def vllm(vllm_process: Vllm) -> Vllm:
    """The session's vLLM, its prefix cache emptied for this test."""
    await vllm_process.reset_prefix_cache()
    return vllm_process


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def sglang_process() -> AsyncIterator[Sglang]:
    context = ("--context-length", str(SGLANG_CONTEXT_TOKENS))
    async with sglang_server(SglangOptions(capacity_tokens=SGLANG_TOKENS, extra_arguments=context)) as running:
        yield running


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def dynamo() -> AsyncIterator[Dynamo]:
    """Two workers without timing. Tests with scripted replies start their own stack, in a second."""
    async with dynamo_stack(DynamoOptions(num_workers=2, speedup_ratio=FUNCTIONAL_SPEEDUP)) as running:
        yield running
