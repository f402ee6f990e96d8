"""What this machine allows the gateway: open files, a right clock, room for batches. Read here, judged purely."""

from __future__ import annotations

import importlib.util
import platform
import resource
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from gateway.config.settings import Settings
from gateway.engines.base import Advice

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
