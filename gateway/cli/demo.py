"""`turngate demo`: one fleet of agents, straight at an engine that is too small for it and through the gateway."""

from __future__ import annotations

import argparse
import asyncio
import re
import signal
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from gateway.cli.demo_fleet import Arm, Fleet, FleetShape, ModelClient, PlannedSession, SessionRecord, draw, table
from gateway.transport.aiohttp_upstream import AiohttpUpstream

SHAPE = FleetShape(
    num_sessions=32,
    shared_tokens=8_192,
    first_tokens=600,
    append_tokens=600,
    output_tokens=(24, 48),
    gap_s=(0.2, 0.5),
)
MODEL = "embedded"
BLOCK_TOKENS = 16


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--png",
        type=Path,
        metavar="FILE",
        default=Path("turngate-demo.png"),
        help="write the timeline to this file (default: %(default)s)",
    )


def run(arguments: argparse.Namespace) -> int:
    failures: list[BaseException] = []
    try:
        asyncio.run(_run(arguments.png))
    except* (RuntimeError, OSError) as group:
        failures.extend(group.exceptions)
    for failure in failures:
        print(f"turngate demo: {failure}", file=sys.stderr)
    return 1 if failures else 0


async def _run(png: Path) -> None:
    arms = await play()
    print("\n" + table(arms))
    try:
        draw_png(arms[:2], png)
    except ImportError:
        print("\nFor the picture install the extra: pip install 'turngate[demo]'")
    else:
        print(f"\nTimeline of the small pool: {png}")


async def play() -> list[Arm]:
    """Run the four arms: (straight, gateway) on half the fleet's peak, then on all of it."""
    sessions = draw(SHAPE, seed=1)
    peak_tokens = peak_union_tokens(sessions)
    num_turns = sum(len(session.turns) for session in sessions)
    print(
        f"{len(sessions)} agents, {num_turns} turns, one shared prefix of {SHAPE.shared_tokens:,} tokens; "
        f"together their contexts grow to {peak_tokens:,} tokens.\nThe engine is a model in real time "
        "(prefill 8 ms + 0.13 ms/token, decode 15 ms + 0.11 us/KV token + 0.04 ms/sequence).\n"
    )
    arms = []
    for pool_tokens in (peak_tokens // 2, peak_tokens):
        for is_gated in (False, True):
            arms.append(await _arm(sessions, pool_tokens, is_gated))
    return arms


async def _arm(sessions: list[PlannedSession], pool_tokens: int, is_gated: bool) -> Arm:
    """One run on a fresh engine."""
    name = "gateway" if is_gated else "straight"
    progress = Progress(f"{name}, KV pool {pool_tokens:,}", sum(len(session.turns) for session in sessions))
    async with AsyncExitStack() as stack:
        pool = f"embedded.capacity_tokens={pool_tokens // BLOCK_TOKENS * BLOCK_TOKENS}"
        base_url = await stack.enter_async_context(command(["engine", "--port", "0", "--set", pool]))
        if is_gated:
            engine = base_url.replace("http://", "vllm://")
            base_url = await stack.enter_async_context(command(["serve", "--port", "0", "--engine", engine]))
        upstream = AiohttpUpstream()
        stack.push_async_callback(upstream.close)
        records = await Fleet(ModelClient(upstream, base_url, MODEL), progress.step).run(sessions)
    progress.end()
    if failures := [record.failure for record in records if record.failure]:
        raise RuntimeError(f"{len(failures)} sessions failed, one with: {failures[0]}")
    return Arm(name, pool_tokens, records, floor_tokens(sessions))


def peak_union_tokens(sessions: list[PlannedSession]) -> int:
    """The fleet's contexts at their largest, the shared prefix counted once."""
    shared = sessions[0].shared_tokens
    return shared + sum(_last_tokens(session) - shared for session in sessions)


def _last_tokens(session: PlannedSession) -> int:
    return session.turns[-1].prompt_tokens + session.turns[-1].output_tokens


def floor_tokens(sessions: list[PlannedSession]) -> int:
    """Prompt tokens that an infinite cache would compute: answers are found again, all else once."""
    shared = sessions[0].shared_tokens
    outputs = sum(turn.output_tokens for session in sessions for turn in session.turns[:-1])
    return shared + sum(session.turns[-1].prompt_tokens - shared for session in sessions) - outputs


class Progress:
    """One line that counts turns; on a terminal it is redrawn in place."""

    def __init__(self, title: str, total: int) -> None:
        self._title, self._total, self._count = title, total, 0
        self._started_at = time.monotonic()
        self._is_terminal = sys.stdout.isatty()

    def step(self) -> None:
        self._count += 1
        if self._is_terminal:
            print(f"\r{self._line()}", end="", flush=True)

    def end(self) -> None:
        print(f"\r{self._line()}" if self._is_terminal else self._line(), flush=True)

    def _line(self) -> str:
        elapsed_s = time.monotonic() - self._started_at
        return f"{self._title}: {self._count}/{self._total} turns in {elapsed_s:.0f} s"


# ---- engine and gateway run as processes of their own, as a user would run them, on free loopback ports

READY_WITHIN_S = 30.0
STOP_WITHIN_S = 5.0
_ADDRESS = re.compile(rb"(?:OPENAI_BASE_URL=http|--engine vllm)://([\w.\[\]:]+:\d+)")


@asynccontextmanager
async def command(
    arguments: Sequence[str], stop: signal.Signals = signal.SIGTERM, stop_within_s: float = STOP_WITHIN_S
) -> AsyncIterator[str]:
    """Run `turngate ARGUMENTS` for the body of the block; the value is its base URL, without `/v1`. `stop`: the
    signal at the end of the block."""
    with TemporaryFile() as log:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "gateway", *arguments, stdout=asyncio.subprocess.PIPE, stderr=log
        )
        try:
            async with asyncio.timeout(READY_WITHIN_S):
                base_url = await _base_url(process)
            if base_url is None:
                log.seek(0)
                said = log.read().decode(errors="replace").strip().splitlines()
                raise RuntimeError(f"turngate {arguments[0]} stopped: {said[-1] if said else 'no message'}")
            yield base_url
        finally:
            await _stop(process, stop, stop_within_s)


