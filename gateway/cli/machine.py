"""What this machine allows the gateway: open files, a right clock, room for batches. Read here, judged purely."""

from __future__ import annotations

import ctypes
import gc
import importlib.util
import platform
import resource
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from importlib.metadata import version
from pathlib import Path

from gateway.config.settings import Settings
from gateway.core.transport import Timeouts, Upstream, UpstreamCut, UpstreamRefused
from gateway.engines.base import Advice
from gateway.engines.monitor import RunningEngine

FILES_PER_TURN = 2
"""One connection to its client, one to its engine."""
OWN_FILES = 256
MOST_SKEW_S = 2.0
LEAST_FREE_BYTES = 2**30
FAST = ("uvloop", "httptools", "msgspec", "xxhash")
"""Of the extra `fast`."""


@dataclass(frozen=True, slots=True)
class Machine:
    """Found at one moment."""

    python: str
    open_files: int
    """The soft limit; -1: none."""
    most_open_files: int
    """To which it may be raised without rights; -1: none."""
    missing_extras: tuple[str, ...] = ()
    free_bytes: int | None = None
    """Where batches are kept. None: nowhere."""


def found(settings: Settings) -> Machine:
    """This machine, for a gateway of these settings."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    directory = settings.batches.directory
    return Machine(
        platform.python_version(),
        -1 if soft == resource.RLIM_INFINITY else soft,
        -1 if hard == resource.RLIM_INFINITY else hard,
        () if all(importlib.util.find_spec(name) for name in FAST) else ("fast",),
        _free_bytes(Path(directory)) if directory is not None else None,
    )


def advice(machine: Machine, settings: Settings, skews_s: Mapping[str, float | None]) -> Iterator[Advice]:
    """What to change. `skews_s`: by engine, how far its clock is ahead; None: it does not tell the time."""
    turns = settings.limits.queue_turns
    wanted = turns * FILES_PER_TURN + OWN_FILES
    if 0 <= machine.open_files < wanted:
        served = max(0, machine.open_files - OWN_FILES) // FILES_PER_TURN
        yield Advice(
            f"{machine.open_files:,} open files serve {served:,} clients at once, and limits.queue_turns lets"
            f" {turns:,} wait",
            f"ulimit -n {wanted}, LimitNOFILE={wanted} in the unit, or a lower limits.queue_turns",
        )
    for engine, skew_s in skews_s.items():
        if skew_s is not None and abs(skew_s) > MOST_SKEW_S:
            side = "ahead of" if skew_s > 0 else "behind"
            yield Advice(
                f"the clock of {engine} is {abs(skew_s):.0f} s {side} ours: logs and traces do not line up",
                "NTP on both machines (chrony, systemd-timesyncd)",
            )
    if machine.free_bytes is not None and machine.free_bytes < LEAST_FREE_BYTES:
        yield Advice(
            f"{machine.free_bytes / 2**20:.0f} MiB are free where batches are kept ({settings.batches.directory})",
            "more room there, or another batches.directory",
        )
    for extra in machine.missing_extras:
        yield Advice("it runs without the faster transport", f"pip install 'turngate[{extra}]'")
    if settings.listen.open and not settings.listen.is_loopback and not settings.keys:
        yield Advice(
            "whoever reaches this port may use the engines", "configure `keys`, or a network that is your own"
        )


def as_text(machine: Machine, settings: Settings, skews_s: Mapping[str, float | None]) -> str:
    """A block as those of the engines."""
    files = "no limit" if machine.open_files < 0 else f"{machine.open_files:,}"
    lines = [
        f"this gateway  {version('turngate')}",
        f"  {'python':<16}{machine.python}",
        f"  {'open files':<16}{files}",
    ]
    lines += [f"  ! {each.problem}\n    try: {each.remedy}" for each in advice(machine, settings, skews_s)]
    return "\n".join(lines)


def _free_bytes(directory: Path) -> int | None:
    """Of the nearest folder that is there: the gateway makes those below it."""
    for folder in (directory, *directory.absolute().parents):
        if folder.exists():
            return shutil.disk_usage(folder).free
    return None


# ---- what serving asks of the system and the interpreter

LARGE_BYTES, KEPT_BYTES = 4 * 2**20, 8 * 2**20
"""Above nearly all requests: what the system gives anew for each costs half a millisecond a megabyte."""
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of <malloc.h>


def lift_file_limit() -> None:
    """As many open files as the system lets us: every stream takes two, and a usual shell allows 1,024."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):  # a system may not let go as far as it says
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def spare_collections() -> None:
    """What has been made so far stays; what a request makes is nearly always freed without the collector, which at
    its defaults looks at all sessions again and again: a sixth of the CPU time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 5, 1_000)


def give_memory_back() -> None:
    """Blocks above LARGE_BYTES are the system's again once they are freed, and so is the end of the heap above
    KEPT_BYTES. Left alone, glibc raises both bounds with each larger block that is freed (up to 32 MiB), and later
    giants leave holes in the heap: resident memory that grows with each of them. Other C libraries lack `mallopt`.
    """
    with suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, LARGE_BYTES)
        mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES)


# ---- how far the clocks of engines are from ours, by the Date of an answer

DATE_STEP_S = 1.0
"""Date is cut to whole seconds."""


async def skew_s(
    upstream: Upstream, engine: RunningEngine, timeout_s: float, clock: Callable[[], float] = time.time
) -> float | None:
    """Seconds that the engine's clock is ahead, at the least that fits what was seen; None: it does not say."""
    address = engine.address
    headers = [("Authorization", f"Bearer {address.api_key}")] if address.api_key else []
    times = Timeouts(timeout_s, timeout_s, timeout_s)
    asked_at = clock()
    try:
        reply = await upstream.call("GET", f"{address.base_url}/v1/models", headers, None, times)
        told_at = clock()
        reply.close(reuse=False)
        date = parsedate_to_datetime(reply.headers["date"]).timestamp()
    except (UpstreamRefused, UpstreamCut, KeyError, ValueError):
        return None
    if date > told_at:
        return date - told_at
    return min(0.0, date + DATE_STEP_S - asked_at)
