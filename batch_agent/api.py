"""`BatchAgent`: runs a batch, gives its results in order or as they come, and reduces them."""

from __future__ import annotations

import inspect
import logging
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, aclosing
from typing import Any

from batch_agent import reducing
from batch_agent.batch import opened
from batch_agent.dispatch import Agents, in_order_of_completion
from batch_agent.outage import Outage
from batch_agent.results import AgentResult
from batch_agent.runtimes.base import Runtime
from batch_agent.spec import BatchSpec, OnResult

LOG = logging.getLogger(__name__)


class BatchAgent:
    """Every method takes the fields of `BatchSpec` as keywords, and

    - `runtime`: runs each agent as a process on the command line, see `batch_agent.runtimes`;
    - `outage`: a `batch_agent.Outage`, for batches that follow each other, or to be told in another way;
    - `max_agents`: another name of `max_concurrent`.

    An agent's failure is a result with an `error`. What is raised concerns the batch: ValueError and TypeError for
    what cannot be run, ConnectionError where there is no gateway.
    """

    @classmethod
    async def run(cls, **keywords: Any) -> list[AgentResult]:
        """The results in the order of the inputs."""
        async with aclosing(cls.stream(**keywords)) as stream:
            results = [result async for result in stream]
        return sorted(results, key=lambda result: result.index)

    @classmethod
    async def stream(cls, **keywords: Any) -> AsyncGenerator[AgentResult, None]:
        """The results as they come. Leaving the loop ends what still runs."""
        spec, runtime, outage = spec_of(keywords)
        async with _opened(spec, runtime, outage) as (agents, prompts):
            max_begun = spec.max_dispatched if spec.max_dispatched > 0 else None
            async with aclosing(in_order_of_completion(agents, prompts, max_begun)) as results:
                async for result in results:
                    await _tell(spec.on_result, result)
                    yield result

    @classmethod
    async def run_with_reduce(cls, **keywords: Any) -> tuple[list[AgentResult], Any]:
        """The results, and the output of one more agent that reads them: `reduce` is its task, `{n}` in it their
        number, `reduce_schema` its schema. It reads of failures, too. Raises RuntimeError if it fails."""
        return await reducing.run_with_reduce(cls.run, keywords)

    @classmethod
    async def run_with_map_reduce(cls, **keywords: Any) -> tuple[list[AgentResult], Any]:
        """A planner gives items, an agent works on each, a last one reads it all. Keywords of the stages are the
        fields of `batch_agent.reducing.MapReduce`. Raises RuntimeError if the first or the last one fails, and
        ValueError for a plan without items."""
        return await reducing.run_with_map_reduce(cls.run, keywords)


def spec_of(keywords: Mapping[str, Any]) -> tuple[BatchSpec, Runtime | None, Outage]:
    """Raises ValueError, TypeError."""
    given = dict(keywords)
    runtime, outage = given.pop("runtime", None), given.pop("outage", None)
    max_agents = given.pop("max_agents", None)
    if max_agents is not None:
        given.setdefault("max_concurrent", max_agents)
    if runtime is not None and not isinstance(runtime, Runtime):
        raise TypeError(f"runtime is an OpenCodeRuntime or a CommandRuntime, not {runtime!r}")
    spec = BatchSpec(**given)
    return spec, runtime, outage or Outage(spec.outage_s)


def _opened(
    spec: BatchSpec, runtime: Runtime | None, outage: Outage
) -> AbstractAsyncContextManager[tuple[Agents, Iterator[str]]]:
    return opened(spec, outage) if runtime is None else runtime.opened(spec, outage)


async def _tell(on_result: OnResult | None, result: AgentResult) -> None:
    """A callback that fails is logged: the batch is worth more than its report."""
    if on_result is None:
        return
    try:
        told = on_result(result)
        if inspect.isawaitable(told):
            await told
    except Exception:
        LOG.exception("on_result failed for %s", result.job_id)
