"""Half an hour of mixed traffic with random faults: every request ends once, and nothing is left behind.

    python -m benchmarks.soak --seconds 1800 [--hostile N]

Gateway and two engines that fail at random (`benchmarks/soak/engine.py`) are processes of their own. Clients of
every wire format stream or not, leave, read slowly and send nonsense. Held against each other: what clients saw,
the gateway's log, and its metrics. Exit status 1 where they disagree, or where something was not given back.
"""

from __future__ import annotations

import asyncio
import re
import statistics
import sys
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import astuple, dataclass, field
from itertools import zip_longest
from pathlib import Path
from tempfile import TemporaryDirectory

import aiohttp
import orjson
import yaml

from benchmarks.results import command_parser, write
from benchmarks.soak.clients import ClientOutcome, Clients

TTL_S = 15
"""Of sessions: after that long without a turn their leases are given back too."""
REST_S = 90.0  # after the traffic, until all has been given back
SAMPLE_S = 2.0
SHOWN_EVERY = 30
"""Samples for a line of progress."""
MIB = 2**20
WARM_UP = 1 / 3
"""Of half an hour: by then the bounded memories (sessions, receipts, last requests) are full."""
MOST_GROWTH = 0.05
_ADDRESS = re.compile(rb"(?:OPENAI_BASE_URL=|--engine )(?:http|vllm)://([\w.:]+)")
_OUTCOME = re.compile(r'outcome="([^"]+)"')
_OWNER = re.compile(r'owner="([^"]+)"')
OUTCOMES, MEMORY = "turngate_outcomes_total", "turngate_memory_bytes"
_NO_FAILURE = {"answered", "client_gone", "gateway_error"}
"""What cannot have come of a request whose client stayed and got no answer."""


@dataclass(slots=True)
class RestingState:
    """What the gateway holds when no request is open."""

    tasks: float
    open_fds: float
    """Without the connections to engines: a pool may be larger than before."""
    slots_used: float
    queued: float
    busy_sessions: float
    residency_tokens: float

    @staticmethod
    def of(metrics: dict[str, float], num_pooled: int) -> RestingState:
        """`num_pooled`: connections to engines, which are kept for a while, and which polls keep alive."""
        return RestingState(
            metrics["turngate_tasks"],
            metrics["process_open_fds"] - num_pooled,
            metrics["turngate_slots_used"],
            metrics["turngate_queue_depth"],
            metrics["turngate_sessions_busy"],
            metrics["turngate_residency_tokens_used"],
        )


