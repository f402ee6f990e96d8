"""`turngate why`: where the time of a session, an agent or the fleet goes, and one line of remedy."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import quote

from gateway.api.why import ALL_PARTS, explained
from gateway.api.why_facts import FactRows
from gateway.cli import process, remote
from gateway.cli.remote import NoPage
from gateway.cli.top import key_of
from gateway.config.settings import Settings
from gateway.core.errors import ConfigError
from gateway.core.fields import Json
from gateway.telemetry import factlog
from gateway.transport.aiohttp_upstream import AiohttpUpstream

NAMES: Mapping[str, str] = {
    "gate": "waiting at the gate",
    "engine_queue": "queued in the engine *",
    "prefill": "prefill",
    "beside": "prefill of other calls",
    "recompute": "recomputed prompt",
    "decode": "decode",
    "tools": "tools",
    "client": "client, between turns",
    "failed": "calls without an answer",
    "gateway": "gateway",
}
"""The parts of a session's time, for people."""
assert tuple(NAMES) == ALL_PARTS
BAR_CELLS = 30
MOST_TOOLS, MOST_TURNS = 5, 30
LEAST_UNCLEAR = 0.05
"""Part of the time from which on it is said that it may be the engine's queue or not."""


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "of",
        nargs="?",
        default="",
        metavar="SESSION|AGENT|RECEIPT",
        help="an id of a session as `turngate top` shows it, the client's own id of it, the name of an agent, or "
        "the id of a receipt (default: the whole fleet)",
    )
    parser.add_argument(
        "--facts",
        type=Path,
        metavar="FILE",
        help="explain a log of facts (logging.facts) instead of a running gateway: the last start in it; it names "
        "sessions by their ids only",
    )
    remote.add_gateway_flags(parser)


def run(arguments: argparse.Namespace, settings: Settings) -> int:
    if arguments.facts is not None:
        return of_facts(arguments.facts, arguments.of)
    return process.run_loop(why(settings, arguments))


def of_facts(path: Path, of: str) -> int:
    """Print the explanation of a log; 1 when it has no such session. Raises ConfigError."""
    try:
        rows = FactRows(factlog.lines(path))
    except (OSError, ValueError) as error:
        raise ConfigError(f"--facts {path}: {getattr(error, 'strerror', None) or error}") from None
    page = explained(of, rows.of(of), rows.fleet())
    if page is None:
        print(f"turngate: {path} has no call of {of!r} that has ended", file=sys.stderr)
        return 1
    print("\n".join(lines(page)))
    return 0


async def why(settings: Settings, arguments: argparse.Namespace) -> int:
    """Print the explanation; 1 when the gateway gives none. Raises ConfigError."""
    path = "/v1/turngate/why" + (f"?of={quote(arguments.of, safe='')}" if arguments.of else "")
    upstream = AiohttpUpstream()
    try:
        key = key_of(settings, arguments.key)
        page = await remote.page(upstream, arguments.gateway, path, key, settings.probing.timeout_s)
    except NoPage as error:
        print(f"turngate: {error}", file=sys.stderr)
        return 1
    finally:
        await upstream.close()
    print("\n".join(lines(page)))
    return 0


def lines(page: Json) -> Iterator[str]:
    """Yield the explanation as text."""
    if page["turns"]:
        yield from _head(page)
        for row in page["timeline"][-MOST_TURNS:]:
            yield from _turn(row)
        yield from ["", *_split(page)]
        if not page["of"]:
            yield from _fleet(page)
    for one in page["now"]:
        waits = (
            f" for {'room' if one['waits_for'] == 'residency' else one['waits_for']}" if "waits_for" in one else ""
        )
        yield f"now: {one['session'][:12]} {one['phase']}{waits} since {one['phase_s']:.1f} s (turn {one['turn']})"
    yield f"=> {page['remedy']}"


def _head(page: Json) -> Iterator[str]:
    num, shown = page["num_sessions"], page["shown"]
    sessions, turns = _counted(num, "session"), _counted(page["turns"], "request")
    if not page["of"]:
        yield f"the fleet: the last {turns} of {sessions}, within {_s(page['window_ms'])}"
        return
    names = [shown.get("agent", ""), shown.get("client_session", ""), shown.get("tenant", "")]
    of = f" ({', '.join(filter(None, names))})" if any(names) else ""
    yield f"session {shown['session']}{of}: {_counted(shown['turns'], 'request')} in {_s(shown['measured_ms'])}"
    if num > 1:
        yield f"the latest of {sessions} of this name, whose {turns} are summed below"


