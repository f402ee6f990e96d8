"""The page of `turngate bench`: its runs side by side, their ratios with the noise of the repeats, and one plain
sentence that says what the gate gains."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from gateway.cli.demo_fleet import SessionRecord, quantile

STRAIGHT, OBSERVE, TURNS = "straight", "observe", "turns"
ARMS = (STRAIGHT, OBSERVE, TURNS)
FORMS = (".md", ".json")
LEAST_EFFECT = 0.02
"""A smaller difference counts as none, however regular it is."""
SINGLE_NOISE = 0.1
"""What one repeat alone may be off by."""
_T_95 = (6.314, 2.920, 2.353, 2.132, 2.015, 1.943, 1.895, 1.860, 1.833)
"""Student's t for a one-sided 5 %, by degrees of freedom from 1 (NIST/SEMATECH e-Handbook, 1.3.6.7.2)."""
NO_TOKENS_SAVED = 0.03


@dataclass(frozen=True, slots=True)
class GateLedger:
    """What a gateway says of its gate, in seconds of sessions; of `observe`, of a gate that is not there."""

    held_s: float = 0.0
    saved_s: float = 0.0

    @property
    def net_s(self) -> float:
        return self.saved_s - self.held_s


@dataclass(frozen=True, slots=True)
class BenchRun:
    """The figures of one run of the fleet. Seconds are the clients' own, waits at the gate included."""

    arm: str
    repeat: int
    makespan_s: float
    mean_s: float
    p99_s: float
    ttft_first_p99_s: float
    ttft_later_p99_s: float
    prompt_tokens: int
    cached_tokens: int
    ledger: GateLedger = GateLedger()

    @property
    def computed_tokens(self) -> int:
        return self.prompt_tokens - self.cached_tokens


def run_of(arm: str, repeat: int, records: Sequence[SessionRecord], ledger: GateLedger) -> BenchRun:
    """Raises RuntimeError where sessions failed."""
    if failures := [record.failure for record in records if record.failure]:
        raise RuntimeError(f"{len(failures)} of {len(records)} sessions failed ({arm}), one with: {failures[0]}")
    turns = [turn for record in records for turn in record.turns]
    completions_s = [record.completion_s for record in records]
    ttft_s = {first: [turn.ttft_s for turn in turns if (turn.index == 0) is first] for first in (True, False)}
    return BenchRun(
        arm=arm,
        repeat=repeat,
        makespan_s=max(turn.done_at for turn in turns),
        mean_s=statistics.mean(completions_s),
        p99_s=quantile(completions_s, 0.99),
        ttft_first_p99_s=quantile(ttft_s[True], 0.99),
        ttft_later_p99_s=quantile(ttft_s[False] or [0.0], 0.99),
        prompt_tokens=sum(turn.prompt_tokens for turn in turns),
        cached_tokens=sum(turn.cached_tokens for turn in turns),
        ledger=ledger,
    )


@dataclass(frozen=True, slots=True)
class Ratio:
    """An arm to `straight`: the geometric mean over the repeats, and its interval at 90 %."""

    value: float
    low: float
    high: float

    @property
    def is_less(self) -> bool:
        return self.high < 1.0 and self.value <= 1.0 - LEAST_EFFECT

    @property
    def is_more(self) -> bool:
        return self.low > 1.0 and self.value >= 1.0 + LEAST_EFFECT

    def __str__(self) -> str:
        return f"{self.value:.2f} ({self.low:.2f} to {self.high:.2f})"


def ratio_of(pairs: Sequence[tuple[float, float]]) -> Ratio:
    """Of (with the arm, straight), one pair for each repeat, with the interval of Student's t over the logarithms.
    Of a single pair the noise is not known; it counts as SINGLE_NOISE."""
    logs = [math.log(new / old) for new, old in pairs]
    mean, num = statistics.mean(logs), len(logs)
    if num == 1:
        margin = math.log1p(SINGLE_NOISE)
    else:
        margin = _T_95[min(num - 1, len(_T_95)) - 1] * statistics.stdev(logs) / math.sqrt(num)
    return Ratio(math.exp(mean), math.exp(mean - margin), math.exp(mean + margin))


