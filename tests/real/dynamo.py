"""The real Dynamo frontend with N of its mocker workers: real router, KV accounting and parsers, no GPU."""

import json
import subprocess
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from tests.real.parts import DYNAMO_MODEL_DIR, DYNAMO_PYTHON, DYNAMO_TIMING_FILE, require
from tests.real.process import Probe, Server, free_port, server
from tests.real.rewrites import reply_key
from tests.real.scripts import Answer, hermes

INSIDE = Path(__file__).parent / "inside"
READY_DEADLINE_S = 180.0
# Any number does; without one the mocker imports transformers to compute it.
KV_BYTES_PER_TOKEN = 114688
HIDDEN_MODEL_NAME = "behind"
"""Of the workers, when what serves the model is a router of their own."""


@dataclass(frozen=True)
class DynamoOptions:
    model_name: str = "mock"
    num_workers: int = 1
    num_blocks: int = 2500
    """Per worker."""
    block_tokens: int = 16
    max_running: int = 256
    max_batched_tokens: int = 8192
    max_context_tokens: int = 40960
    engine_type: str = "vllm"
    speedup_ratio: float = 1.0
    """1000 for functional tests, 1.0 for anything timed; 0 means 1.0 to the mocker."""
    timing_file: Path | None = DYNAMO_TIMING_FILE
    """None: the mocker's formula, under which overcommitting the cache is free."""
    router_mode: str = "kv"
    router_queue_threshold: float | None = None
    """Queue in the router above this share of a worker's prefill budget; None: never."""
    session_affinity_ttl_s: int | None = None
    tool_parser: str | None = "hermes"
    anthropic_api: bool = True
    """Serve /v1/messages."""
    replies: tuple[Answer, ...] = ()
    """Answers that requests may ask for by `rewrites.replayed`; other requests get random text."""
    thunderagent: tuple[str, ...] | None = None
    """Arguments of `dynamo.thunderagent_router` between the frontend and the workers; None: without it."""
    frontend_arguments: tuple[str, ...] = ()
    worker_arguments: tuple[str, ...] = ()

    @property
    def capacity_tokens(self) -> int:
        return self.num_workers * self.num_blocks * self.block_tokens


@dataclass(frozen=True)
class Worker:
    metrics_url: str
    server: Server


@dataclass(frozen=True)
class Dynamo:
    base_url: str
    """Of the frontend, without /v1."""
    model: str
    options: DynamoOptions
    frontend: Server
    workers: tuple[Worker, ...]

    @property
    def metrics_url(self) -> str:
        return f"{self.base_url}/metrics"

    @property
    def log_files(self) -> tuple[Path, ...]:
        return (self.frontend.log_file, *(worker.server.log_file for worker in self.workers))


@asynccontextmanager
async def dynamo_stack(options: DynamoOptions = DynamoOptions()) -> AsyncIterator[Dynamo]:
    """Ready to serve on entry, 2 to 5 s after the call on two cores."""
    require("dynamo", DYNAMO_PYTHON, DYNAMO_MODEL_DIR / "config.json", DYNAMO_TIMING_FILE)
    async with AsyncExitStack() as stack:
        log_dir = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="turngate-dynamo-")))
        env = _environment(log_dir) | {"DYN_ENABLE_ANTHROPIC_API": str(int(options.anthropic_api))}
        replay_file = _write_replies(options.replies, log_dir)
        workers = []
        for number in range(options.num_workers):
            port = free_port()
            worker_env = env | {"DYN_SYSTEM_PORT": str(port)}
            command = _worker_command(options, replay_file)
            running = await stack.enter_async_context(server(f"worker-{number}", command, worker_env, log_dir))
            workers.append(Worker(f"http://127.0.0.1:{port}/metrics", running))
        if options.thunderagent is not None:
            command = _thunderagent_command(options)
            await stack.enter_async_context(server("thunderagent", command, env, log_dir))
        port = free_port()
        frontend = await stack.enter_async_context(
            server("frontend", _frontend_command(options, port), env, log_dir)
        )
        base_url = f"http://127.0.0.1:{port}"
        dynamo = Dynamo(base_url, options.model_name, options, frontend, tuple(workers))
        await _wait_until_ready(dynamo)
        yield dynamo


