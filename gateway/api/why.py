"""Why a session is slow, or the fleet: where the time went, and one line of remedy. It is made of receipts.

The parts of a session's time sum to the time from its first request to its last answer. Requests of a session that
run at the same time count once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

from gateway.core.fields import Json
from gateway.telemetry.receipts import PARTS
from policies.fleet import FleetView, ReplicaView

WORK = ("prefill", "decode", "client")
"""Parts that no queue, no eviction and no tool is to blame for."""
ALL_PARTS = (
    "gate",
    "engine_queue",
    "prefill",
    "beside",
    "recompute",
    "decode",
    "tools",
    "client",
    "failed",
    "gateway",
)
LEAST_SHARE = 0.2
"""Part of the time from which on a wait is the cause, even if the work itself takes longer."""
MOSTLY = 0.5
MOST_SESSIONS, MOST_ROWS = 10, 100


def parts_ms(row: Json) -> dict[str, float]:
    """Return where the time of one request went, by its receipt. They sum to its total."""
    spent: Mapping[str, float] = row.get("time_ms") or {}
    parts = {name: spent.get(name, 0.0) for name in PARTS}
    own_ms = max(0.0, parts["prefill"] - parts["beside"])
    computed = max(1, (row.get("prompt_tokens") or 0) - (row.get("cached_tokens") or 0))
    parts["recompute"] = own_ms * min(1.0, (row.get("recomputed_tokens") or 0) / computed)
    parts["prefill"] = own_ms - parts["recompute"]
    del parts["queue_beside"], parts["queue_unclear"]
    parts["gateway"] = max(0.0, row["total_ms"] - sum(parts.values()))
    return {name: ms for name, ms in parts.items() if ms}


def _by_tool(row: Json, tools_ms: float) -> dict[str, float]:
    """Return the time in tools of the gateway by their names; those that ran at once share it."""
    ran = [tool for round_ in row.get("rounds") or () for tool in round_["tools"]]
    sum_ms = sum(tool["ms"] for tool in ran)
    shares: dict[str, float] = defaultdict(float)
    for tool in ran:
        shares[tool["name"]] += tools_ms * (tool["ms"] / sum_ms if sum_ms else 1 / len(ran))
    return shares


# ---- one session


class SessionTime:
    """The time of one session: `rows` are its receipts."""

    def __init__(self, rows: Iterable[Json]) -> None:
        self.rows = sorted(rows, key=lambda row: -(row["ended_ago_s"] + row["total_ms"] / 1000))
        self.split: dict[str, float] = defaultdict(float)
        self.tools: dict[str, float] = defaultdict(float)
        self.waited_for: dict[str, float] = defaultdict(float)
        self.queue_beside_ms = self.queue_unclear_ms = 0.0
        self.timeline: list[Json] = []
        first_ms = -_began_ms(self.rows[0])
        latest_ms = 0.0
        called: Sequence[str] = ()
        for row in self.rows:
            began_ms = first_ms + _began_ms(row)
            self._saw_gap(began_ms - latest_ms, called)
            latest_ms = self._saw_turn(row, began_ms, latest_ms)
            called = row.get("called") or ()
        self.measured_ms = latest_ms

    def _saw_gap(self, gap_ms: float, called: Sequence[str]) -> None:
        """Count the time since the answer before: in the tools that it called, else at the client."""
        if gap_ms <= 0.0 or not self.timeline:
            return
        name = "+".join(called)
        self.split["tools" if called else "client"] += gap_ms
        if called:
            self.tools[name] += gap_ms
        self.timeline[-1]["then_ms"] = round(gap_ms, 1)
        if called:
            self.timeline[-1]["then"] = name

    def _saw_turn(self, row: Json, began_ms: float, latest_ms: float) -> float:
        """Count a request, without the part of it that others of the session cover. Return the latest end."""
        total_ms, parts = row["total_ms"], parts_ms(row)
        ended_ms = began_ms + total_ms
        seen = min(total_ms, ended_ms - max(0.0, latest_ms)) / total_ms if total_ms else 0.0
        tools = _by_tool(row, parts.get("tools", 0.0))
        spent = row.get("time_ms", {})
        self.queue_beside_ms += max(0.0, seen) * spent.get("queue_beside", 0.0)
        self.queue_unclear_ms += max(0.0, seen) * spent.get("queue_unclear", 0.0)
        for sums, more in ((self.split, parts), (self.tools, tools)):
            for name, ms in more.items():
                sums[name] += max(0.0, seen) * ms
        if "waited_for" in row:
            self.waited_for[row["waited_for"]] += max(0.0, seen) * parts.get("gate", 0.0)
        shown = {name: row[name] for name in _SHOWN if name in row}
        rounded = {name: round(ms, 1) for name, ms in parts.items()}
        self.timeline.append({"began_ms": round(began_ms, 1), "time_ms": rounded, **shown})
        if tools:
            self.timeline[-1]["tools"] = {name: round(ms, 1) for name, ms in tools.items()}
        return float(max(latest_ms, ended_ms))

    def summary(self) -> Json:
        names = {name: row[name] for row in self.rows for name in _NAMES if name in row}
        return names | {"turns": len(self.rows), "measured_ms": round(self.measured_ms, 1)}


_NAMES = ("session", "agent", "client_session", "tenant")
_SHOWN = (
    *("id", "turn", "kind", "outcome", "replica", "total_ms", "ttft_ms", "prompt_tokens", "cached_tokens"),
    *("recomputed_tokens", "output_tokens", "waited_for", "waited_behind", "waited_behind_others"),
    *("waited_before", "wait_estimate_ms"),
)


def _began_ms(row: Json) -> float:
    """Return when the request began, before now."""
    return -1000.0 * float(row["ended_ago_s"]) - float(row["total_ms"])


# ---- a session, an agent, or the fleet


def explained(wanted: str, rows: Iterable[Json], fleet: FleetView, now: Sequence[Json] = ()) -> Json | None:
    """Return where the time of these requests went, and the remedy. None: there are none of that name.

    `wanted`: the name of the session or agent, empty for the fleet; `now`: its sessions that have a request in the
    gateway."""
    sessions = [SessionTime(own) for own in _grouped(rows)]
    if wanted and not sessions and not now:
        return None
    rows = [row for session in sessions for row in session.rows]
    latest = max(sessions, key=lambda session: -session.rows[-1]["ended_ago_s"]) if wanted and sessions else None
    slowest = sorted(sessions, key=lambda session: -session.measured_ms)[:MOST_SESSIONS]
    ended = max((-1000.0 * row["ended_ago_s"] for row in rows), default=0.0)
    page: Json = {
        "of": wanted,
        "window_ms": round(ended - min(map(_began_ms, rows), default=0.0), 1),
        "turns": len(rows),
        "num_sessions": len(sessions),
        "measured_ms": round(sum(session.measured_ms for session in sessions), 1),
        "queue_beside_ms": round(sum(session.queue_beside_ms for session in sessions), 1),
        "queue_unclear_ms": round(sum(session.queue_unclear_ms for session in sessions), 1),
        "split": _summed(session.split for session in sessions),
        "tools": _summed(session.tools for session in sessions),
        "waited_for": _summed(session.waited_for for session in sessions),
        "tokens": {name: sum(row.get(f"{name}_tokens") or 0 for row in rows) for name in _COUNTED},
        "failures": dict(sorted(_failures(rows).items())),
        "sessions": [session.summary() for session in slowest],
        "timeline": [] if latest is None else latest.timeline[-MOST_ROWS:],
        "shown": {} if latest is None else latest.summary(),
        "now": list(now),
        "replicas": list(map(_replica, fleet.replicas)),
    }
    return judged(page)


_COUNTED = ("prompt", "cached", "recomputed", "output")


def _grouped(rows: Iterable[Json]) -> Iterable[list[Json]]:
    sessions: dict[str, list[Json]] = defaultdict(list)
    for row in rows:
        if "session" in row and "total_ms" in row:
            sessions[row["session"]].append(row)
    return sessions.values()


def _failures(rows: Iterable[Json]) -> dict[str, int]:
    """Return how many calls each replica failed before its first byte."""
    found: dict[str, int] = defaultdict(int)
    for note in (note for row in rows for note in row.get("notes") or ()):
        replica, failed, _ = note.partition(" failed before its first byte")
        if failed:
            found[replica] += 1
    return found


def _summed(each: Iterable[Mapping[str, float]]) -> dict[str, float]:
    sums: dict[str, float] = defaultdict(float)
    for one in each:
        for name, ms in one.items():
            sums[name] += ms
    return {name: round(ms, 1) for name, ms in sums.items()}


def _replica(replica: ReplicaView) -> Json:
    return {
        "id": replica.id,
        "is_up": replica.is_healthy,
        "slots": replica.slots,
        "engine_slots": replica.engine_slots,
        "engine_waiting": replica.engine_waiting,
        "capacity_tokens": replica.capacity_tokens,
        "gate_held_s": round(replica.gate_held_s, 1),
        "gate_saved_s": round(replica.gate_saved_s, 1),
    }


def joined_why(pages: Sequence[Json]) -> Json:
    """Add the times of several members. A timeline is of the member that had most of the session's turns."""
    first = max(pages, key=lambda page: len(page["timeline"]))
    sums = {name: sum(page[name] for page in pages) for name in _ADDED}
    tables = {
        name: _summed(page[name] for page in pages)
        for name in ("split", "tools", "waited_for", "tokens", "failures")
    }
    sessions = sorted((one for page in pages for one in page["sessions"]), key=lambda one: -one["measured_ms"])
    joined = first | sums | tables | {"sessions": sessions[:MOST_SESSIONS]}
    joined["window_ms"] = max(page["window_ms"] for page in pages)
    joined["now"] = [one for page in pages for one in page["now"]]
    return judged(joined)


