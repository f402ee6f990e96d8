"""`turngate demo`: a workload of agents, straight at an engine and through the gateway. The usual one is a fleet
whose contexts are too large for the engine."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from gateway.cli.demo_fleet import (
    CALL_FAILURES,
    Arm,
    Fleet,
    FleetShape,
    ModelClient,
    PlannedSession,
    SessionRecord,
    conclusions,
    draw,
    table,
)
from gateway.cli.demo_process import Progress, command
from gateway.cli.demo_workloads import WORKLOADS, engine_at, play_workload, served_model
from gateway.core.errors import ConfigError
from gateway.engines.kinds import parse_address
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


FLEET = "fleet"


def add_flags(parser: argparse.ArgumentParser) -> None:
    about = "; ".join(f"{name}: {workload.summary}" for name, workload in WORKLOADS.items())
    parser.add_argument(
        "workload",
        nargs="?",
        choices=(FLEET, *WORKLOADS),
        metavar="NAME",
        default=FLEET,
        help=f"{FLEET} (the default): 32 agents whose contexts do not fit; {about}",
    )
    parser.add_argument(
        "--engine",
        dest="demo_engine",
        metavar="URL",
        help="use this engine, such as vllm://host:8000, in place of the embedded one",
    )
    parser.add_argument(
        "--png",
        type=Path,
        metavar="FILE",
        default=Path("turngate-demo.png"),
        help="write the timeline of the fleet to this file (default: %(default)s)",
    )


def run(arguments: argparse.Namespace) -> int:
    url = arguments.demo_engine
    failures: list[BaseException] = []
    if url is not None:
        try:
            parse_address(url)
        except ValueError as error:
            raise ConfigError(str(error)) from None
    if not arguments.png.absolute().parent.is_dir():
        raise ConfigError(f"--png {arguments.png}: there is no such folder")
    work = _fleet(arguments.png, url) if arguments.workload == FLEET else play_workload(arguments.workload, url)
    try:
        asyncio.run(work)
    except* (*CALL_FAILURES, OSError) as group:
        failures.extend(group.exceptions)
    for failure in failures:
        print(f"turngate demo: {failure}", file=sys.stderr)
    return 1 if failures else 0


async def _fleet(png: Path, url: str | None) -> None:
    arms = await play() if url is None else await play_at(url)
    print("\n" + table(arms) + "\n")
    print("\n".join(conclusions(arms)))
    try:
        draw_png(arms[:2], png)
    except ImportError:
        print("\nFor the picture install the extra: pip install 'turngate[demo]'")
    else:
        print(f"\nTimeline: {png}")
    if url is None:
        print("In front of an engine of your own: turngate serve --engine vllm://host:8000")


async def play_at(url: str) -> list[Arm]:
    """Run the fleet straight at an engine and through a gateway. The arms share no text, so that the second finds
    nothing of the first in the cache."""
    arms = []
    for is_gated in (False, True):
        name = "gateway" if is_gated else "straight"
        sessions = [
            replace(session, id=f"{session.id} {name}", family_id=f"family {name}")
            for session in draw(SHAPE, seed=1)
        ]
        progress = Progress(name, sum(len(session.turns) for session in sessions))
        async with engine_at(url, is_gated) as base_url:
            upstream = AiohttpUpstream()
            try:
                client = ModelClient(upstream, base_url, await served_model(upstream, base_url))
                await client.warm_up()
                fleet = Fleet(client, progress.step, chars_per_token=client.chars_per_token)
                records = await fleet.run(sessions)
            finally:
                await upstream.close()
        progress.end()
        _refuse_failures(records)
        arms.append(Arm(name, 0, records, floor_tokens(sessions)))
    return arms


def _refuse_failures(records: Sequence[SessionRecord]) -> None:
    if failures := [record.failure for record in records if record.failure]:
        raise RuntimeError(f"{len(failures)} sessions failed, one with: {failures[0]}")


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
    _refuse_failures(records)
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
