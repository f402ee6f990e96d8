"""What each command does. What a command alone needs is imported in it."""

from __future__ import annotations

import argparse
import asyncio
import errno
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from importlib import import_module
from typing import TYPE_CHECKING, Any

from gateway.access.client_keys import plain_keys
from gateway.config import loading
from gateway.config.settings import Settings
from gateway.core.errors import ConfigError
from gateway.telemetry import logs

if TYPE_CHECKING:
    from gateway.cluster.worker_identity import WorkerIdentity
    from gateway.core.fields import Json
    from gateway.core.transport import Upstream

_UNCONFIGURED = ("demo", "keys", "openapi")
_REPORTS = ("doctor", "tools")
KV_EVENTS_S = 0.5
"""How long `doctor` waits for the events of its own probes."""


def run(arguments: argparse.Namespace, flags: Mapping[str, Any]) -> int:
    """Run one parsed command; its exit status. Raises ConfigError."""
    if arguments.command in _UNCONFIGURED:
        return unconfigured(arguments)

    def read() -> Settings:
        return loading.load(flags, arguments.config)

    settings = read()
    if arguments.dump_config:
        print(loading.dump(settings), end="")
        return 0
    if arguments.command == "check":
        from gateway.cli.check import check

        return check(settings)
    is_report = arguments.command in _REPORTS  # it says itself what the log would say beside it
    logs.setup(settings.logging.model_copy(update={"level": "error"}) if is_report else settings.logging)
    match arguments.command:
        case "serve" if arguments.worker:
            return _run_loop(serve_as_worker(settings, read))
        case "serve" if settings.cluster.workers > 1:
            return _run_loop(supervise(settings, arguments.as_typed))
        case "serve":
            return _run_loop(serve(settings, read))
        case "engine":
            return _run_loop(engine(settings, arguments.engine_host, arguments.engine_port))
        case "tools":
            return _run_loop(tools(settings, arguments))
        case "top":
            return _run_loop(top(settings, arguments))
        case "batches":
            return _run_loop(batches(settings, arguments.gateway, arguments.key))
        case _:
            asked = arguments.gateway
            told = doctor(settings) if asked is None else doctor_of_gateway(settings, asked, arguments.key)
            return _run_loop(told)


def unconfigured(arguments: argparse.Namespace) -> int:
    """Runs what reads no configuration."""
    match arguments.command:
        case "demo":
            from gateway.cli.demo import run as run_demo

            return run_demo(arguments.png)
        case "openapi":
            from gateway.api import openapi

            return openapi.show()
        case _:
            from gateway.cli.keys import keys

            return keys(arguments)


async def supervise(settings: Settings, as_typed: Sequence[str]) -> int:
    """Runs several workers of the same command."""
    from gateway.cli.check import refuse_unstartable
    from gateway.cluster.supervisor import supervise as run_workers

    refuse_unstartable(settings)
    try:
        return await run_workers(settings, as_typed)
    except OSError as error:
        return _cannot_start(error)


async def serve_as_worker(settings: Settings, read: Callable[[], Settings]) -> int:
    """Serves in the place that the supervisor gives, and not without it."""
    from gateway.cluster.worker_identity import Supervised

    supervisor = await Supervised.connect()
    place, stop = await supervisor.place(), _stop_signal()
    watch = asyncio.create_task(supervisor.gone())
    watch.add_done_callback(lambda _: stop.set())
    try:
        return await serve(settings, lambda: place.of(read()), place, stop)
    finally:
        watch.cancel()


async def serve(
    settings: Settings,
    read: Callable[[], Settings],
    place: WorkerIdentity | None = None,
    stop: asyncio.Event | None = None,
) -> int:
    """Runs until SIGINT or SIGTERM; then running requests may finish. A second signal does not wait. At SIGHUP
    the configuration is read again."""
    from gateway.app import App
    from gateway.cli.machine import give_memory_back, lift_file_limit, spare_collections
    from gateway.reload import Reloading

    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # which would end what cannot follow it yet
    loading.refuse_exposure(settings)
    lift_file_limit()
    give_memory_back()
    app, stop = App(settings, place=place), stop or _stop_signal()
    try:
        await app.start()
        spare_collections()
        with Reloading(app, read):
            print(app.banner(), flush=True)
            await stop.wait()
    except OSError as error:
        return _cannot_start(error)
    finally:
        await app.stop()
    return 0


async def engine(settings: Settings, host: str, port: int) -> int:
    """Runs the embedded engine until SIGINT or SIGTERM."""
    from gateway.embedded.server import HostedEngine

    hosted, stop = HostedEngine(settings.embedded), _stop_signal()
    try:
        port = await hosted.start(host, port)
        size = f"{settings.embedded.capacity_tokens} KV tokens, {settings.embedded.slots} slots"
        print(f"Embedded engine, a model of one, serves {settings.embedded.model!r} ({size}).")
        print(f"In front of it: turngate serve --engine vllm://{host}:{port}", flush=True)
        await stop.wait()
    except OSError as error:
        return _cannot_start(error)
    finally:
        await hosted.stop()
    return 0