_ADDED = ("turns", "num_sessions", "measured_ms", "queue_beside_ms", "queue_unclear_ms")


# ---- the cause and its remedy


def judged(page: Json) -> Json:
    """Return the page with the cause that comes first, and its remedy.

    The cause is the part with the most time. Where that is work, a wait of at least LEAST_SHARE goes before it.
    """
    split: Mapping[str, float] = page["split"]
    if not page["turns"]:
        return page | {"cause": "", "remedy": "No request has ended yet: ask again when one has."}
    all_ms = sum(split.values()) or 1.0
    waits = {name: ms for name, ms in split.items() if name not in WORK and ms >= LEAST_SHARE * all_ms}
    cause = max(waits or split or {"gateway": 0.0}, key=lambda name: (waits or split).get(name, 0.0))
    if cause == "gate":
        waited_for: Mapping[str, float] = page["waited_for"]
        cause = max(waited_for, key=lambda name: waited_for[name], default="gate")
    if cause == "engine_queue" and page["queue_beside_ms"] > MOSTLY * split[cause]:
        cause = "beside"  # the engine was at work on prompts: more slots would not help
    dead = [one["id"] for one in page["replicas"] if not one["is_up"]] or list(page["failures"])
    if dead and cause in ("room", "slot", "replica", "engine_queue", "failed"):
        share = (split.get("gate", 0.0) + split.get("engine_queue", 0.0) + split.get("failed", 0.0)) / all_ms
        text = (
            f"{_listed(dead)} failed or is down, and {share:.0%} of the time goes to its calls and to queues for"
        )
        return page | {"cause": "failed", "remedy": f"{text} the rest: see /health, and bring it back."}
    share = split.get("gate" if cause in _GATE else cause, 0.0) / all_ms
    return page | {"cause": cause, "remedy": _REMEDIES[cause](page, share)}


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (" and others" if len(names) > 3 else "")


