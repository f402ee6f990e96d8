"""The demo's figures: one row per arm, and the ratio of each to going straight."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gateway.cli.demo.fleet import SessionRecord


@dataclass(frozen=True, slots=True)
class Arm:
    """One run of the fleet."""

    name: str
    pool_tokens: int
    sessions: Sequence[SessionRecord]
    floor_tokens: int
    """Prompt tokens that nobody can avoid: each distinct one computed once."""

    @property
    def prompt_tokens(self) -> int:
        return sum(turn.prompt_tokens for session in self.sessions for turn in session.turns)

    @property
    def cached_tokens(self) -> int:
        return sum(turn.cached_tokens for session in self.sessions for turn in session.turns)

    @property
    def recomputed_tokens(self) -> int:
        """Prompt tokens that were computed although they had been computed before."""
        return max(0, self.prompt_tokens - self.cached_tokens - self.floor_tokens)

    @property
    def completions_s(self) -> list[float]:
        return [session.completion_s for session in self.sessions]

    @property
    def mean_s(self) -> float:
        return sum(self.completions_s) / len(self.sessions)

    @property
    def makespan_s(self) -> float:
        return max(turn.done_at for session in self.sessions for turn in session.turns)

    def ttft_p99_s(self, is_first: bool) -> float:
        """p99 time to first token of first turns, or of all later ones; the gateway's queue included."""
        return quantile(
            [
                turn.first_token_at - turn.wanted_at
                for session in self.sessions
                for turn in session.turns
                if (turn.index == 0) is is_first
            ],
            0.99,
        )


def quantile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


HEADER = (
    "KV pool",
    "arm",
    "recomputed tokens",
    "prefix hit",
    "mean session s",
    "p99 session s",
    "p99 TTFT s turn 1",
    "later turns",
    "makespan s",
)


def table(arms: Sequence[Arm]) -> str:
    """Arms in pairs of (straight, gateway), each pair followed by its ratios."""
    rows: list[tuple[str, ...]] = [HEADER]
    for straight, gateway in zip(arms[::2], arms[1::2], strict=True):
        rows += [_row(straight), _row(gateway), _ratios(straight, gateway)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADER))]
    lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:]])


def _row(arm: Arm) -> tuple[str, ...]:
    return (
        f"{arm.pool_tokens:,}",
        arm.name,
        f"{arm.recomputed_tokens:,}",
        f"{arm.cached_tokens / arm.prompt_tokens:.1%}",
        f"{arm.mean_s:.1f}",
        f"{quantile(arm.completions_s, 0.99):.1f}",
        f"{arm.ttft_p99_s(True):.1f}",
        f"{arm.ttft_p99_s(False):.2f}",
        f"{arm.makespan_s:.1f}",
    )


def _ratios(straight: Arm, gateway: Arm) -> tuple[str, ...]:
    def ratio(new: float, old: float) -> str:
        return f"{new / old:.2f}x" if old else "-"

    return (
        "",
        "ratio",
        ratio(gateway.recomputed_tokens, straight.recomputed_tokens),
        "",
        ratio(gateway.mean_s, straight.mean_s),
        ratio(quantile(gateway.completions_s, 0.99), quantile(straight.completions_s, 0.99)),
        ratio(gateway.ttft_p99_s(True), straight.ttft_p99_s(True)),
        ratio(gateway.ttft_p99_s(False), straight.ttft_p99_s(False)),
        ratio(gateway.makespan_s, straight.makespan_s),
    )