def _turn(row: Json) -> Iterator[str]:
    parts = row["time_ms"]
    spent = [f"{_SHORT.get(name, name)} {_s(parts[name])}" for name in ALL_PARTS if parts.get(name, 0.0) >= 1.0]
    outcome = "" if row.get("outcome") == "answered" else f", {row.get('outcome')}"
    side = ", a side request" if row.get("kind") == "side" else ""
    turn = f"turn {row.get('turn', '?')}{side}: {_s(row['total_ms'])}"
    yield f"  {_s(row['began_ms']):>8}  {turn} = {' + '.join(spent)}{outcome}"
    if "waited_for" in row:
        yield f"{'':12}at the gate for {_waited(row)}"
    if "prompt_tokens" in row:
        computed = row["prompt_tokens"] - row.get("cached_tokens", 0)
        again = f" ({row['recomputed_tokens']} of them again)" if row.get("recomputed_tokens") else ""
        written = f", {row['output_tokens']} written" if "output_tokens" in row else ""
        where = f", at {row['replica']}" if "replica" in row else ""
        cached = row.get("cached_tokens", 0)
        yield f"{'':12}prompt: {cached} tokens cached, {computed} computed{again}{written}{where}"
    for name, ms in row.get("tools", {}).items():
        yield f"{'':12}tool {name} {_s(ms)}, in the gateway"
    if "then_ms" in row and row["then_ms"] >= 1.0:
        yield f"{'':12}then {'tool ' + row['then'] if 'then' in row else 'the client'} {_s(row['then_ms'])}"


_SHORT = {"engine_queue": "engine queue*", "beside": "others' prefill", "recompute": "recompute"}


def _waited(row: Json) -> str:
    what = {"share": "its tenant's share", "slot": "a slot", "replica": "a replica"}.get(row["waited_for"], "room")
    behind = [session[:12] for session in row.get("waited_behind", ())]
    if others := row.get("waited_behind_others"):
        behind.append(f"{others} of other tenants")
    text = what + (f", behind {', '.join(behind)}" if behind else "")
    if row.get("waited_before"):
        text += f" and {row['waited_before']} that waited"
    return text + (f"; expected {_s(row['wait_estimate_ms'])}" if row.get("wait_estimate_ms") else "")


def _split(page: Json) -> Iterator[str]:
    split, all_ms = page["split"], sum(page["split"].values()) or 1.0
    for name in sorted(split, key=lambda name: -split[name]):
        share = split[name] / all_ms
        if share >= 0.005:
            bar = "#" * max(1, round(BAR_CELLS * share))
            yield f"  {NAMES[name]:<24} {_s(split[name]):>9} {share:>4.0%}  {bar}"
    tools = page["tools"]
    for name in sorted(tools, key=lambda name: -tools[name])[:MOST_TOOLS]:
        yield f"    tool {name:<19} {_s(tools[name]):>9} {tools[name] / all_ms:>4.0%}"
    yield f"  {'sum':<24} {_s(sum(split.values())):>9}, measured {_s(page['measured_ms'])}"
    if "engine_queue" in split:
        yield "  * inferred from the engine's counts and the calls before it: engines do not state it of a call"
    if (unclear_ms := page["queue_unclear_ms"]) >= LEAST_UNCLEAR * all_ms:
        text = f"the engine's queue may be {_s(unclear_ms)} longer or shorter, as no poll of it came in time"
        yield f"  unclear: {text}"


def _fleet(page: Json) -> Iterator[str]:
    held_s, saved_s = (sum(one[f"gate_{what}_s"] for one in page["replicas"]) for what in ("held", "saved"))
    if held_s or saved_s:
        yield f"gate, since the start: saved {saved_s:.0f} s of sessions, cost {held_s:.0f} s"
    for one in page["sessions"][:3]:
        name = f"{one['session']} {one['agent']}" if "agent" in one else one["session"]
        yield f"slowest: {name}, {_s(one['measured_ms'])}, {_counted(one['turns'], 'request')}"


def _counted(num: int, noun: str) -> str:
    return f"{num} {noun}" if num == 1 else f"{num} {noun}s"


def _s(ms: float) -> str:
    return f"{ms / 1000:.2f} s" if ms < 99_995 else f"{ms / 1000:.0f} s"