async def doctor(settings: Settings) -> int:
    """Asks every engine once, looks at this machine, and says what it found; 1 when an engine is not up."""
    from gateway.cli import machine
    from gateway.cli.machine import skew_s
    from gateway.embedded.server import hosted
    from gateway.engines.doctor import as_text
    from gateway.engines.kvevents import listening
    from gateway.engines.monitor import Monitor
    from gateway.engines.providers.calling import in_front
    from gateway.transport.aiohttp_upstream import AiohttpUpstream

    async with AsyncExitStack() as running:
        addresses = [await hosted(address, settings.embedded, running) for address in loading.addresses(settings)]
        connections = AiohttpUpstream()
        running.push_async_callback(connections.close)
        upstream = in_front(connections, addresses)
        monitor = Monitor(
            addresses, upstream, lambda fact: None, time.monotonic, timeout_s=settings.probing.timeout_s
        )
        running.push_async_callback(monitor.stop)
        await running.enter_async_context(listening(monitor.engines, lambda fact: None, lambda *counts: None))
        await monitor.start()
        await asyncio.sleep(KV_EVENTS_S if any(address.kv_events for address in addresses) else 0)
        up = [engine for engine in monitor.engines if engine.is_up]
        skews_s = {engine.name: await skew_s(upstream, engine, settings.probing.timeout_s) for engine in up}
        print(as_text(monitor.engines), machine.as_text(machine.found(settings), settings, skews_s), sep="\n\n")
        return 0 if all(engine.is_up for engine in monitor.engines) else 1


async def doctor_of_gateway(settings: Settings, url: str, key: str | None = None) -> int:
    """Asks a running gateway, once for each tenant that has a key here, which prompts break their siblings'
    prefix; 1 when it does not say."""
    from gateway.cli import prefix_breaks

    return await _told(settings, url, key, prefix_breaks.families, prefix_breaks.as_text)


async def tools(settings: Settings, arguments: argparse.Namespace) -> int:
    """Lists the configured tools, or calls one."""
    from gateway.cli.tools import called, listed

    if arguments.action == "list":
        return await listed(settings.tools)
    if arguments.name is None:
        raise ConfigError('tools call: say which one, as in `turngate tools call search \'{"q": "a"}\'`')
    return await called(settings.tools, arguments.name, arguments.arguments)


async def top(settings: Settings, arguments: argparse.Namespace) -> int:
    """Shows what a running gateway does."""
    from gateway.cli.top import top as watch

    return await watch(settings, arguments)


async def batches(settings: Settings, url: str, key: str | None = None) -> int:
    """Shows the batches of a running gateway, of each tenant that has a key here; 1 when it does not say."""
    from gateway.cli import batch_report

    return await _told(
        settings, url, key, batch_report.batches, lambda rows: batch_report.as_text(rows, time.time())
    )


async def _told(
    settings: Settings,
    url: str,
    key: str | None,
    ask: Callable[[Upstream, str, str, float], Awaitable[list[Json]]],
    as_text: Callable[[Iterable[Json]], str],
) -> int:
    """Prints what a running gateway says to each tenant that has a key here; 1 when it does not say. `key`: a
    reference to the one to show instead. Raises ConfigError."""
    from gateway.cli.remote import NotTold
    from gateway.transport.aiohttp_upstream import AiohttpUpstream

    keys = plain_keys(settings).values() if key is None else [loading.secret(key)]
    upstream, timeout_s = AiohttpUpstream(), settings.probing.timeout_s
    try:
        print(as_text([row for shown in keys for row in await ask(upstream, url, shown, timeout_s)]))
    except NotTold as error:
        print(f"turngate: {error}", file=sys.stderr)
        return 1
    finally:
        await upstream.close()
    return 0


def _stop_signal() -> asyncio.Event:
    """Set by the first SIGINT or SIGTERM; the next one has its default effect and ends the process."""
    stop, loop = asyncio.Event(), asyncio.get_running_loop()

    def on_signal() -> None:
        stop.set()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, on_signal)
    return stop


def _run_loop(main: Coroutine[Any, Any, int]) -> int:
    try:
        new_loop = import_module("uvloop").new_event_loop  # of the extra `fast`
    except ImportError:
        new_loop = None
    with asyncio.Runner(loop_factory=new_loop) as runner:
        return runner.run(main)


def _cannot_start(error: OSError) -> int:
    where = f": {error.filename}" if error.filename else ""
    hint = " (--port takes another, 0 any free one)" if error.errno == errno.EADDRINUSE else ""
    print(f"turngate: cannot start: {error.strerror or error}{where}{hint}", file=sys.stderr)
    return 1
