"""The named workloads of `turngate demo`, each played small on a fast engine."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from gateway.cli import demo_workloads
from gateway.cli.demo_workloads import WORKLOADS, DemoFigures, DemoWorkload, figures_table, messages_of, play_arm
from gateway.cli.main import main, parser
from gateway.config.settings import Embedded
from gateway.embedded.server import InProcessEngine

NUM_AGENTS = 6


def small(name: str) -> DemoWorkload:
    workload = WORKLOADS[name]
    return replace(
        workload,
        num_agents=NUM_AGENTS,
        num_topics=min(2, workload.num_topics),
        tool_s=min(0.05, workload.tool_s),
        shared_tokens=64,
        output_tokens=4,
    )


@pytest.fixture
async def base_url() -> AsyncIterator[str]:
    engine = InProcessEngine(Embedded(speed=1000))
    yield f"http://127.0.0.1:{await engine.start()}"
    await engine.stop()


@pytest.mark.parametrize("name", WORKLOADS)
async def test_all_arms_do_the_same_work(name: str, base_url: str) -> None:
    workload = small(name)
    arms = [await play_arm(workload, way, base_url) for way in workload.ways]
    prompt_tokens = [arm.prompt_tokens for arm in arms]
    assert prompt_tokens[1:] == [pytest.approx(prompt_tokens[0], rel=0.1)] * len(prompt_tokens[1:])
    for arm in arms:
        calls = NUM_AGENTS * workload.num_turns
        assert arm.num_requests == (1 if arm.way.is_list else calls)
        assert arm.wall_s > 0
        if workload.tool_s:
            assert arm.num_tool_runs == (workload.num_topics if arm.way.shares_tools else NUM_AGENTS)
    page = figures_table(arms)
    assert all(way.name in page for way in workload.ways)
    assert "x of the time" in page


def test_agents_share_a_prefix_in_all_arms_but_the_one_without() -> None:
    for workload in WORKLOADS.values():
        for way in workload.ways:
            one, other = (messages_of(workload, way, number, 4.0) for number in (1, 2))
            assert (one[0] == other[0]) is way.shares_prefix
            assert one[1] != other[1]


async def test_a_call_that_fails_ends_the_demo_with_its_reason(base_url: str) -> None:
    too_long = replace(small("fair"), shared_tokens=300_000)
    with pytest.raises(BaseExceptionGroup) as caught:
        await play_arm(too_long, too_long.ways[0], base_url)
    assert "maximum context length" in str(caught.value.exceptions[0])


@pytest.mark.parametrize("name", ["fleet", *WORKLOADS])
def test_each_name_is_taken_with_an_engine(name: str) -> None:
    arguments = parser().parse_args(["demo", name, "--engine", "vllm://gpu1:8000"])
    assert (arguments.workload, arguments.demo_engine) == (name, "vllm://gpu1:8000")


def test_every_workload_says_who_published_what() -> None:
    assert all(workload.published and workload.summary for workload in WORKLOADS.values())
    assert demo_workloads.figures_table([DemoFigures(way, wall_s=1.0) for way in WORKLOADS["tools"].ways])


@pytest.mark.parametrize("name", ["fleet", "research"])
def test_an_engine_that_does_not_answer_is_an_error_in_one_line(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["demo", name, "--engine", "vllm://127.0.0.1:1"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line == "turngate demo: http://127.0.0.1:1 does not accept connections: is the engine running?"


def test_a_picture_in_a_folder_that_is_not_there_is_told_before_the_demo(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["demo", "--png", str(tmp_path / "none" / "demo.png")]) == 2
    assert "there is no such folder" in capsys.readouterr().err
