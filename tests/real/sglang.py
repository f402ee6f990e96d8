"""A real SGLang server on the CPU, with a random model of a few megabytes."""

import asyncio
import json
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from tests.real.parts import SGLANG_PYTHON, SGLANG_TINY_MODEL_DIR, require
from tests.real.process import PROBE_INTERVAL_S, EngineServer, free_port, server

LAUNCHER = Path(__file__).parent / "inside/sglang_cpu.py"
READY_DEADLINE_S = 300.0
IDLE_DEADLINE_S = 60.0
FLAGS = (
    *("--enable-metrics", "--enable-cache-report", "--enable-priority-scheduling"),
    *("--enable-session-radix-cache", "--default-priority-value=0"),
)
"""What docs/engines.md advises."""


@dataclass(frozen=True)
class SglangOptions:
    """The flags that tests vary; the rest is fixed in `_command`."""

    model_dir: Path = SGLANG_TINY_MODEL_DIR
    model_name: str = "tiny"
    capacity_tokens: int = 70_000
    max_running: int = 32
    max_batched_tokens: int = 2048
    max_queued_requests: int | None = None
    """Above it SGLang answers 503. None: no limit."""
    tool_parser: str | None = "hermes"
    header_overrides: bool = False
    """Read the priority of `/v1/messages` from a header."""
    flags: tuple[str, ...] = FLAGS
    extra_arguments: tuple[str, ...] = ()


@dataclass(frozen=True)
class Sglang(EngineServer):
    options: SglangOptions

    async def reset_prefix_cache(self) -> None:
        """Isolates tests that share the server. It refuses while it works on something."""
        async with aiohttp.ClientSession() as session, asyncio.timeout(IDLE_DEADLINE_S):
            while True:
                async with session.post(f"{self.base_url}/flush_cache") as response:
                    if response.status == 200:
                        return
                await asyncio.sleep(PROBE_INTERVAL_S)


def _command(options: SglangOptions, port: int) -> list[str | Path]:
    events = {
        "publisher": "zmq",
        "topic": "kv",
        "endpoint": f"tcp://*:{free_port()}",
        "replay_endpoint": f"tcp://*:{free_port()}",
    }
    command: list[str | Path] = [SGLANG_PYTHON, LAUNCHER, "--model-path", options.model_dir]
    command += ["--host", "127.0.0.1", "--port", str(port)]
    command += ["--served-model-name", options.model_name]
    command += ["--max-total-tokens", str(options.capacity_tokens)]
    command += ["--max-running-requests", str(options.max_running)]
    command += ["--chunked-prefill-size", str(options.max_batched_tokens)]
    command += ["--kv-events-config", json.dumps(events)]
    if options.tool_parser is not None:
        command += ["--tool-call-parser", options.tool_parser]
    if options.max_queued_requests is not None:
        command += ["--max-queued-requests", str(options.max_queued_requests)]
    # Random weights write white space for ever inside an open grammar.
    command += ["--constrained-json-disable-any-whitespace"]
    return [*command, *options.flags, *options.extra_arguments]


@asynccontextmanager
async def sglang_server(options: SglangOptions = SglangOptions()) -> AsyncIterator[Sglang]:
    """Ready to serve on entry, 30 to 60 s after the call on two cores."""
    require("sglang", SGLANG_PYTHON, options.model_dir / "config.json")
    port = free_port()
    base_url = f"http://127.0.0.1:{port}"

    async def is_healthy(session: aiohttp.ClientSession) -> bool:
        async with session.get(f"{base_url}/health") as response:
            return response.status == 200

    with tempfile.TemporaryDirectory(prefix="turngate-sglang-") as log_dir:
        command = _command(options, port)
        environment = {
            "SGLANG_ENABLE_REQUEST_HEADER_OVERRIDES": str(int(options.header_overrides)),
            "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN": "1",
        }
        async with server("sglang", command, environment, Path(log_dir)) as running:
            await running.wait_until_ready(is_healthy, READY_DEADLINE_S)
            yield Sglang(base_url, options.model_name, running, options)