@dataclass(frozen=True, slots=True)
class BenchReport:
    """The result of a bench. `runs`: of whole repeats only."""

    engine: str
    fleet: str
    pool_tokens: int | None
    peak_tokens: int
    runs: Sequence[BenchRun]
    took_s: float = 0.0
    notes: Sequence[str] = field(default_factory=tuple)

    @property
    def num_repeats(self) -> int:
        return len({run.repeat for run in self.runs})

    def of(self, arm: str) -> list[BenchRun]:
        return [run for run in sorted(self.runs, key=lambda run: run.repeat) if run.arm == arm]

    def ratio(self, arm: str, figure: Callable[[BenchRun], float]) -> Ratio:
        pairs = zip(self.of(arm), self.of(STRAIGHT), strict=True)
        return ratio_of([(figure(new), figure(old)) for new, old in pairs])

    def ledger(self, arm: str) -> GateLedger:
        """Return the mean over the repeats."""
        found = [run.ledger for run in self.of(arm)]
        return GateLedger(
            *(statistics.mean(getattr(one, name) for one in found) for name in ("held_s", "saved_s"))
        )

    @property
    def says_cached(self) -> bool:
        """Whether the engine states how much of a prompt it had in its cache."""
        return any(run.cached_tokens for run in self.runs)

    # ---- the sentence

    @property
    def verdict(self) -> str:
        """`gains`, `nothing` or `costs`."""
        mean, makespan = self.ratio(TURNS, mean_of), self.ratio(TURNS, makespan_of)
        if mean.is_less or (makespan.is_less and not mean.is_more):
            return "gains"
        return "costs" if mean.is_more or makespan.is_more else "nothing"

    def sentence(self) -> str:
        mean, makespan = self.ratio(TURNS, mean_of), self.ratio(TURNS, makespan_of)
        noise = "one repeat" if self.num_repeats == 1 else f"{self.num_repeats} repeats"
        figures = f"the mean session takes {mean} of its time straight, and all of them together {makespan}"
        match self.verdict:
            case "gains":
                price = "; the fleet as a whole takes longer for it" if makespan.is_more else ""
                return f"The gate gains here: over {noise}, {figures}{price}."
            case "costs":
                remedy = "serve with --set policy.name=observe, which holds nothing, and please report this"
                return f"The gate costs here: over {noise}, {figures}. {remedy[0].upper()}{remedy[1:]}."
            case _:
                return f"The gate gains nothing here{self._reason()}: over {noise}, {figures}, which is noise."

    def _reason(self) -> str:
        """Return why there is nothing to gain, as far as the figures show it."""
        if self.pool_tokens is not None and self.peak_tokens <= self.pool_tokens:
            return ", as all contexts fit into the cache at once"
        straight, turns = (sum(run.computed_tokens for run in self.of(arm)) for arm in (STRAIGHT, TURNS))
        if self.says_cached and turns >= (1 - NO_TOKENS_SAVED) * straight:
            return ", as it saves no tokens of prompts"
        return ", as its waits cost as much as they save"

    # ---- the page

    def rows(self) -> Iterator[tuple[str, ...]]:
        yield _HEADER
        for arm in ARMS:
            runs = self.of(arm)
            yield (
                arm,
                *(f"{statistics.mean(map(figure, runs)):.2f}" for _, figure in _SECONDS),
                *self._tokens(runs),
            )
            if arm != STRAIGHT:
                ratios = (self._ratio_cell(arm, figure) for _, figure in _SECONDS)
                yield f"{arm} / {STRAIGHT}", *ratios, self._tokens_ratio(arm), ""

    def _ratio_cell(self, arm: str, figure: Callable[[BenchRun], float]) -> str:
        """Return a ratio; empty where there is none, as of later turns in a fleet without any."""
        is_there = all(figure(run) > 0 for run in self.runs)
        return f"{self.ratio(arm, figure).value:.2f}x" if is_there else ""

    def _tokens(self, runs: Sequence[BenchRun]) -> tuple[str, str]:
        if not self.says_cached:
            return "not stated", "not stated"
        computed, prompt = (sum(getattr(run, f"{name}_tokens") for run in runs) for name in ("computed", "prompt"))
        return f"{computed / len(runs):,.0f}", f"{1 - computed / prompt:.1%}"

    def _tokens_ratio(self, arm: str) -> str:
        new, old = (sum(run.computed_tokens for run in self.of(one)) for one in (arm, STRAIGHT))
        return f"{new / old:.2f}x" if old and self.says_cached else ""

    def _said(self) -> Iterator[str]:
        """Yield the lines below the table."""
        noise = "a single repeat" if self.num_repeats == 1 else f"{self.num_repeats} repeats, the arms in turn"
        yield f"Means of {noise}; seconds are the clients' own; {self.took_s / 60:.1f} minutes in all."
        turns, observe = self.ledger(TURNS), self.ledger(OBSERVE)
        yield (
            f"Ledger of the gate: it saved {turns.saved_s:.0f} s of sessions and cost {turns.held_s:.0f} s in a "
            f"run; `{OBSERVE}` foresaw a net of {observe.net_s:.0f} s."
        )
        yield from self.notes

    def as_text(self) -> str:
        rows = list(self.rows())
        widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADER))]
        lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
        table = [lines[0], "-" * len(lines[0]), *lines[1:]]
        return "\n".join([*table, "", *self._said(), "", f"=> {self.sentence()}"])

    def as_markdown(self) -> str:
        first, *rest = self.rows()
        table = [
            f"| {' | '.join(first)} |",
            "|---" * len(first) + "|",
            *(f"| {' | '.join(row)} |" for row in rest),
        ]
        head = ["# turngate bench", "", f"**{self.sentence()}**", "", f"- Engine: {self.engine}"]
        said = [f"- {line}" for line in self._said()]
        return "\n".join([*head, f"- Fleet: {self.fleet}", *said, "", *table]) + "\n"

    def as_json(self) -> str:
        ratios = {
            arm: {name: self.ratio(arm, figure) for name, figure in (("mean", mean_of), ("makespan", makespan_of))}
            for arm in ARMS[1:]
        }
        whole: dict[str, Any] = {
            "verdict": self.verdict,
            "sentence": self.sentence(),
            "engine": self.engine,
            "fleet": self.fleet,
            "pool_tokens": self.pool_tokens,
            "peak_tokens": self.peak_tokens,
            "took_s": round(self.took_s, 1),
            "ratios_to_straight": ratios,
            "ledgers": {arm: self.ledger(arm) for arm in ARMS[1:]},
            "runs": self.runs,
            "notes": self.notes,
        }
        return orjson.dumps(whole, option=orjson.OPT_INDENT_2).decode() + "\n"

    def write(self, file: Path) -> None:
        """Write Markdown or JSON, by the name of the file. Raises OSError."""
        text = self.as_markdown() if file.suffix.lower() == ".md" else self.as_json()
        file.write_text(text, encoding="utf-8")


def mean_of(run: BenchRun) -> float:
    return run.mean_s


def makespan_of(run: BenchRun) -> float:
    return run.makespan_s


_SECONDS: Sequence[tuple[str, Callable[[BenchRun], float]]] = (
    ("mean session s", mean_of),
    ("p99 session s", lambda run: run.p99_s),
    ("makespan s", makespan_of),
    ("p99 TTFT s, turn 1", lambda run: run.ttft_first_p99_s),
    ("later turns", lambda run: run.ttft_later_p99_s),
)
_HEADER = ("arm", *(name for name, _ in _SECONDS), "tokens computed", "prefix hit")
