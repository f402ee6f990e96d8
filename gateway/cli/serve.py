"""`turngate serve`: one gateway process, or several workers under a supervisor."""

from __future__ import annotations

import argparse
import asyncio
import signal
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from gateway.cli import process
from gateway.cli.main import flags
from gateway.config import loading
from gateway.config.settings import Settings

if TYPE_CHECKING:
    from gateway.cluster.workers import WorkerIdentity

EXAMPLES = """\
examples:
  turngate serve --engine vllm://gpu1:8000 --engine vllm://gpu2:8000
  turngate serve --engine sglang://gpu1:30000 --set policy.ceiling=0.8
  TURNGATE_LISTEN_PORT=9000 turngate serve --config turngate.yaml
  turngate serve --engine vllm://gpu1:8000 --dump-config > turngate.yaml
"""


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    parser.add_argument("--host", metavar="ADDRESS", help="listen on this address (default: 127.0.0.1)")
    parser.add_argument("--port", help="listen on this port (default: 8080; 0: any free one)")
    parser.add_argument("--workers", metavar="NUMBER", help="run this many processes on this machine (default: 1)")
    parser.add_argument(
        "--batches", metavar="DIR", help="serve /v1/files and /v1/batches, and keep them in this directory"
    )
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)


def run(arguments: argparse.Namespace, settings: Settings) -> int:
    read = partial(loading.load, flags(arguments), arguments.config)
    if arguments.worker:
        return process.run_loop(serve_as_worker(settings, read))
    if settings.cluster.workers > 1:
        return process.run_loop(supervise(settings, arguments.typed))
    return process.run_loop(serve(settings, read))


async def serve(
    settings: Settings,
    read: Callable[[], Settings],
    place: WorkerIdentity | None = None,
    stop: asyncio.Event | None = None,
) -> int:
    """Serve until SIGINT or SIGTERM; then running requests may finish, unless a second signal follows. SIGHUP
    reads the configuration again."""
    from gateway.app import App
    from gateway.reload import Reloading
    from gateway.telemetry.loop_watch import LoopWatch

    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # its default ends the process, and Reloading starts later
    loading.refuse_exposure(settings)
    process.lift_file_limit()
    process.give_memory_back()
    process.switch_threads_soon()
    app, stop = App(settings, worker=place), stop or process.stop_signal()
    watch: LoopWatch | None = None
    try:
        await app.start()
        process.spare_collections()
        watch = LoopWatch(app.parts.observer.metrics.loop_lag.observe)
        watch.start()
        with Reloading(app, read):
            print(app.banner(), flush=True)
            await stop.wait()
    except OSError as error:
        return process.cannot_start(error)
    finally:
        if watch is not None:
            watch.stop()
        await app.stop()
    return 0


async def supervise(settings: Settings, typed: Sequence[str]) -> int:
    """Run the workers, each by the command line as it was typed."""
    from gateway.cli.check import refuse_unstartable
    from gateway.cluster.workers import supervise as run_workers

    refuse_unstartable(settings)
    try:
        return await run_workers(settings, typed)
    except OSError as error:
        return process.cannot_start(error)


async def serve_as_worker(settings: Settings, read: Callable[[], Settings]) -> int:
    """Serve as the worker that the supervisor names, and end when the supervisor does."""
    from gateway.cluster.workers import Supervised

    supervisor = await Supervised.connect()
    place, stop = await supervisor.place(), process.stop_signal()
    watch = asyncio.create_task(supervisor.gone())
    watch.add_done_callback(lambda _: stop.set())
    try:
        return await serve(settings, lambda: place.of(read()), place, stop)
    finally:
        watch.cancel()
