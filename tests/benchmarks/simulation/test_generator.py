"""Laws of the calibrated generator: it is accepted only while it meets what the public traces show."""

from __future__ import annotations

from dataclasses import asdict

import pytest

from benchmarks.simulation.generator import Marginals, marginals, sessions
from benchmarks.simulation.workloads import everyone

TRACES = Marginals(
    turns_mean=73.6,
    turns_p50=15,
    turns_p90=135,
    turns_p99=1_107,
    append_p50_tokens=875,
    output_p50_tokens=214,
    context_p50_tokens=119_000,
    gap_p50_s=0.3,
    gap_p90_s=13.6,
    gap_p99_s=216,
    infinite_cache_hits=0.957,
)
"""TraceLab, arXiv 2606.30560."""


def test_the_generator_shows_what_the_traces_show() -> None:
    """Every marginal within 15 percent; of an infinite cache one percent of all tokens."""
    drawn, traces = asdict(marginals(sessions(4_000, seed=1))), asdict(TRACES)
    assert drawn.pop("infinite_cache_hits") == pytest.approx(traces.pop("infinite_cache_hits"), abs=0.01)
    assert drawn == pytest.approx(traces, rel=0.15)


def test_equal_seeds_give_equal_sessions() -> None:
    def sizes(seed: int) -> list[tuple[str, int, int]]:
        runs = everyone(sessions(50, seed))
        return [(run.id, call.prompt_tokens, call.output_tokens) for run in runs for call in run.calls]

    assert sizes(1) == sizes(1)
    assert sizes(1) != sizes(2)


def test_prompts_grow_until_their_context_is_compacted() -> None:
    compacted = 0
    for run in sessions(300, seed=3):
        for before, after in zip(run.calls, run.calls[1:], strict=False):
            if before.text is after.text:
                assert after.prompt_tokens > before.prompt_tokens + before.output_tokens
            else:
                compacted += 1
                assert after.prompt_tokens < before.prompt_tokens
    assert compacted


def test_sub_agents_share_the_prefix_of_their_parent_at_the_fork() -> None:
    forked = [(call, child) for run in sessions(100, seed=4) for call in run.calls for child in call.children]
    assert forked
    for call, child in forked:
        assert child.calls[0].text.shared(call.text) == call.prompt_tokens
