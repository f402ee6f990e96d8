"""The tables of `benchmarks.overhead`: medians over the rounds, and ratios inside one round with their range."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from benchmarks.overhead.cells import Reading

Round = Mapping[str, Reading]
DIRECT = "direct"
COMPARED = ("aiohttp-proxy", "vllm-router", "smg", "litellm")


@dataclass(slots=True)
class OverheadFigures:
    """Readings by cell, round and peer; start and memory by peer."""

    missing: list[str]
    rounds: dict[str, list[dict[str, Reading]]] = field(default_factory=dict)
    start_s: dict[str, float] = field(default_factory=dict)
    rss_idle_mb: dict[str, float] = field(default_factory=dict)
    rss_mb: dict[str, float] = field(default_factory=dict)


def table(figures: OverheadFigures) -> str:
    peers, cells = list(figures.start_s), list(figures.rounds)
    rounds = max((len(rows) for rows in figures.rounds.values()), default=0)
    left_out = f" Left out, not installed: {', '.join(figures.missing)}." if figures.missing else ""
    parts = [
        f"{rounds} interleaved rounds; s, b, h, m: turns of growing conversations, bodies of 1 KB, 58 KB, 600 KB, "
        "1 MB, answered whole; f: first turns of 58 KB; st: 20 ms (50 streams) or 200 ms (500) between chunks; "
        f"burst: 2,000 chunks at once; the number is that of connections.{left_out}",
        "## CPU microseconds per request, or per streamed chunk (median)",
        _grid(peers, cells, lambda peer, cell: _median(figures, cell, peer, lambda one, row: one.cpu_us)),
        "## Ratio of that to the peer above, in the same round: median [least-most]",
        *(_ratios(figures, cells, mine) for mine in peers if mine.startswith("turngate")),
        "## Added milliseconds, p50 / p99, of an answer or of a chunk (median)",
        _grid(peers, cells, lambda peer, cell: _added(figures, cell, peer)),
        "## First event, milliseconds after the request, p50 / p99 (median)",
        _grid([DIRECT, *peers], _streams(cells), lambda peer, cell: _first_event(figures, cell, peer)),
        "## Requests or chunks per second (median)",
        _grid(
            [DIRECT, *peers],
            cells,
            lambda peer, cell: _median(figures, cell, peer, lambda one, row: one.per_s, "{:,.0f}"),
        ),
        "## Start and memory",
        _rows(
            ["", "start s", "RSS idle MB", "RSS at the end MB"],
            ([p, f"{figures.start_s[p]:.2f}", *_mb(figures, p)] for p in peers),
        ),
        _errors(figures),
    ]
    return "\n\n".join(filter(None, parts))


def line(row: Round) -> str:
    """One round of one cell."""
    return ", ".join(f"{name} {one.cpu_us:.0f}" for name, one in row.items() if one.cpu_us is not None)


def _mb(figures: OverheadFigures, peer: str) -> list[str]:
    return [f"{mb.get(peer, 0):.0f}" for mb in (figures.rss_idle_mb, figures.rss_mb)]


def _ratios(figures: OverheadFigures, cells: Sequence[str], mine: str) -> str:
    def ratio(other: str, cell: str) -> str:
        values = [
            one.cpu_us / others.cpu_us
            for row in figures.rounds[cell]
            if (one := row.get(mine)) and (others := row.get(other)) and one.cpu_us and others.cpu_us
        ]
        return f"{_short(median(values))} [{_short(min(values))}-{_short(max(values))}]" if values else ""

    others = [name for name in COMPARED if name in figures.start_s]
    return _rows([f"{mine} /", *cells], ([other, *(ratio(other, cell) for cell in cells)] for other in others))


def _short(ratio: float) -> str:
    return f"1/{1 / ratio:.0f}" if ratio < 0.1 else f"{ratio:.2f}"


def _added(figures: OverheadFigures, cell: str, peer: str) -> str:
    def added(one: Reading, row: Round, name: str) -> float | None:
        direct = row.get(DIRECT)
        return None if direct is None else getattr(one, name) - getattr(direct, name)

    p50 = _median(figures, cell, peer, lambda one, row: added(one, row, "p50_ms"), "{:.2f}")
    p99 = _median(figures, cell, peer, lambda one, row: added(one, row, "p99_ms"), "{:.1f}")
    return f"{p50} / {p99}" if p50 else ""


def _streams(cells: Sequence[str]) -> list[str]:
    return [cell for cell in cells if cell.startswith(("st", "burst"))]


def _first_event(figures: OverheadFigures, cell: str, peer: str) -> str:
    p50 = _median(figures, cell, peer, lambda one, row: one.first_p50_ms, "{:.1f}")
    return f"{p50} / {_median(figures, cell, peer, lambda one, row: one.first_p99_ms, '{:.0f}')}" if p50 else ""


def _median(
    figures: OverheadFigures,
    cell: str,
    peer: str,
    what: Callable[[Reading, Round], float | None],
    form: str = "{:.0f}",
) -> str:
    values = [what(row[peer], row) for row in figures.rounds[cell] if peer in row]
    known = [value for value in values if value is not None]
    return form.format(median(known)) if known else ""


def _errors(figures: OverheadFigures) -> str:
    failed = {
        f"{peer} {cell}: {sum(row[peer].errors for row in rows if peer in row)}"
        for cell, rows in figures.rounds.items()
        for peer in rows[0]
        if any(row[peer].errors for row in rows if peer in row)
    }
    return "Failed requests: " + ("; ".join(sorted(failed)) if failed else "none.")


def _grid(peers: Sequence[str], cells: Sequence[str], text: Callable[[str, str], str]) -> str:
    return _rows(["", *cells], ([peer, *(text(peer, cell) for cell in cells)] for peer in peers))


def _rows(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)
