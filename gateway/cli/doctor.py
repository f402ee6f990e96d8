"""`turngate doctor`: what the engines and this machine are, what would make them work better, and, of a running
gateway, which prompts break their siblings' prefix."""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import platform
import resource
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from importlib.metadata import version
from pathlib import Path

from gateway.cli import process, remote
from gateway.config import loading
from gateway.config.settings import Settings
from gateway.core.fields import Json
from gateway.core.transport import Timeouts, Upstream, UpstreamCut, UpstreamRefused
from gateway.embedded.server import started_in_process
from gateway.engines import doctor as engines_doctor
from gateway.engines.base import Advice, EngineAddress
from gateway.engines.monitor import KvEventHearing, Monitor
from gateway.engines.poller import RunningEngine
from gateway.engines.providers.upstream import ProviderUpstream
from gateway.engines.services import engines_behind
from gateway.transport.aiohttp_upstream import AiohttpUpstream

KV_EVENTS_S = 0.5
"""Waiting time for the KV events of the doctor's own probes."""


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--gateway",
        metavar="URL",
        help="ask this running gateway instead which prompts break their siblings' prefix",
    )
    remote.add_key_flag(parser)


def run(arguments: argparse.Namespace, settings: Settings) -> int:
    if arguments.gateway is not None:
        return process.run_loop(examine_prompts(settings, arguments.gateway, arguments.key))
    return process.run_loop(examine_engines(settings))


async def examine_engines(settings: Settings) -> int:
    """Probe every engine once, look at this machine, and print the findings; 1 when an engine is not up."""
    async with AsyncExitStack() as running:
        addresses = [
            await started_in_process(address, settings.embedded, running)
            for configured in loading.addresses(settings)
            for address in await _each(configured)
        ]
        connections = AiohttpUpstream()
        running.push_async_callback(connections.close)
        upstream = ProviderUpstream(connections, addresses, time.monotonic)
        kv_events = KvEventHearing(lambda fact: None, lambda *counts: None)
        running.push_async_callback(kv_events.stop)
        monitor = Monitor(
            addresses,
            upstream,
            lambda fact: None,
            time.monotonic,
            timeout_s=settings.probing.timeout_s,
            came_up=lambda: kv_events.follow(monitor.engines),
        )
        running.push_async_callback(monitor.stop)
        await kv_events.follow(monitor.engines)
        await monitor.start()
        await asyncio.sleep(KV_EVENTS_S if any(engine.kv_event_sources for engine in monitor.engines) else 0)
        up = [engine for engine in monitor.engines if engine.is_up]
        skews_s = {engine.name: await skew_s(upstream, engine, settings.probing.timeout_s) for engine in up}
        print(
            engines_doctor.as_text(monitor.engines),
            machine_as_text(look_at_machine(settings), settings, skews_s),
            sep="\n\n",
        )
        return 0 if all(engine.is_up for engine in monitor.engines) else 1


async def _each(address: EngineAddress) -> list[EngineAddress]:
    """Return the engines that an address stands for; itself where its name cannot be resolved."""
    try:
        return await engines_behind(address) if address.resolves_all else [address]
    except OSError:
        return [address]


# ---- this machine: open files, room for batches, extras


RUNNING_TURNS = 1_024
"""More than a handful of engines run at once. Each takes one connection to its client and one to its engine; a
turn that waits takes the first alone."""
OWN_FILES = 256
MOST_SKEW_S = 2.0
LEAST_FREE_BYTES = 2**30
FAST = ("uvloop", "msgspec", "xxhash")
"""Of the extra `fast`."""


@dataclass(frozen=True, slots=True)
class Machine:
    """This machine at one moment."""

    python: str
    open_files: int
    """The hard limit, to which `turngate serve` raises the soft one; -1: none."""
    missing_extras: tuple[str, ...] = ()
    free_bytes: int | None = None
    """On the disk of the batches. None: there are no batches."""


