"""Day-to-day agent sessions as public traces describe them: a calibrated generator, and the figures it must meet.

After TraceLab (arXiv 2606.30560; 4,265 sessions of Claude Code and Codex) and the recipe in the project's facts on
scheduling, section 5. The generator differs from them: tool results are cut at 30,000 tokens, as agents cut them
(without it the tail would make contexts grow several times faster than they are seen to); contexts are compacted
near 200k; and turns vary a little more, tools take a little longer than in the recipe, which meets the traces'
upper quantiles.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.simulation.workloads import AgentRun, ModelCall, Text
from gateway.cli.demo_fleet import quantile

MOST_TURNS = 1_200
MOST_APPEND_TOKENS = 30_000
CONTEXT_TOKENS = 205_000
COMPACTED_SHARE = 0.25
FORKING_SHARE = 0.44


@dataclass(frozen=True, slots=True)
class SessionClass:
    """Sessions that begin with the same prompt prefix."""

    name: str
    share: float
    shared_tokens: int


CLASSES = (
    SessionClass("coding", 0.7, 24_000),
    SessionClass("research", 0.2, 12_000),
    SessionClass("chat-tool", 0.1, 8_000),
)


def sessions(num_sessions: int, seed: int, rate_per_s: float = 1.0, scale: float = 1.0) -> list[AgentRun]:
    """Poisson arrivals; all token counts times `scale`, for engines of less memory."""
    rng = random.Random(seed)
    runs, at = [], 0.0
    for number in range(num_sessions):
        at += rng.expovariate(rate_per_s)
        kind = rng.choices(CLASSES, [kind.share for kind in CLASSES])[0]
        runs.append(_Author(rng, kind, f"{kind.name}-{number}", scale).run(at))
    return runs


class _Author:
    """Writes one session; its context is compacted into a new text when it passes the limit."""

    def __init__(self, rng: random.Random, kind: SessionClass, name: str, scale: float) -> None:
        self._rng, self._kind, self._name, self._scale = rng, kind, name, scale
        self._shared_tokens = round(kind.shared_tokens * scale)
        self._num_texts = 0

    def run(self, arrives_at: float) -> AgentRun:
        num_turns = self._turns(15, 1.78)
        fork_at = self._rng.randrange(num_turns) if self._rng.random() < FORKING_SHARE else -1
        first_tokens = self._shared_tokens + round(self._rng.uniform(1_000, 4_000) * self._scale)
        calls = self._calls(Text((self._shared_tokens, self._kind.name)), first_tokens, num_turns, fork_at)
        return AgentRun(self._name, self._kind.name, arrives_at, calls, self._kind.name)

    def _turns(self, median: float, sigma: float) -> int:
        return min(MOST_TURNS, max(1, round(median * math.exp(self._rng.gauss(0, sigma)))))

    def _calls(self, prefix: Text, first_tokens: int, num_turns: int, fork_at: int = -1) -> tuple[ModelCall, ...]:
        """`fork_at`: the turn that starts sub-agents; -1 none."""
        calls: list[ModelCall] = []
        sizes: list[tuple[int, int, float]] = []
        prompt_tokens, limit_tokens = first_tokens, round(CONTEXT_TOKENS * self._scale)
        for turn in range(num_turns):
            output_tokens = max(1, round(self._lognormal(214, 1.34) * self._scale))
            sizes.append((prompt_tokens, output_tokens, gap_s(self._rng)))
            append_tokens = min(MOST_APPEND_TOKENS, self._lognormal(875, 2.0)) * self._scale
            prompt_tokens += output_tokens + max(1, round(append_tokens))
            if prompt_tokens > limit_tokens or turn == num_turns - 1:
                calls += self._written(prefix, sizes, fork_at - len(calls))
                sizes, prompt_tokens = [], max(first_tokens, round(limit_tokens * COMPACTED_SHARE))
        return tuple(calls)

    def _written(self, prefix: Text, sizes: Sequence[tuple[int, int, float]], fork_at: int) -> list[ModelCall]:
        """The calls between two compactions share one text."""
        self._num_texts += 1
        end = sizes[-1][0] + sizes[-1][1]
        text = prefix.upto(prefix.parts[-1][0], (end, f"{self._name}.{self._num_texts}"))
        return [
            ModelCall(text, *size, self._children(text, size[0]) if turn == fork_at else ())
            for turn, size in enumerate(sizes)
        ]

    def _children(self, text: Text, fork_tokens: int) -> tuple[AgentRun, ...]:
        children = []
        for number in range(self._rng.randint(1, 4)):
            child = _Author(self._rng, self._kind, f"{self._name}/{number}", self._scale)
            first_tokens = fork_tokens + max(1, round(self._rng.uniform(200, 1_000) * self._scale))
            calls = child._calls(text.upto(fork_tokens), first_tokens, child._turns(5, 0.8))
            label = f"{self._kind.name}/child"
            children.append(AgentRun(child._name, self._kind.name, 0.0, calls, label, parent_id=self._name))
        return tuple(children)

    def _lognormal(self, median: float, sigma: float) -> float:
        return median * math.exp(self._rng.gauss(0.0, sigma))


def gap_s(rng: random.Random) -> float:
    """Tool time: most are short, 4 % are longer than a minute and hold most of the time."""
    which = rng.random()
    if which < 0.62:
        return 0.12 * math.exp(rng.gauss(0.0, 1.2))
    if which < 0.962:
        return 4.6 * math.exp(rng.gauss(0.0, 1.1))
    return min(7_200.0, 60.0 / (1.0 - rng.random()))


@dataclass(frozen=True, slots=True)
class Marginals:
    """What is compared with the traces; sub-agents are left out, as TraceLab leaves them out."""

    turns_mean: float
    turns_p50: float
    turns_p90: float
    turns_p99: float
    append_p50_tokens: float
    output_p50_tokens: float
    context_p50_tokens: float
    """Of a call."""
    gap_p50_s: float
    gap_p90_s: float
    gap_p99_s: float
    infinite_cache_hits: float
    """Share of prompt tokens that a cache of any size would find, answers included."""


def marginals(runs: Sequence[AgentRun]) -> Marginals:
    turns = [float(len(run.calls)) for run in runs]
    calls = [call for run in runs for call in run.calls]
    steps = [pair for run in runs for pair in zip(run.calls, run.calls[1:], strict=False)]
    appends = [b.prompt_tokens - a.prompt_tokens - a.output_tokens for a, b in steps if a.text is b.text]
    gaps = [call.gap_s for call in calls]
    seen: set[str] = set()
    uncached_tokens = sum(call.prompt_tokens for call in calls)
    for run in runs:
        shared_tokens = run.calls[0].text.parts[0][0]
        known_tokens = shared_tokens if run.family_id in seen else 0
        seen.add(run.family_id)
        last = None
        for call in run.calls:
            if last is not None:
                is_same = last.text is call.text
                known_tokens = last.prompt_tokens + last.output_tokens if is_same else shared_tokens
            uncached_tokens -= min(known_tokens, call.prompt_tokens)
            last = call
    return Marginals(
        turns_mean=sum(turns) / len(turns),
        turns_p50=quantile(turns, 0.5),
        turns_p90=quantile(turns, 0.9),
        turns_p99=quantile(turns, 0.99),
        append_p50_tokens=quantile([float(append) for append in appends], 0.5),
        output_p50_tokens=quantile([float(call.output_tokens) for call in calls], 0.5),
        context_p50_tokens=quantile([float(call.prompt_tokens) for call in calls], 0.5),
        gap_p50_s=quantile(gaps, 0.5),
        gap_p90_s=quantile(gaps, 0.9),
        gap_p99_s=quantile(gaps, 0.99),
        infinite_cache_hits=1 - uncached_tokens / sum(call.prompt_tokens for call in calls),
    )
