"""`turngate engine`: the embedded engine alone."""

from __future__ import annotations

import argparse

from gateway.cli import process
from gateway.config.settings import Settings
from gateway.embedded.server import InProcessEngine


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--host",
        dest="engine_host",
        default="127.0.0.1",
        metavar="ADDRESS",
        help="listen on this address (default: %(default)s)",
    )
    parser.add_argument(
        "--port",
        dest="engine_port",
        default=8000,
        type=int,
        metavar="PORT",
        help="listen on this port (default: %(default)s; 0: any free one)",
    )


def run(arguments: argparse.Namespace, settings: Settings) -> int:
    return process.run_loop(engine(settings, arguments.engine_host, arguments.engine_port))


async def engine(settings: Settings, host: str, port: int) -> int:
    """Serve until SIGINT or SIGTERM."""
    embedded, stop = InProcessEngine(settings.embedded), process.stop_signal()
    try:
        port = await embedded.start(host, port)
        size = f"{settings.embedded.capacity_tokens} KV tokens, {settings.embedded.slots} slots"
        print(f"Embedded engine, which imitates a model, serves {settings.embedded.model!r} ({size}).")
        print(f"In front of it: turngate serve --engine vllm://{host}:{port}", flush=True)
        await stop.wait()
    except OSError as error:
        return process.cannot_start(error)
    finally:
        await embedded.stop()
    return 0