@dataclass(slots=True)
class SoakRun:
    """One soak, measured."""

    clients: Clients
    before: RestingState
    after: RestingState
    rss_bytes: list[tuple[float, float]] = field(default_factory=list)
    kept_bytes: list[dict[str, float]] = field(default_factory=list)
    """What each owner of memory counts of its own, with each sample."""
    outcomes: dict[str, float] = field(default_factory=dict)
    logged: dict[str, list[str]] = field(default_factory=dict)
    """Outcomes in the log, by the id that the client gave its request."""
    unanswered: dict[str, str] = field(default_factory=dict)
    """Log lines of requests that their clients got nothing whole of."""
    num_logged: int = 0
    errors: list[str] = field(default_factory=list)
    """Log lines of level error, and lines that are none of the log."""

    def sample(self, metrics: dict[str, float]) -> None:
        """Note the memory of this moment."""
        self.rss_bytes.append((time.monotonic(), metrics["process_resident_memory_bytes"]))
        self.kept_bytes.append(_labelled(metrics, MEMORY))

    def growth(self) -> float:
        """Of the resident memory: the last sixth of the run against the sixth after the warm-up."""
        took_s = self.rss_bytes[-1][0] - self.rss_bytes[0][0]
        start, end = self.rss_bytes[0][0] + took_s * WARM_UP, self.rss_bytes[-1][0] - took_s / 6
        early = [size for at, size in self.rss_bytes if start <= at < start + took_s / 6]
        late = [size for at, size in self.rss_bytes if at >= end]
        return statistics.median(late) / statistics.median(early) - 1

    def kept_growth_bytes(self) -> dict[str, float]:
        """Of each owner, from the end of the warm-up to that of the run."""
        early, late = self.kept_bytes[int(len(self.kept_bytes) * WARM_UP)], self.kept_bytes[-1]
        return {owner: late[owner] - early[owner] for owner in late}

    def faults(self, is_short: bool) -> Iterator[str]:
        """What is not as it has to be; a short run says nothing about the growth of memory."""
        for request_id, record in self.clients.records.items():
            outcomes = self.logged.get(request_id, [])
            if record.outcome in (ClientOutcome.DROPPED, ClientOutcome.STUCK):
                seen = f"{request_id}: {record.outcome} {record.error}"
                yield f"{seen}, logged {outcomes}: {self.unanswered.get(request_id)}"
            elif not _agree(record.outcome, record.status, outcomes):
                yield f"{request_id}: its client saw {record.outcome} {record.status}, the gateway {outcomes}"
        if sum(self.outcomes.values()) != self.num_logged:
            yield f"{sum(self.outcomes.values()):.0f} outcomes counted, {self.num_logged} logged"
        yield from (f"log: {line}" for line in self.errors)
        if self.before != self.after:
            yield f"not given back: {self.before} became {self.after}"
        if not is_short and abs(self.growth()) > MOST_GROWTH:
            yield f"resident memory changed by {self.growth():.1%}"


def _agree(seen: ClientOutcome, status: int, outcomes: Sequence[str]) -> bool:
    """One outcome each. A client that left before any answer came may never have been noticed."""
    if seen is ClientOutcome.LEFT:
        return len(outcomes) == 1 or (not outcomes and status == 0)
    if len(outcomes) != 1:
        return False
    if seen is ClientOutcome.ANSWERED:
        return outcomes[0] == "answered"
    return outcomes[0] not in _NO_FAILURE


async def soak(
    seconds: float, num_clients: int, faults: float, seed: int, pace: float = 1.0, num_hostile: int = 0
) -> SoakRun:
    """`pace`: by how much clients, outages and time-outs are quicker. Raises RuntimeError when a process does not
    start."""
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        engines = []
        for n in range(2):
            engine = ["benchmarks.soak.engine", f"--seed={seed + n}", f"--faults={faults}", f"--pace={pace}"]
            engines.append((await stack.enter_async_context(_process(engine, folder / f"engine{n}")))[0])
        config, log = folder / "turngate.yaml", folder / "gateway.log"
        config.write_text(yaml.safe_dump(_settings(engines, pace)))
        address, pid = await stack.enter_async_context(
            _process(["gateway", "serve", "--config", str(config)], log)
        )
        clients = Clients(f"http://{address}", seed, pace, num_hostile)
        http = await stack.enter_async_context(aiohttp.ClientSession(clients.base_url))
        await asyncio.sleep(SAMPLE_S / pace)
        run = SoakRun(clients, before := await _at_rest(http, pid, engines), before)
        traffic = asyncio.create_task(clients.run(num_clients))
        try:
            until = time.monotonic() + seconds
            while time.monotonic() < until and not traffic.done():
                await asyncio.sleep(SAMPLE_S / pace)
                run.sample(await _metrics(http))
                if len(run.rss_bytes) % SHOWN_EVERY == 0:
                    _show_progress(run, until - time.monotonic())
            clients.is_over = True
            await traffic
        finally:
            traffic.cancel()
        until = time.monotonic() + REST_S
        while (after := await _at_rest(http, pid, engines)) != before and time.monotonic() < until:
            pass
        run.after, metrics = after, await _metrics(http)
        run.outcomes = _labelled(metrics, OUTCOMES)
        _read_log(log, run)
        return run


