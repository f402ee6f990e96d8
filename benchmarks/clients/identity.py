"""How well recorded agents are recognised, with and without their headers, and what it costs.

    python -m benchmarks.clients.identity
    python -m benchmarks.clients.identity --twice

`--twice`: only how well, where all runs come twice in one gateway.

Score: pairs of requests of one run (or of a whole file, where sessions of many runs meet): same session or
not. A label is the client's own session header, else the run and the first user message; it stays when the
client compacts its history. Left out: requests that equal one of another session, byte for byte; without
headers also requests for titles and summaries.
"""

from __future__ import annotations

import json
import random
import time
import tracemalloc
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from benchmarks.clients.trace_replay import TraceReplay
from benchmarks.results import command_parser, write
from gateway.exchange import Recognition
from policies.recognition.continuation import Call
from policies.recognition.lineage import Lineage
from policies.types import TurnKind
from tests.traces import TracedRequest, client_names, read_trace

LABEL_HEADERS = ("x-session-id", "x-opencode-session", "thread-id")


@dataclass
class RecognisedRequest:
    """A request, whose it was, and what it was taken for."""

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


def replay(
    requests: Sequence[TracedRequest], gateway: TraceReplay, *, with_headers: bool, times: int = 1
) -> list[RecognisedRequest]:
    """Send them once, or several times, each time as new runs with ids of their own.

    Several times: runs that were never answered are left out, since a failed request that comes again is a retry.
    """
    labels = {request.number: label(request) for request in requests}
    seen = []
    for time_ in range(times):
        for request in requests:
            recognition = gateway.send(request, again=time_)
            own = f"{labels[request.number]} {time_}"
            seen.append(RecognisedRequest(request, own, not request.body.get("tools"), recognition))
        gateway.settle()
    if times > 1:
        answered = {one.label for one in seen if one.request.status == 200 and not one.is_side}
        seen = [one for one in seen if one.label in answered]
    equal = twins(requests, labels)
    return [one for one in seen if one.request.number not in equal and (with_headers or not one.is_side)]


def label(request: TracedRequest) -> str:
    session = next((value for name in LABEL_HEADERS if (value := request.header(name))), None)
    return session or f"{request.run} {first_user_message(request)}"


def first_user_message(request: TracedRequest) -> str:
    messages = request.body.get("messages") or request.body["input"]
    return json.dumps(next(message["content"] for message in messages if message.get("role") == "user"))


def twins(requests: Iterable[TracedRequest], labels: dict[int, str]) -> set[int]:
    """Requests whose body is also that of a request of another session."""
    by_body: defaultdict[str, list[int]] = defaultdict(list)
    for request in requests:
        by_body[json.dumps(request.body, sort_keys=True)].append(request.number)
    return {number for same in by_body.values() if len({labels[n] for n in same}) > 1 for number in same}


def sent_beside(requests: Sequence[TracedRequest]) -> set[int]:
    """Requests that came from another connection while the same request of their session still ran: a client that
    has left without a word, or a second one. Nothing in them tells which."""
    running: dict[str, TracedRequest] = {}
    found = set()
    for request in requests:
        body = json.dumps([label(request), request.body], sort_keys=True)
        first = running.setdefault(body, request)
        if first is not request and first.arrived_s < request.arrived_s < first.arrived_s + first.took_s:
            found.add(first.number)
    return found


def pairs(seen: Sequence[RecognisedRequest]) -> Pairs:
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
class IdentityScore:
    client: str
    headers: str
    with_replies: bool
    whole_file: bool
    requests: int = 0
    sessions: int = 0
    score: Pairs = field(default_factory=Pairs)
    worst_run: str = ""
    worst_f1: float = 1.0


def score_client(
    client: str, *, with_headers: bool, with_replies: bool = True, whole_file: bool, times: int = 1
) -> IdentityScore:
    row = IdentityScore(client, "on" if with_headers else "off", with_replies, whole_file)
    for unit in [list(read_trace(client))] if whole_file else by_run(client):
        gateway = TraceReplay(with_headers=with_headers, with_replies=with_replies)
        seen = replay(unit, gateway, with_headers=with_headers, times=times)
        score = pairs(seen)
        row.requests += len(seen)
        row.sessions += len({one.label for one in seen})
        row.score += score
        if score.f1 < row.worst_f1:
            row.worst_run, row.worst_f1 = unit[0].run, score.f1
    return row


def merges_across_tenants(client: str, *, with_headers: bool) -> int:
    """Ids of sessions and families that are common to two tenants with the same requests at the same time."""
    gateway = TraceReplay(with_headers=with_headers)
    ids: dict[str, set[str]] = {"a": set(), "b": set()}
    for request in read_trace(client):
        for tenant, seen in ids.items():
            recognition = gateway.send(request, tenant)
            seen |= {recognition.session_id, recognition.family_id}
    return len(ids["a"] & ids["b"])


def side_calls_as_turns(client: str, *, with_headers: bool) -> int:
    """Titles and compactions that were taken for agent turns."""
    gateway = TraceReplay(with_headers=with_headers)
    recognised = [(request, gateway.send(request)) for request in read_trace(client)]
    return sum(not request.body.get("tools") and seen.kind is TurnKind.AGENT for request, seen in recognised)