def _room(page: Json, share: float) -> str:
    waiting = page["waited_for"]["room"] / max(1.0, page["window_ms"])
    mean_tokens = (page["tokens"]["prompt"] + page["tokens"]["output"]) / page["turns"]
    tokens = max(1.0, waiting) * mean_tokens
    held_s, saved_s = (sum(one[f"gate_{what}_s"] for one in page["replicas"]) for what in ("held", "saved"))
    text = (
        f"The caches are full, and {share:.0%} of the time is a wait for room: add about {amount(tokens)} tokens"
    )
    text += " of KV (another replica, or more memory for the cache)"
    if held_s > saved_s + 1.0:
        return f"{text}. The gate cost {held_s:.0f} s and saved {saved_s:.0f} s so far: try policy.name: observe."
    return f"{text}."


def _slot(page: Json, share: float) -> str:
    slots = sum(one["slots"] or 0 for one in page["replicas"])
    text = f"All {slots} slots are taken, and {share:.0%} of the time is a wait for one"
    return f"{text}: raise --max-num-seqs of the engine, or add a replica."


def _engine_queue(page: Json, share: float) -> str:
    known = [one for one in page["replicas"] if one["engine_slots"] is not None]
    text = f"{share:.0%} of the time is spent in the engine's own queue (inferred)"
    slots = known[0]["engine_slots"] if known else None
    runs = "it runs few calls" if slots is None else f"{known[0]['id']} runs {slots} call{'s' * (slots != 1)}"
    return f"{text}, since {runs} at once: raise its --max-num-seqs, or add a replica."


