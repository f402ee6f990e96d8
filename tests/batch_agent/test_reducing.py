from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel

from batch_agent import BatchAgent
from tests.batch_agent.scripted import Asked, Scripted, completion, refusal, says


class Plan(BaseModel):
    items: list[str]


class Answer(BaseModel):
    text: str


class Paper(BaseModel):
    title: str


REDUCE = {"task": "{n}", "inputs": [{"n": n} for n in range(3)], "model": "m", "reduce": "Sum up {n} as {'a': 1}."}
STAGES = {
    "plan_prompt": "Plan {topic}",
    "plan_inputs": {"topic": "caches"},
    "plan_output_schema": Plan,
    "task": "Answer {index}: {item}",
    "output_schema": Answer,
    "reduce": "Survey of {n}",
    "reduce_schema": Paper,
    "model": "m",
}


def staged(asked: Asked) -> Any:
    match asked.task.partition(" ")[0]:
        case "Plan":
            return says('{"items": ["a", "b"]}')
        case "Answer":
            return refusal(400, "no") if asked.task.endswith("b") else says('{"text": "yes"}')
        case _:
            return says('{"title": "Caches"}')


async def test_the_reducer_reads_all_results_failures_too(gateway: Scripted) -> None:
    def script(asked: Asked) -> Any:
        if asked.task.startswith("Sum up"):
            return says('{"title": "all"}')
        return refusal(400, "bad") if asked.task == "1" else says(f'{{"text": "{asked.task}"}}')

    gateway.script = script
    results, paper = await BatchAgent.run_with_reduce(
        **REDUCE, output_schema=Answer, reduce_schema=Paper, gateway=gateway.url
    )
    assert paper == Paper(title="all")
    assert [result.ok for result in results] == [True, False, True]
    prompt = gateway.asked[-1].task
    assert prompt.startswith("Sum up 3 as {'a': 1}.\n\nResults:\n")
    assert '{"status":"ok","index":0,"output":{"text":"0"}}' in prompt
    assert '"status":"error","index":1,"error":{"type":"HTTPStatusError"' in prompt


async def test_a_reducer_that_fails_is_an_error(gateway: Scripted) -> None:
    gateway.script = lambda asked: refusal(400, "no") if asked.task.startswith("Sum up") else says("x")
    with pytest.raises(RuntimeError, match="Reduce agent failed"):
        await BatchAgent.run_with_reduce(**REDUCE, gateway=gateway.url)


async def test_without_a_task_for_the_reducer_nothing_is_run(gateway: Scripted) -> None:
    with pytest.raises(ValueError, match="reduce"):
        await BatchAgent.run_with_reduce(task="x", inputs=[{}], gateway=gateway.url)
    assert gateway.asked == []


async def test_plan_map_reduce(gateway: Scripted) -> None:
    gateway.script = staged
    reported: list[Any] = []
    results, paper = await BatchAgent.run_with_map_reduce(
        **STAGES, planner_model="p", worker_model="w", on_result=reported.append, gateway=gateway.url
    )
    assert paper == Paper(title="Caches")
    assert [result.output for result in results] == [Answer(text="yes"), None]
    assert [result.index for result in sorted(reported, key=lambda result: int(result.index))] == [0, 1]
    assert {(asked.task.partition(" ")[0], asked.body["model"]) for asked in gateway.asked} == {
        *(("Plan", "p"), ("Answer", "w"), ("Survey", "m"))
    }
    assert sorted(asked.task for asked in gateway.asked if asked.body["model"] == "w") == [
        "Answer 0: a",
        "Answer 1: b",
    ]
    prompt = gateway.asked[-1].task
    assert 'Planner output:\n{"items":["a","b"]}' in prompt
    assert '"item":"a"' in prompt


async def test_a_plan_needs_items(gateway: Scripted) -> None:
    gateway.script = lambda asked: says('{"title": "no items"}')
    with pytest.raises(ValueError, match="items"):
        await BatchAgent.run_with_map_reduce(**{**STAGES, "plan_output_schema": Paper}, gateway=gateway.url)


async def test_the_budget_is_that_of_all_stages(gateway: Scripted) -> None:
    gateway.script = lambda asked: completion(
        says(staged(asked)["content"]), prompt_tokens=100, completion_tokens=0
    )
    with pytest.raises(RuntimeError, match=r"Reduce agent failed.*budget"):
        await BatchAgent.run_with_reduce(**REDUCE, budget_tokens=300, gateway=gateway.url)
    assert len(gateway.asked) == 3