async def _stop(process: asyncio.subprocess.Process, stop: signal.Signals, within_s: float) -> None:
    if process.returncode is not None:
        return
    process.send_signal(stop)
    try:
        async with asyncio.timeout(within_s):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()


async def _base_url(process: asyncio.subprocess.Process) -> str | None:
    """From the first address that the process prints: where it listens. None: it ended without one."""
    assert process.stdout is not None
    while line := await process.stdout.readline():
        found = _ADDRESS.search(line)
        if found:
            return f"http://{found[1].decode()}"
    return None


# ---- the picture: what each session was doing, straight above and through the gateway below

COLOURS = {"queued": "#c9ccd1", "prefill": "#d1495b", "decode": "#2e86ab", "tool": "#f0c75e"}


def draw_png(arms: Sequence[Arm], path: Path) -> None:
    """Write a PNG with one panel per arm. Needs matplotlib (extra `demo`)."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot
    from matplotlib.patches import Patch

    figure, panels = pyplot.subplots(len(arms), 1, figsize=(11, 3.4 * len(arms)), sharex=True, squeeze=False)
    for panel, arm in zip(panels[:, 0], arms, strict=True):
        _panel(panel, arm)
    panels[-1, 0].set_xlabel("seconds")
    handles = [Patch(color=colour, label=phase) for phase, colour in COLOURS.items()]
    figure.legend(handles=handles, loc="upper center", ncols=len(handles), frameon=False)
    figure.tight_layout(rect=(0, 0, 1, 0.96))
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def _panel(panel: Any, arm: Arm) -> None:
    ordered = sorted(arm.sessions, key=lambda session: session.turns[0].first_token_at)
    for row, session in enumerate(ordered):
        for phase, spans in phases(session).items():
            panel.broken_barh(spans, (row + 0.1, 0.8), facecolors=COLOURS[phase])
    panel.set_title(
        f"{arm.name}: mean session {arm.mean_s:.1f} s, {arm.recomputed_tokens:,} tokens recomputed",
        loc="left",
        fontsize=10,
    )
    panel.set_ylabel("session")
    panel.set_yticks([])
    panel.set_ylim(len(ordered), 0)
    panel.spines[["top", "right"]].set_visible(False)


def phases(session: SessionRecord) -> dict[str, list[tuple[float, float]]]:
    """(start, duration) of each phase of a session, in seconds."""
    spans: dict[str, list[tuple[float, float]]] = {phase: [] for phase in COLOURS}
    for turn, following in zip(session.turns, [*session.turns[1:], None], strict=True):
        spans["queued"].append((turn.wanted_at, turn.admitted_at - turn.wanted_at))
        spans["prefill"].append((turn.admitted_at, turn.first_token_at - turn.admitted_at))
        spans["decode"].append((turn.first_token_at, turn.done_at - turn.first_token_at))
        if following is not None:
            spans["tool"].append((turn.done_at, following.wanted_at - turn.done_at))
    return spans