def _show_progress(run: SoakRun, left_s: float) -> None:
    rss_mib = run.rss_bytes[-1][1] / MIB
    text = f"{left_s:.0f} s left, {len(run.clients.records):,} requests, {rss_mib:.0f} MiB"
    print(text, file=sys.stderr, flush=True)


def _settings(engines: Sequence[str], pace: float) -> dict[str, object]:
    """Time-outs short enough that silent engines are met often; memories that are full after minutes."""
    return {
        "listen": {"port": 0},
        "engines": [f"vllm://{address}" for address in engines],
        "models": {"aliases": {"with-tools": "m"}},
        "probing": {"hints": False},
        "policy": {"slots_per_replica": 12, "max_wait_s": 20, "max_wait_plain_s": 20},
        "stream": {"silent_queue_s": 2 / pace, "keep_alive_s": 1 / pace},
        "timeouts": {"connect_s": 1, "first_byte_s": 5 / pace, "idle_s": 2 / pace, "shutdown_grace_s": 5},
        "identity": {"session_ttl_s": TTL_S / pace, "max_sessions": 500},
        "limits": {"memory_bytes": 64 * MIB},
        "receipts": {"keep_s": 60},
        "tools": {"use": [{"use": "benchmarks.soak.tools:build", "models": ["with-tools"]}]},
        "logging": {"format": "json"},
    }


@asynccontextmanager
async def _process(arguments: Sequence[str], log: Path) -> AsyncIterator[tuple[str, int]]:
    """`python -m ARGUMENTS` for the body of the block: the address that it says it listens on, and its pid."""
    with log.open("wb") as errors:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", *arguments, stdout=asyncio.subprocess.PIPE, stderr=errors
        )
        assert process.stdout is not None
        try:
            async with asyncio.timeout(30):
                while line := await process.stdout.readline():
                    if address := _ADDRESS.search(line):
                        break
                else:
                    raise RuntimeError(f"{arguments[0]} did not start: {log.read_text()[-500:]}")
            yield address[1].decode(), process.pid
        finally:
            if process.returncode is None:
                process.terminate()
            await process.wait()


async def _at_rest(http: aiohttp.ClientSession, pid: int, engines: Sequence[str]) -> RestingState:
    """The least of several looks: the engines are polled all the time."""
    looks = []
    for _ in range(10):
        looks.append(astuple(RestingState.of(await _metrics(http), _connections(pid, engines))))
        await asyncio.sleep(0.13)
    return RestingState(*map(min, zip(*looks, strict=True)))


def _connections(pid: int, addresses: Sequence[str]) -> int:
    """Sockets of a process that are connected to one of the addresses."""
    ports = {f"{int(address.rpartition(':')[2]):04X}" for address in addresses}
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    inodes = {f"socket:[{row[9]}]" for row in rows if row[2].rpartition(":")[2] in ports}
    links = []
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):
            links.append(str(link.readlink()))
    return sum(link in inodes for link in links)


async def _metrics(http: aiohttp.ClientSession) -> dict[str, float]:
    """Sums by name; the parts of some by `name/label` or `name_label`."""
    async with http.get("/metrics") as response:
        lines = (await response.text()).splitlines()
    sums: defaultdict[str, float] = defaultdict(float)
    for line in lines:
        if line.startswith("#"):
            continue
        labelled, _, value = line.rpartition(" ")
        name, _, labels = labelled.partition("{")
        if (label := {OUTCOMES: _OUTCOME, MEMORY: _OWNER}.get(name)) is not None:
            sums[f"{name}/{label.findall(labels)[0]}"] += float(value)
        elif name == "turngate_sessions" and 'state="idle"' not in labels:
            sums[f"{name}_busy"] += float(value)
        elif name == "turngate_residency_tokens" and 'kind="used"' in labels:
            sums[f"{name}_used"] += float(value)
        sums[name] += float(value)
    return dict(sums)


