"""How well recorded agents are recognised, with and without their headers, and what it costs.

    python -m benchmarks.identity            # prints the tables, writes benchmarks/results/identity.{md,json}

Score: pairs of requests of one run (or of a whole file, where sessions of many runs meet): same session or
not. A label is the client's own session header, else the run and the first user message. Left out: requests
that equal one of another session, byte for byte; without headers also titles and compactions, and what
follows a compaction counts as a session of its own, because nothing but the system text survives it.
"""

from __future__ import annotations

import json
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.identity_cost import state_bytes, turn_us
from gateway.dialects import BY_PATH
from gateway.exchange import Exchange, Recognition, Timings
from gateway.identity import Identity
from policies.types import TurnKind
from tests.traces import TracedRequest, client_names, read_trace

LABEL_HEADERS = ("x-session-id", "x-opencode-session", "thread-id")
BROKEN = ("cut", "eof", "err")
"""Faults after which status 200 is no complete answer."""
RESULTS = Path(__file__).parent / "results"


@dataclass
class Sent:
    """A request of which only the headers matter."""

    headers: Mapping[str, str]
    method: str = "POST"
    path: str = ""
    query: str = ""
    remote: str = ""
    header_list: Sequence[tuple[str, str]] = ()

    async def read(self, limit_bytes: int) -> bytes:
        return b""


@dataclass
class Seen:
    """A request, who it was, and who it was taken for."""

    request: TracedRequest
    label: str
    is_side: bool
    recognition: Recognition


@dataclass
class Pairs:
    """Pairs of requests that are of one session: rightly joined, wrongly joined, wrongly split."""

    joined: int = 0
    merged: int = 0
    split: int = 0

    @property
    def f1(self) -> float:
        whole = 2 * self.joined + self.merged + self.split
        return 2 * self.joined / whole if whole else 1.0

    def __add__(self, other: Pairs) -> Pairs:
        return Pairs(self.joined + other.joined, self.merged + other.merged, self.split + other.split)


class Gateway:
    """Replays traced requests into one Identity, telling it answers at the recorded times."""

    def __init__(self, *, with_headers: bool, with_replies: bool = True, identity: Identity | None = None) -> None:
        self.identity = identity or Identity(secret=b"benchmark")
        self._with_headers = with_headers
        self._with_replies = with_replies
        self._running: list[tuple[float, Exchange, TracedRequest]] = []
        self._now = 0.0
        self._num_sent = 0

    def send(self, request: TracedRequest, tenant: str = "") -> Recognition:
        """Recordings of one file have clocks of their own: when time goes back, everything has been answered."""
        went_back = request.arrived_s < self._now
        self._now = request.arrived_s
        self.settle(None if went_back else self._now)
        exchange = self._exchange(request, tenant)
        recognition = self.identity.recognise(exchange, exchange.dialect.script(request.body), self._now)
        self._running.append((request.arrived_s + request.took_s, exchange, request))
        return recognition

    def settle(self, until: float | None = None) -> None:
        """Tell the answers that have ended by then; None: all."""
        for entry in sorted(self._running, key=lambda entry: entry[0]):
            ended_at, exchange, request = entry
            if until is None or ended_at <= until:
                self._running.remove(entry)
                is_complete = request.status == 200 and request.fault not in BROKEN
                self.identity.answered(exchange, is_complete, self._now)

    def _exchange(self, request: TracedRequest, tenant: str) -> Exchange:
        kept = ("x-stainless-",) if not self._with_headers else ("",)
        headers = {name.lower(): value for name, value in request.headers if name.lower().startswith(kept)}
        body = dict(request.body)
        if not self._with_headers:
            body.pop("prompt_cache_key", None)
        self._num_sent += 1
        exchange = Exchange(
            id=str(self._num_sent),
            request=Sent(headers),
            dialect=BY_PATH[request.path],
            tenant=tenant,
            timings=Timings(self._now),
            body=body,
            asked_model=request.body["model"],
        )
        # The recorded answers have text but not the ids of their calls.
        exchange.reply.text = (request.reply or {}).get("text", "") if self._with_replies else ""
        return exchange


def replay(
    requests: Sequence[TracedRequest], gateway: Gateway, *, with_headers: bool, split_at_compaction: bool
) -> list[Seen]:
    labels = label(requests, split_at_compaction=split_at_compaction)
    seen = [
        Seen(request, labels[request.number], not request.body.get("tools"), gateway.send(request))
        for request in requests
    ]
    gateway.settle()
    equal = twins(requests, labels)
    return [one for one in seen if one.request.number not in equal and (with_headers or not one.is_side)]


def label(requests: Sequence[TracedRequest], *, split_at_compaction: bool) -> dict[int, str]:
    labels: dict[int, str] = {}
    started: set[str] = set()
    compactions: Counter[str] = Counter()
    for request in requests:
        session = next((value for name in LABEL_HEADERS if (value := request.header(name))), None)
        session = session or f"{request.run} {first_user_message(request)}"
        if split_at_compaction and session in started and not request.body.get("tools"):
            compactions[session] += 1
        if request.body.get("tools"):
            started.add(session)
        labels[request.number] = f"{session} {compactions[session]}"
    return labels


def first_user_message(request: TracedRequest) -> str:
    messages = request.body.get("messages") or request.body["input"]
    return json.dumps(next(message["content"] for message in messages if message.get("role") == "user"))


def twins(requests: Iterable[TracedRequest], labels: dict[int, str]) -> set[int]:
    """Requests whose body is also that of a request of another session."""
    by_body: defaultdict[str, list[int]] = defaultdict(list)
    for request in requests:
        by_body[json.dumps(request.body, sort_keys=True)].append(request.number)
    return {number for same in by_body.values() if len({labels[n] for n in same}) > 1 for number in same}