def _prefill(page: Json, share: float) -> str:
    tokens = page["tokens"]
    computed = max(0, tokens["prompt"] - tokens["cached"])
    part = f"{amount(computed)} of {amount(tokens['prompt'])} tokens"
    text = f"Prompts take {share:.0%} of the time: {part} were computed"
    return f"{text}. Keep their beginnings equal (docs/prefix-breaks.md), or shorten them."


def _beside(page: Json, share: float) -> str:
    share += page["queue_beside_ms"] / (sum(page["split"].values()) or 1.0)
    text = f"The engine computed prompts of other calls for {share:.0%} of the time"
    return f"{text}: lower --max-num-batched-tokens, or give long prompts a replica of their own."


def _recompute(page: Json, share: float) -> str:
    tokens = page["tokens"]
    text = (
        f"{amount(tokens['recomputed'])} tokens of earlier prompts were computed again ({share:.0%} of the time)"
    )
    return f"{text}, as the cache had evicted them: add KV, or keep other traffic away from the engine."


def _decode(page: Json, share: float) -> str:
    output, seconds = page["tokens"]["output"], max(0.001, page["split"]["decode"] / 1000)
    speed = f"{amount(output)} tokens, {output / seconds:.0f} per second of a call"
    text = f"Answers take {share:.0%} of the time: {speed}"
    return f"{text}. Nothing waits for long: ask for shorter answers, or use a faster engine."


def _tools(page: Json, share: float) -> str:
    tools, all_ms = page["tools"], sum(page["split"].values())
    name = max(tools, key=lambda name: tools[name], default="")
    text = f"Tool `{name}` takes {tools.get(name, 0.0) / all_ms:.0%} of the time"
    return f"{text}: cache or batch its calls, let more of them run at once, or make it faster."


def _share(page: Json, share: float) -> str:
    text = f"{share:.0%} of the time is a wait behind other tenants, since this one got more"
    return f"{text}: raise its weight (keys[].weight), send less at once, or add a replica."


_GATE = ("gate", "room", "slot", "share", "replica")
_REMEDIES: Mapping[str, Callable[[Json, float], str]] = {
    "room": _room,
    "slot": _slot,
    "share": _share,
    "gate": lambda page, share: f"The gate held it for {share:.0%} of the time; it went within one decision.",
    "replica": lambda page, share: (
        f"Engines refused calls, which rested for {share:.0%} of the time: see /health."
    ),
    "engine_queue": _engine_queue,
    "prefill": _prefill,
    "beside": _beside,
    "recompute": _recompute,
    "decode": _decode,
    "tools": _tools,
    "client": lambda page, share: (
        f"The client took {share:.0%} of the time between its turns; engines waited for it."
    ),
    "failed": lambda page, share: f"Calls that got no answer took {share:.0%} of the time: see /health.",
    "gateway": lambda page, share: f"The gateway's own work took {share:.0%} of the time: add cluster.workers.",
}


def amount(tokens: float) -> str:
    """1234567 -> 1.2M: at most four characters and a letter."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if tokens >= size:
            return f"{tokens / size:.{0 if tokens >= 99.95 * size else 1}f}{letter}"
    return f"{tokens:.0f}"
