"""A real vLLM API server on the CPU, with a random model of a few megabytes."""

import json
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from tests.real.parts import TINY_MODEL_DIR, VLLM_PYTHON, require
from tests.real.process import EngineServer, free_port, server

READY_DEADLINE_S = 300.0
SITE_DIR = Path(__file__).parent / "inside/vllm_site"


@dataclass(frozen=True)
class VllmOptions:
    """The flags that tests vary; the rest is fixed in `_command`."""

    model_dir: Path = TINY_MODEL_DIR
    model_name: str = "tiny"
    num_blocks: int = 2000
    block_tokens: int = 32
    max_context_tokens: int = 32768
    max_running: int = 32
    max_batched_tokens: int = 2048
    max_queued_requests: int | None = None
    """Running and waiting together; above it vLLM answers 503. None: no limit."""
    scheduling_policy: str = "priority"
    tool_parser: str | None = "hermes"
    report_cached_tokens: bool = True
    dev_endpoints: bool = True
    """Serve /reset_prefix_cache, /pause and others that a production server does not have."""
    extra_arguments: tuple[str, ...] = ()

    @property
    def capacity_tokens(self) -> int:
        return self.num_blocks * self.block_tokens


@dataclass(frozen=True)
class Vllm(EngineServer):
    options: VllmOptions

    async def reset_prefix_cache(self) -> None:
        """Isolates tests that share the server."""
        url = f"{self.base_url}/reset_prefix_cache"
        async with aiohttp.ClientSession() as session, session.post(url) as response:
            response.raise_for_status()


def _command(options: VllmOptions, port: int) -> list[str | Path]:
    command: list[str | Path] = [VLLM_PYTHON.with_name("vllm"), "serve", options.model_dir]
    command += ["--host", "127.0.0.1", "--port", str(port)]
    command += ["--served-model-name", options.model_name, "--dtype", "float32", "--enforce-eager"]
    command += ["--max-model-len", str(options.max_context_tokens)]
    command += ["--max-num-seqs", str(options.max_running)]
    command += ["--max-num-batched-tokens", str(options.max_batched_tokens)]
    command += ["--block-size", str(options.block_tokens)]
    command += ["--num-gpu-blocks-override", str(options.num_blocks)]
    command += ["--scheduling-policy", options.scheduling_policy]
    command += ["--enable-prefix-caching", "--enable-server-load-tracking"]
    command += ["--enable-request-id-headers"]
    if options.tool_parser is not None:
        command += ["--enable-auto-tool-choice", "--tool-call-parser", options.tool_parser]
    # Random weights write white space for ever inside an open grammar.
    structured_outputs = {"backend": "xgrammar", "disable_any_whitespace": True}
    command += ["--structured-outputs-config", json.dumps(structured_outputs)]
    if options.report_cached_tokens:
        command += ["--enable-prompt-tokens-details"]
    if options.max_queued_requests is not None:
        command += ["--max-num-queued-reqs", str(options.max_queued_requests)]
    return [*command, *options.extra_arguments]


def _environment(options: VllmOptions) -> dict[str, str]:
    return {
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "PYTHONPATH": str(SITE_DIR),
        # An upper bound in GiB; --num-gpu-blocks-override is what sizes the cache.
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_SERVER_DEV_MODE": "1" if options.dev_endpoints else "0",
    }


@asynccontextmanager
async def vllm_server(options: VllmOptions = VllmOptions()) -> AsyncIterator[Vllm]:
    """Ready to serve on entry, 30 to 90 s after the call on two cores."""
    require("vllm", VLLM_PYTHON, options.model_dir / "config.json")
    port = free_port()
    base_url = f"http://127.0.0.1:{port}"

    async def is_healthy(session: aiohttp.ClientSession) -> bool:
        async with session.get(f"{base_url}/health") as response:
            return response.status == 200

    with tempfile.TemporaryDirectory(prefix="turngate-vllm-") as log_dir:
        command = _command(options, port)
        async with server("vllm", command, _environment(options), Path(log_dir)) as running:
            await running.wait_until_ready(is_healthy, READY_DEADLINE_S)
            yield Vllm(base_url, options.model_name, running, options)
