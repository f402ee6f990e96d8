"""What a gateway costs, beside others.

    python -m benchmarks.overhead [--quick] [--rounds N] [--peers A,B] [--cells A,B]

Clients and upstream run on one core, the gateway on another. Every round asks every peer in every cell, in turns,
so that a ratio compares figures of the same minute. Peers: `python -m tests.real.install peers litellm nginx`.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

from benchmarks.overhead import report
from benchmarks.overhead.bodies import conversation
from benchmarks.overhead.cells import LOAD_CORE, PEER_CORE, SIZES, Reading, cells, compiled, reading
from benchmarks.overhead.peers import Peer, RunningPeer, all_peers, started
from benchmarks.overhead.processes import running
from benchmarks.results import command_parser, write
from tests.real.process import free_port

DIRECT = Peer("direct", lambda at: ())


def main() -> int:
    parser = command_parser(__doc__, __file__)
    parser.add_argument(
        "--quick", action="store_true", help="under two minutes, print only: few cells, no slow peer"
    )
    parser.add_argument("--rounds", type=int, default=0, help="default: 5, quick 3")
    parser.add_argument("--peers", default="", help="only these, by name")
    parser.add_argument("--cells", default="", help="only these, by name")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="turngate-overhead-") as folder:
        figures = measured(options, Path(folder))
    print(report.table(figures))
    write(None if options.quick else options.results, "overhead", report.table(figures), asdict(figures))
    return 0


def measured(options: argparse.Namespace, folder: Path) -> report.OverheadFigures:
    wanted = list(filter(None, options.peers.split(",")))
    peers = [peer for peer in all_peers() if not wanted or peer.name in wanted]
    if options.quick:
        peers = [peer for peer in peers if not peer.is_slow]
    missing = [peer.name for peer in peers if peer.needs is not None and not peer.needs.exists()]
    upstream, load = compiled(folder)
    some = [
        cell for cell in cells(folder, options.quick) if not options.cells or cell.name in options.cells.split(",")
    ]
    figures = report.OverheadFigures(missing=missing)
    with ExitStack() as stack:
        port = free_port()
        stack.enter_context(running([upstream, str(port)], folder / "upstream.log", LOAD_CORE))
        body = conversation(SIZES["s"])[0]
        asking = [RunningPeer(DIRECT, port, None)]
        for peer in peers:
            if peer.name not in missing:
                asking.append(stack.enter_context(started(peer, port, folder, PEER_CORE, body)))
        figures.start_s = {one.peer.name: one.start_s for one in asking[1:]}
        figures.rss_idle_mb = {one.peer.name: one.rss_mb for one in asking[1:]}
        for number in range(options.rounds or (3 if options.quick else 5)):
            for cell in some:
                row: dict[str, Reading] = {}
                for one in asking[number % len(asking) :] + asking[: number % len(asking)]:
                    if cell.takes_slow or not one.peer.is_slow:
                        row[one.peer.name] = reading(load, cell, one)
                figures.rounds.setdefault(cell.name, []).append(row)
                print(f"round {number + 1} {cell.name}: {report.line(row)}", file=sys.stderr, flush=True)
        figures.rss_mb = {one.peer.name: one.process.rss_mb() for one in asking[1:] if one.process}
    return figures


if __name__ == "__main__":
    sys.exit(main())
