"""Batches whose results one more agent reduces, with or without an agent that plans their inputs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import orjson

from batch_agent.environment import gateway_url
from batch_agent.outage import Outage
from batch_agent.plan import fill
from batch_agent.results import AgentResult, Usage, jsonable
from batch_agent.spec import OUTAGE_S

Run = Callable[..., Awaitable[list[AgentResult]]]
"""`BatchAgent.run`."""


class _Stages:
    """Runs batches one after the other. They share the budget."""

    def __init__(self, run: Run, shared: Mapping[str, Any]) -> None:
        self._run = run
        self._shared = dict(shared)
        self._began_at = asyncio.get_running_loop().time()
        self._used = Usage()

    async def run(self, **keywords: Any) -> list[AgentResult]:
        given = self._shared | keywords
        if given.get("budget_tokens") is not None:
            given["budget_tokens"] = max(0, given["budget_tokens"] - self._used.total_tokens)
        if given.get("budget_s") is not None:
            given["budget_s"] = max(0.0, given["budget_s"] - asyncio.get_running_loop().time() + self._began_at)
        results = await self._run(**given)
        self._used = sum((result.usage for result in results), self._used)
        return results

    async def one(self, what: str, task: str, values: Mapping[str, Any], **keywords: Any) -> Any:
        """Return the output of a single agent. Raises RuntimeError if it has none."""
        (result,) = await self.run(**{"on_result": None, "max_agents": 1, **keywords}, task=task, inputs=[values])
        if result.error is not None:
            raise RuntimeError(f"{what} agent failed: {result.error}")
        return result.output


async def run_with_reduce(run: Run, keywords: Mapping[str, Any]) -> tuple[list[AgentResult], Any]:
    """See `BatchAgent.run_with_reduce`."""
    given = _with_outage(keywords)
    reduce, schema = given.pop("reduce", None), given.pop("reduce_schema", None)
    if not reduce:
        raise ValueError("run_with_reduce needs `reduce`, the task of the agent that reads the results")
    async with gateway_url(given.pop("gateway", ""), given.pop("backend", "")) as url:
        stages = _Stages(run, given | {"gateway": url})
        results = await stages.run()
        prompt = (
            f"{fill(reduce, {'n': len(results)})}\n\nResults:\n{_text([_entry(result) for result in results])}"
        )
        output = await stages.one("Reduce", "{prompt}", {"prompt": prompt}, output_schema=schema, runtime=None)
    return results, output


@dataclass(frozen=True, kw_only=True)
class MapReduce:
    """Keywords of `BatchAgent.run_with_map_reduce` beside those that hold for all stages."""

    plan_prompt: str
    plan_output_schema: Any
    """A schema with a list `items`."""
    task: str
    """The task for each item, in which `{item}` is the item and `{index}` its number."""
    output_schema: Any
    reduce: str
    """The task of the last agent, in which `{n}` is the number of items. The plan and the results follow it."""
    reduce_schema: Any
    plan_inputs: Mapping[str, Any] = field(default_factory=dict)
    model: str = ""
    planner_model: str | None = None
    worker_model: str | None = None
    reducer_model: str | None = None
    max_concurrent: int | None = None
    """For the agents that run `task`, as are the next two."""
    on_result: Any = None
    runtime: Any = None


async def run_with_map_reduce(run: Run, keywords: Mapping[str, Any]) -> tuple[list[AgentResult], Any]:
    """See `BatchAgent.run_with_map_reduce`."""
    shared = {"max_turns": 6, **_with_outage(keywords)}
    own = {one.name: shared.pop(one.name) for one in fields(MapReduce) if one.name in shared}
    job = MapReduce(**own)
    async with gateway_url(shared.pop("gateway", ""), shared.pop("backend", "")) as url:
        stages = _Stages(run, shared | {"gateway": url})
        plan = await stages.one(
            "Planner",
            job.plan_prompt,
            job.plan_inputs or {},
            output_schema=job.plan_output_schema,
            model=job.planner_model or job.model,
        )
        items = _items(plan)
        results = await stages.run(
            task=job.task,
            inputs=[{"item": item, "index": index} for index, item in enumerate(items)],
            output_schema=job.output_schema,
            model=job.worker_model or job.model,
            max_concurrent=job.max_concurrent,
            on_result=job.on_result,
            runtime=job.runtime,
        )
        entries = [_entry(result) | {"item": items[result.index]} for result in results]
        record = f"Planner output:\n{_text(jsonable(plan))}\n\nResults:\n{_text(entries)}"
        prompt = f"{fill(job.reduce, {'n': len(results)})}\n\n{record}"
        model = job.reducer_model or job.model
        reduced = await stages.one(
            "Reduce", "{prompt}", {"prompt": prompt}, output_schema=job.reduce_schema, model=model
        )
    return results, reduced


def _with_outage(keywords: Mapping[str, Any]) -> dict[str, Any]:
    """Add an `Outage` that all stages share: they also wait for a gateway that goes between two of them."""
    return {"outage": Outage(keywords.get("outage_s", OUTAGE_S)), **keywords}


def _items(plan: Any) -> list[str]:
    """Raises ValueError."""
    fields = jsonable(plan)
    items = fields.get("items") if isinstance(fields, dict) else None
    if not isinstance(items, list):
        raise ValueError("the output of the planner needs a list `items`: give it one in plan_output_schema")
    return [str(item) for item in items]


def _entry(result: AgentResult) -> dict[str, Any]:
    """Return the record of an agent that the reducer reads."""
    if result.error is None:
        return {"status": "ok", "index": result.index, "output": jsonable(result.output)}
    error = {"type": result.error.type, "message": result.error.message}
    return {"status": "error", "index": result.index, "error": error}


def _text(value: Any) -> str:
    return orjson.dumps(value, default=str).decode()