def _labelled(metrics: dict[str, float], name: str) -> dict[str, float]:
    """Return the parts of a metric, by their label."""
    prefix = f"{name}/"
    return {key.removeprefix(prefix): number for key, number in metrics.items() if key.startswith(prefix)}


def _read_log(log: Path, run: SoakRun) -> None:
    for line in log.read_bytes().splitlines():
        try:
            row = orjson.loads(line)
        except orjson.JSONDecodeError:
            run.errors.append(line.decode(errors="replace")[-400:])
            continue
        if row["level"] == "error":
            run.errors.append(str(row.get("exception") or row["message"])[-400:])
        if row["message"] == "request":
            run.num_logged += 1
            if request_id := row.get("request_id"):
                run.logged.setdefault(request_id, []).append(row["outcome"])
                record = run.clients.records.get(request_id)
                if record is not None and record.outcome in (ClientOutcome.DROPPED, ClientOutcome.STUCK):
                    run.unanswered[request_id] = line.decode(errors="replace")


def table(run: SoakRun) -> str:
    """What happened, for people."""
    seen = Counter(record.outcome for record in run.clients.records.values())
    lines = [
        f"{len(run.clients.records):,} requests, {sum(run.outcomes.values()):,.0f} outcomes (the parts of a list"
        " of prompts have their own).",
        "",
        "| seen by clients | requests | | counted by the gateway | outcomes |",
        "|---|---:|---|---|---:|",
    ]
    outcomes = sorted(run.outcomes.items(), key=lambda item: -item[1])
    for left, right in zip_longest(seen.most_common(), outcomes, fillvalue=("", "")):
        lines.append(f"| {left[0]} | {left[1]} | | {right[0]} | {right[1]} |")
    if num_hostile := sum("-hostile-" in request_id for request_id in run.clients.records):
        lines += ["", f"{num_hostile:,} of the requests were hostile."]
    paths = ", ".join(f"{path} {number}" for path, number in sorted(run.clients.paths.items()))
    lines += [
        "",
        f"By path: {paths}. By status: {dict(sorted(run.clients.statuses.items()))}.",
        "",
        f"At rest before: {run.before}. After: {run.after}.",
        f"Resident memory {run.rss_bytes[-1][1] / MIB:.0f} MiB: {run.growth():+.1%} from the sixth that"
        " follows the warm-up to the last one (medians). The warm-up, in which bounded memories fill, is a third.",
        "Counted by owners since then, MiB: "
        + ", ".join(f"{owner} {size / MIB:+.1f}" for owner, size in sorted(run.kept_growth_bytes().items()))
        + ".",
    ]
    return "\n".join(lines)


def main() -> int:
    parser = command_parser(__doc__, __file__)
    parser.add_argument(
        "--seconds", type=float, default=1800, help="of traffic (%(default)s); below 600: print only"
    )
    parser.add_argument("--clients", type=int, default=40, help="at once (%(default)s)")
    parser.add_argument("--hostile", type=int, default=0, help="clients beside them with hostile requests")
    parser.add_argument("--faults", type=float, default=0.2, help="share of calls that fail (%(default)s)")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    run = asyncio.run(
        soak(options.seconds, options.clients, options.faults, options.seed, num_hostile=options.hostile)
    )
    is_short = options.seconds < 600
    faults = list(run.faults(is_short))
    text = table(run)
    print(text)
    print("\n".join(faults[:50]) or "Nothing is wrong.")
    verdict = f"{len(faults)} things are wrong." if faults else "Nothing is wrong: every request ended once."
    data = {
        "outcomes": run.outcomes,
        "rss_mib": [round(size / MIB) for _, size in run.rss_bytes[::SHOWN_EVERY]],
        "rss_growth": run.growth(),
        "kept_growth_bytes": run.kept_growth_bytes(),
        "faults": faults,
    }
    write(
        None if is_short else options.results,
        "soak-hostile" if options.hostile else "soak",
        f"{text}\n\n{verdict}",
        data,
    )
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
