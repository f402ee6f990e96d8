"""What one run of a fleet comes to, as its clients saw it."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.fleet.fleets import FleetSpec
from gateway.demo.agents import SessionRecord
from gateway.demo.report import quantile
from gateway.demo.workload import PlannedSession

SHORTEST_FIFO_WAIT_S = 1.0


@dataclass(frozen=True, slots=True)
class Figures:
    """Seconds are the clients' own, waiting before the engine included. Means and quantiles are over the sessions
    that ran to their end; `errors` counts the others."""

    makespan_s: float
    mean_session_s: float
    p50_session_s: float
    p95_session_s: float
    p99_session_s: float
    p99_ttft_first_s: float
    p99_ttft_later_s: float
    uncached_tokens: int
    floor_tokens: int
    """Prompt tokens that had to be computed: each distinct one once, in whole blocks."""
    prompt_tokens: int
    preemptions: int
    errors: int
    longest_first_wait_s: float
    worst_wait_over_fifo: float
    """Longest wait for a first token of a session, as a multiple of the wait that its place in the arrivals
    would have got from the same starts in order of arrival (counted as SHORTEST_FIFO_WAIT_S at least)."""


def figures(
    fleet: FleetSpec,
    planned: Sequence[PlannedSession],
    records: Sequence[SessionRecord],
    preemptions: int,
    hits_answers: bool,
) -> Figures:
    done = [record for record in records if record.failure is None]
    if not done:
        raise RuntimeError(f"no session ran to its end, one because: {records[0].failure}")
    turns = [turn for record in done for turn in record.turns]
    completions_s = [record.completion_s for record in done]
    ttft_s = {
        first: [t.first_token_at - t.wanted_at for t in turns if (t.index == 0) is first] or [0.0]
        for first in (True, False)
    }
    return Figures(
        makespan_s=max(turn.done_at for turn in turns),
        mean_session_s=statistics.mean(completions_s),
        p50_session_s=statistics.median(completions_s),
        p95_session_s=quantile(completions_s, 0.95),
        p99_session_s=quantile(completions_s, 0.99),
        p99_ttft_first_s=quantile(ttft_s[True], 0.99),
        p99_ttft_later_s=quantile(ttft_s[False], 0.99),
        uncached_tokens=sum(turn.prompt_tokens - turn.cached_tokens for turn in turns),
        floor_tokens=_floor_tokens(fleet, planned, records, hits_answers),
        prompt_tokens=sum(turn.prompt_tokens for turn in turns),
        preemptions=preemptions,
        errors=len(records) - len(done),
        longest_first_wait_s=max(ttft_s[True]),
        worst_wait_over_fifo=_worst_wait_over_fifo(done),
    )


def _floor_tokens(
    fleet: FleetSpec, planned: Sequence[PlannedSession], records: Sequence[SessionRecord], hits_answers: bool
) -> int:
    floor, is_first = 0, True
    for session, record in zip(planned, records, strict=True):
        if record.failure is not None:
            continue
        known_tokens = 0 if is_first else session.shared_tokens
        is_first = False
        for turn, seen in zip(session.turns, record.turns, strict=True):
            floor += seen.prompt_tokens - known_tokens // fleet.block_tokens * fleet.block_tokens
            known_tokens = seen.prompt_tokens + (turn.output_tokens if hits_answers else 0)
    return floor


def _worst_wait_over_fifo(records: Sequence[SessionRecord]) -> float:
    in_order = sorted(records, key=lambda record: record.arrived_at)
    starts = sorted(record.turns[0].first_token_at for record in records)
    return max(
        (record.turns[0].first_token_at - record.arrived_at) / max(start - record.arrived_at, SHORTEST_FIFO_WAIT_S)
        for record, start in zip(in_order, starts, strict=True)
    )