def look_at_machine(settings: Settings) -> Machine:
    """Look at this machine, for a gateway of these settings."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    directory = settings.batches.directory
    return Machine(
        platform.python_version(),
        -1 if hard == resource.RLIM_INFINITY else hard,
        () if all(importlib.util.find_spec(name) for name in FAST) else ("fast",),
        _free_bytes(Path(directory)) if directory is not None else None,
    )


def advice(machine: Machine, settings: Settings, skews_s: Mapping[str, float | None]) -> Iterator[Advice]:
    """Yield what to change. `skews_s` says by engine how far its clock is ahead; None: it states no time."""
    turns = settings.limits.queue_turns
    running = min(RUNNING_TURNS, turns)
    wanted = turns + 2 * running + OWN_FILES
    if 0 <= machine.open_files < wanted:
        spare = max(0, machine.open_files - OWN_FILES)
        served = max(spare // 2, spare - running)
        yield Advice(
            f"{machine.open_files:,} open files serve {served:,} clients at once, and limits.queue_turns lets"
            f" {turns:,} wait",
            f"ulimit -n {wanted}, LimitNOFILE={wanted} in the unit, or a lower limits.queue_turns",
        )
    for engine, skew_s in skews_s.items():
        if skew_s is not None and abs(skew_s) > MOST_SKEW_S:
            side = "ahead of" if skew_s > 0 else "behind"
            yield Advice(
                f"the clock of {engine} is {abs(skew_s):.0f} s {side} this machine's:"
                " logs and traces do not line up",
                "NTP on both machines (chrony, systemd-timesyncd)",
            )
    if machine.free_bytes is not None and machine.free_bytes < LEAST_FREE_BYTES:
        yield Advice(
            f"{machine.free_bytes / 2**20:.0f} MiB are free where batches are kept ({settings.batches.directory})",
            "more room there, or another batches.directory",
        )
    for extra in machine.missing_extras:
        yield Advice("it runs without the faster event loop, reader and hash", f"pip install 'turngate[{extra}]'")
    if settings.listen.open and not settings.listen.is_loopback and not settings.keys:
        yield Advice(
            "every host that reaches this port may use the engines",
            "configure `keys`, or a network that is your own",
        )


def machine_as_text(machine: Machine, settings: Settings, skews_s: Mapping[str, float | None]) -> str:
    """Return a block like those of the engines."""
    files = "no limit" if machine.open_files < 0 else f"{machine.open_files:,}"
    lines = [
        f"this gateway  {version('turngate')}",
        f"  {'python':<16}{machine.python}",
        f"  {'open files':<16}{files}",
    ]
    lines += [f"  ! {each.problem}\n    try: {each.remedy}" for each in advice(machine, settings, skews_s)]
    return "\n".join(lines)


def _free_bytes(directory: Path) -> int | None:
    """Return those of the nearest folder that exists: the gateway makes those below it."""
    for folder in (directory, *directory.absolute().parents):
        if folder.exists():
            return shutil.disk_usage(folder).free
    return None


# ---- clocks of engines, by the Date of an answer

DATE_STEP_S = 1.0
"""A Date has whole seconds."""


async def skew_s(
    upstream: Upstream, engine: RunningEngine, timeout_s: float, clock: Callable[[], float] = time.time
) -> float | None:
    """Return by how many seconds at least the engine's clock is ahead; None: it states no time."""
    address = engine.address
    headers = [("Authorization", f"Bearer {address.api_key}")] if address.api_key else []
    times = Timeouts(timeout_s, timeout_s, timeout_s)
    sent_at = clock()
    try:
        reply = await upstream.call("GET", f"{address.base_url}/v1/models", headers, None, times)
        answered_at = clock()
        reply.close(reuse=False)
        date = parsedate_to_datetime(reply.headers["date"]).timestamp()
    except (UpstreamRefused, UpstreamCut, KeyError, ValueError):
        return None
    if date > answered_at:
        return date - answered_at
    return min(0.0, date + DATE_STEP_S - sent_at)


# ---- prompts that break their siblings' prefix at a running gateway


async def examine_prompts(settings: Settings, url: str, key: str | None = None) -> int:
    """Print the families that break, of each tenant whose key is configured; 1 when the gateway gives none."""
    return await remote.report(settings, url, key, "/v1/turngate/families", "families", breaks_as_text)


def breaks_as_text(families: Iterable[Json]) -> str:
    """Return two lines for each family that breaks, the most expensive first."""
    broken = [row for row in families if row.get("prefix_breaks")]
    broken.sort(key=lambda row: -row["prefix_breaks"]["wasted_tokens"])
    return "\n".join(map(_lines, broken)) or "No prefix breaks: siblings share what they can."


def _lines(row: Json) -> str:
    found = row["prefix_breaks"]
    last = found["last"]
    turns = f", {found['turns']} later turns their own" if found.get("turns") else ""
    return (
        f"family {row['family']}: {found['breaks']} of {found['sessions']} sessions break their siblings' prefix"
        f"{turns}, {found['wasted_tokens']:,} tokens wasted ({found['wasted_tokens_per_break']:,} each)\n"
        f"  last: {last['span_chars']} characters in the {last['part']}, {last['at_chars']:,} from the start"
        f" ({last['at_share']:.0%}), like a {last['kind']}; {last['shared_chars']:,} equal characters behind it"
    )