def pairs(seen: Sequence[Seen]) -> Pairs:
    score = Pairs()
    for i, one in enumerate(seen):
        for other in seen[:i]:
            is_same = one.label == other.label
            is_joined = one.recognition.session_id == other.recognition.session_id
            score.joined += is_same and is_joined
            score.merged += is_joined and not is_same
            score.split += is_same and not is_joined
    return score


def by_run(client: str) -> Iterator[list[TracedRequest]]:
    runs: defaultdict[str, list[TracedRequest]] = defaultdict(list)
    for request in read_trace(client):
        runs[request.run].append(request)
    yield from runs.values()


@dataclass
class Row:
    client: str
    headers: str
    replies: str
    unit: str
    requests: int = 0
    sessions: int = 0
    score: Pairs = field(default_factory=Pairs)
    worst_run: str = ""
    worst_f1: float = 1.0


def score_client(
    client: str,
    *,
    with_headers: bool,
    with_replies: bool,
    whole_file: bool,
    split_at_compaction: bool | None = None,
) -> Row:
    """`split_at_compaction`: by default without headers only."""
    split = not with_headers if split_at_compaction is None else split_at_compaction
    row = Row(
        client,
        "on" if with_headers else "off",
        "text" if with_replies else "unknown",
        "file" if whole_file else "run",
    )
    units = [list(read_trace(client))] if whole_file else by_run(client)
    for unit in units:
        gateway = Gateway(with_headers=with_headers, with_replies=with_replies)
        seen = replay(unit, gateway, with_headers=with_headers, split_at_compaction=split)
        score = pairs(seen)
        row.requests += len(seen)
        row.sessions += len({one.label for one in seen})
        row.score += score
        if score.f1 < row.worst_f1:
            row.worst_run, row.worst_f1 = unit[0].run, score.f1
    return row


def merges_across_tenants(client: str, *, with_headers: bool) -> int:
    """Ids of sessions and families that two tenants share who send the same requests at the same time."""
    gateway = Gateway(with_headers=with_headers)
    ids: dict[str, set[str]] = {"a": set(), "b": set()}
    for request in read_trace(client):
        for tenant, seen in ids.items():
            recognition = gateway.send(request, tenant)
            seen |= {recognition.session_id, recognition.family_id}
    return len(ids["a"] & ids["b"])


def side_calls_as_turns(client: str, *, with_headers: bool) -> int:
    """Titles and compactions that were taken for agent turns."""
    gateway = Gateway(with_headers=with_headers)
    recognised = [(request, gateway.send(request)) for request in read_trace(client)]
    return sum(not request.body.get("tools") and seen.kind is TurnKind.AGENT for request, seen in recognised)


def measure() -> dict[str, Any]:
    rows = [
        score_client(client, with_headers=headers, with_replies=replies, whole_file=whole)
        for whole in (False, True)
        for headers in (True, False)
        for replies in (True, False)
        for client in client_names()
    ]
    joined = score_client(
        "opencode", with_headers=False, with_replies=True, whole_file=False, split_at_compaction=False
    )
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "rows": [asdict(row) | {"f1": row.score.f1} for row in rows],
        "merges_across_tenants": sum(
            merges_across_tenants(client, with_headers=on) for client in client_names() for on in (True, False)
        ),
        "opencode_f1_if_compacted_histories_counted_as_one": joined.score.f1,
        "side_calls_as_turns": sum(
            side_calls_as_turns(client, with_headers=on) for client in client_names() for on in (True, False)
        ),
        "turn_60kB": turn_us(60_000, 40),
        "turn_500kB": turn_us(500_000, 200, 60),
        "state_bytes_60kB": state_bytes(60_000, 40),
        "state_bytes_500kB": state_bytes(500_000, 200, 200),
    }


def table(result: dict[str, Any]) -> str:
    lines = [
        "# Session recognition on recorded traces",
        "",
        f"{result['date']}, 2-core VM, Python {sys.version.split()[0]}. Command: `python -m benchmarks.identity`.",
        "What is scored, and what is left out: first lines of `benchmarks/identity.py`. *Replies*: whether the",
        "gateway saw the text of its answers; the recordings lack the call ids, which it also sees in life.",
        "",
        "| unit | headers | replies | client | requests | sessions | F1 | joined | merged | split | worst run |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in result["rows"]:
        score = row["score"]
        worst = f"{row['worst_run']} {row['worst_f1']:.3f}" if row["worst_run"] else ""
        cells = [row[name] for name in ("unit", "headers", "replies", "client", "requests", "sessions")]
        cells += [f"{row['f1']:.4f}", *score.values(), worst]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    lines += [
        "",
        f"Merges across tenants who send the same: {result['merges_across_tenants']}. "
        f"Titles and compactions taken for agent turns: {result['side_calls_as_turns']}.",
        "OpenCode without headers, if the twelve histories of its compacted run counted as one session: "
        f"{result['opencode_f1_if_compacted_histories_counted_as_one']:.4f}.",
        "",
        "| prompt | first turn, us | later turn, us | state per session, bytes |",
        "|---|---|---|---|",
    ]
    for size in ("60kB", "500kB"):
        cost = result[f"turn_{size}"]
        lines.append(
            f"| {size} | {cost['first_us']:.0f} | {cost['later_us']:.0f} | {result[f'state_bytes_{size}']:.0f} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    result = measure()
    text = table(result)
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "identity.json").write_text(json.dumps(result, indent=1) + "\n")
    (RESULTS / "identity.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