def synthetic(size: int, num_messages: int, noise: random.Random) -> tuple[bytes, ...]:
    each = size // num_messages
    return tuple(
        b'{"role":"user","content":"' + noise.randbytes(each // 2).hex().encode() for _ in range(num_messages)
    )


def turn_us(size: int, num_messages: int, rounds: int = 300) -> dict[str, float]:
    """Median microseconds of recognising a first turn, and a turn that adds two messages of 500 characters."""
    noise = random.Random(7)
    lineage = Lineage()
    first: list[float] = []
    later: list[float] = []
    for _ in range(rounds):
        messages = synthetic(size, num_messages, noise)
        for spent in (first, later):
            call = Call(b"key", (b"tool" * 50,), b"system" * 100, messages)
            begun = time.perf_counter()
            sighting = lineage.recognise(call, 0.0)
            spent.append((time.perf_counter() - begun) * 1e6)
            lineage.answered(sighting, True, (), 0.0)
            messages += synthetic(1000, 2, noise)
    return {"first_us": sorted(first)[rounds // 2], "later_us": sorted(later)[rounds // 2]}


def state_bytes(size: int, num_messages: int, sessions: int = 1_000, num_turns: int = 10) -> float:
    """Bytes that one session keeps after its last turn."""
    noise = random.Random(7)
    lineage = Lineage()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for _ in range(sessions):
        messages = synthetic(size, num_messages, noise)
        for turn in range(num_turns):
            upto = num_messages - 2 * (num_turns - 1 - turn)
            sighting = lineage.recognise(Call(b"key", (b"tool",), b"system" * 100, messages[:upto]), 0.0)
            lineage.answered(sighting, True, (b"call_0123456789abcdef",), 0.0)
    del messages, sighting
    used = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    return used / sessions


def measure_twice() -> list[dict[str, Any]]:
    rows = []
    for with_headers in (True, False):
        for client in client_names():
            row = score_client(client, with_headers=with_headers, whole_file=True, times=2)
            requests = list(read_trace(client))
            seen = replay(requests, TraceReplay(with_headers=with_headers), with_headers=with_headers, times=2)
            beside = sent_beside(requests)
            clear = pairs([one for one in seen if one.request.number not in beside])
            rows.append(asdict(row) | {"f1": row.score.f1, "clear_f1": clear.f1, "num_beside": len(beside)})
    return rows


def table_of_twice(rows: Sequence[dict[str, Any]]) -> str:
    lines = [
        "Each recording is sent twice to one gateway, the second time with new ids in its headers. Scored as",
        "in [identity](identity.md), over the whole file; runs that were never answered are left out.",
        "*Clear*: without requests that came again from another connection while they still ran, where",
        "nothing tells a client that has left without a word from a second one (`mini~slow61`).",
        "",
        "| headers | client | requests | sessions | F1 | clear | merged | split |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        cells = [row[name] for name in ("headers", "client", "requests", "sessions")]
        cells += [f"{row['f1']:.4f}", f"{row['clear_f1']:.4f}", row["score"]["merged"], row["score"]["split"]]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def measure() -> dict[str, Any]:
    rows = [
        score_client(client, with_headers=headers, with_replies=replies, whole_file=whole)
        for headers in (True, False)
        for client in client_names()
        for replies in (True, False)
        for whole in (False, True)
    ]
    both = [(client, headers) for client in client_names() for headers in (True, False)]
    return {
        "rows": [asdict(row) | {"f1": row.score.f1} for row in rows],
        "merges_across_tenants": sum(merges_across_tenants(client, with_headers=on) for client, on in both),
        "side_calls_as_turns": sum(side_calls_as_turns(client, with_headers=on) for client, on in both),
        "turn_us": {"60 kB": turn_us(60_000, 40), "500 kB": turn_us(500_000, 200, 60)},
        "state_bytes": {"60 kB": state_bytes(60_000, 40), "500 kB": state_bytes(500_000, 200, 200)},
    }


def table(result: dict[str, Any]) -> str:
    lines = [
        "What is scored and what is left out: first lines of `benchmarks/clients/identity.py`. F1 over pairs of",
        "requests, in each run alone and in whole files; *blind*: the gateway sees no text of its answers. (It",
        "never sees the ids of their tool calls here, because the recordings lack them.)",
        "",
        "| headers | client | requests | sessions | by run | by file | by run, blind | by file, blind | merged "
        "| split | worst run |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for i in range(0, len(result["rows"]), 4):
        group = result["rows"][i : i + 4]
        first, score = group[0], group[0]["score"]
        worst = f"{first['worst_run']} {first['worst_f1']:.3f}" if first["worst_run"] else ""
        cells = [first[name] for name in ("headers", "client", "requests", "sessions")]
        cells += [f"{row['f1']:.4f}" for row in group]
        cells += [score["merged"], score["split"], worst]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    lines += [
        "",
        f"Merges across two tenants with the same requests: {result['merges_across_tenants']}. "
        f"Titles and compactions taken for agent turns: {result['side_calls_as_turns']}.",
        "A history before and after its compaction is one session by its label. Without headers it is found by",
        "the text of the summary, which a blind gateway does not see. The recordings keep 60 characters of an",
        "answer; the rest of a summary is taken from the history that the client sent next.",
        "`mini~slow61` holds the same first request twice, from two connections, the second while the first still",
        "runs: taken for two siblings, where the label says one session.",
        "",
        "| prompt | first turn, us | later turn, us | state per session, bytes |",
        "|---|---|---|---|",
    ]
    for size, cost in result["turn_us"].items():
        state = result["state_bytes"][size]
        lines.append(f"| {size} | {cost['first_us']:.0f} | {cost['later_us']:.0f} | {state:.0f} |")
    return "\n".join(lines)


def main() -> None:
    parser = command_parser(__doc__, __file__)
    parser.add_argument("--twice", action="store_true", help="all runs come twice in one gateway")
    options = parser.parse_args()
    if options.twice:
        rows = measure_twice()
        print(text := table_of_twice(rows))
        write(options.results, "identity-twice", text, rows)
        return
    result = measure()
    text = table(result)
    print(text)
    write(options.results, "identity", text, result)


if __name__ == "__main__":
    main()