def _environment(directory: Path) -> dict[str, str]:
    store = directory / "store"
    store.mkdir()
    return {
        # One store per stack: stacks side by side must not find each other's workers.
        "DYN_DISCOVERY_BACKEND": "file",
        "DYN_FILE_KV": str(store),
        "DYN_REQUEST_PLANE": "tcp",
        "DYN_EVENT_PLANE": "zmq",
        "DYN_LOG": "warn",
        "HF_HUB_OFFLINE": "1",
        # The defaults follow the number of cores of a large server.
        "TOKIO_WORKER_THREADS": "2",
        "DYN_RUNTIME_NUM_WORKER_THREADS": "2",
        # Model cards are cached under the home directory otherwise, across stacks.
        "XDG_CACHE_HOME": str(directory / "cache"),
    }


def _write_replies(replies: tuple[Answer, ...], directory: Path) -> Path | None:
    if not replies:
        return None
    replay_file = directory / "replay.jsonl"
    finished = subprocess.run(
        [DYNAMO_PYTHON, INSIDE / "dynamo_replies.py", DYNAMO_MODEL_DIR],
        input=json.dumps({reply_key(answer): hermes(answer) for answer in replies}),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    replay_file.write_text(finished.stdout)
    return replay_file


def _worker_command(options: DynamoOptions, replay_file: Path | None) -> list[str | Path]:
    command: list[str | Path] = ["env", f"TOOL_PARSER={options.tool_parser or ''}"]
    command += [DYNAMO_PYTHON, INSIDE / "dynamo_worker.py"]
    flags: Mapping[str, object] = {
        "--model-path": DYNAMO_MODEL_DIR,
        "--model-name": options.model_name if options.thunderagent is None else HIDDEN_MODEL_NAME,
        "--engine-type": options.engine_type,
        "--num-gpu-blocks-override": options.num_blocks,
        "--block-size": options.block_tokens,
        "--max-model-len": options.max_context_tokens,
        "--max-num-seqs": options.max_running,
        "--max-num-batched-tokens": options.max_batched_tokens,
        "--speedup-ratio": options.speedup_ratio,
        "--num-workers": 1,
        "--kv-bytes-per-token": KV_BYTES_PER_TOKEN,
        "--planner-profile-data": options.timing_file,
        "--response-replay-trace-path": replay_file,
    }
    return [*command, *_given(flags), *options.worker_arguments]


def _thunderagent_command(options: DynamoOptions) -> list[str | Path]:
    flags: Mapping[str, object] = {
        "--endpoint": "dynamo.backend.generate",
        "--model-name": options.model_name,
        "--model-path": DYNAMO_MODEL_DIR,
        "--router-block-size": options.block_tokens,
    }
    command: list[str | Path] = [DYNAMO_PYTHON, "-m", "dynamo.thunderagent_router"]
    return [*command, *_given(flags), *(options.thunderagent or ())]


def _frontend_command(options: DynamoOptions, port: int) -> list[str | Path]:
    flags: Mapping[str, object] = {
        "--http-host": "127.0.0.1",
        "--http-port": port,
        "--router-mode": options.router_mode if options.thunderagent is None else "round-robin",
        "--router-queue-threshold": options.router_queue_threshold,
        "--router-session-affinity-ttl-secs": options.session_affinity_ttl_s,
    }
    command: list[str | Path] = [DYNAMO_PYTHON, "-m", "dynamo.frontend"]
    return [*command, *_given(flags), *options.frontend_arguments]


def _given(flags: Mapping[str, object]) -> list[str]:
    return [part for flag, value in flags.items() if value is not None for part in (flag, str(value))]


async def _wait_until_ready(dynamo: Dynamo) -> None:
    """Ready when the model is listed and every worker serves it; /health says 200 long before."""

    async def is_model_listed(session: aiohttp.ClientSession) -> bool:
        async with session.get(f"{dynamo.base_url}/v1/models") as response:
            listed = await response.json()
        return dynamo.model in [model["id"] for model in listed["data"]]

    async def are_all_workers_there(session: aiohttp.ClientSession) -> bool:
        async with session.get(f"{dynamo.base_url}/health") as response:
            instances = (await response.json())["instances"]
        serving = {i["instance_id"] for i in instances if i["endpoint"] == "generate"}
        return len(serving) == dynamo.options.num_workers + (dynamo.options.thunderagent is not None)

    for worker in dynamo.workers:
        await worker.server.wait_until_ready(_has_metrics(worker), READY_DEADLINE_S)
    for probe in (is_model_listed, are_all_workers_there):
        await dynamo.frontend.wait_until_ready(probe, READY_DEADLINE_S)


def _has_metrics(worker: Worker) -> Probe:
    async def probe(session: aiohttp.ClientSession) -> bool:
        async with session.get(worker.metrics_url) as response:
            return response.status == 200

    return probe
