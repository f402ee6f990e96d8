"""`BatchAgent`: runs a batch, gives its results in order or as they come, and reduces them."""

from __future__ import annotations

import inspect
import logging
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from itertools import chain
from typing import Any

from batch_agent import environment, reducing
from batch_agent.batch import Agents, in_order_of_completion, only_model, opened, reached
from batch_agent.calls import ModelCalls, Slots
from batch_agent.connection import Connection, Json, error_text
from batch_agent.environment import gateway_url
from batch_agent.outage import Outage
from batch_agent.plan import fill
from batch_agent.results import AgentError, AgentFailed, AgentResult, BadAnswer, error_of
from batch_agent.runtimes.base import Runtime
from batch_agent.spec import OUTAGE_S, BatchSpec, OnResult

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


# --- Many prompts at once: scatter and gather, map and gather, reduce in a tree; a list of prompts is one request.

MOST_PROMPTS = 10_000
"""In one request: what the gateway takes."""
_APART = {"X-Turngate-Prompt-Errors": "separate"}
"""A prompt that cannot be answered fails alone, instead of the request."""


async def scatter_gather(
    prompts: Sequence[str],
    *,
    model: str = "",
    gateway: str = "",
    backend: str = "",
    api_key: str = "",
    sampling: Mapping[str, Any] | None = None,
    chat: bool = False,
    system_prompt: str = "",
    max_retries: int = 3,
    outage_s: float = OUTAGE_S,
    outage: Outage | None = None,
) -> list[AgentResult]:
    """The answer to each prompt, in their order; one that fails is a result with an error.

    They go without a chat template, as one list to /v1/completions, which the gateway spreads over its engines.
    With `chat` each is a user message under `system_prompt`, in a request of its own. A list may take hours, and
    its answer comes when all is done: what bounds it is whoever waits for this. Raises as `BatchAgent.run`.
    """
    outage = outage or Outage(outage_s)
    if chat:
        inputs = [{"prompt": prompt} for prompt in prompts]
        where = {"gateway": gateway, "backend": backend, "api_key": api_key, "model": model, "outage": outage}
        how = {"system_prompt": system_prompt, "sampling": sampling or {}, "max_retries": max_retries}
        return await BatchAgent.run(task="{prompt}", inputs=inputs, **where, **how)
    if system_prompt:
        raise ValueError("system_prompt needs chat=True: without a chat template there is no system message")
    async with (
        gateway_url(gateway, backend) as url,
        Connection(url, api_key or environment.api_key(), silence_s=None) as connection,
    ):
        await reached(outage, connection)
        calls = ModelCalls(connection, Slots(1), max_retries, outage=outage)
        asked = {"model": model or await only_model(connection, outage), **(sampling or {})}
        parts = (prompts[start : start + MOST_PROMPTS] for start in range(0, len(prompts), MOST_PROMPTS))
        answers = [await _completions(calls, asked, part, MOST_PROMPTS * n) for n, part in enumerate(parts)]
        return list(chain.from_iterable(answers))


async def map_gather(template: str, inputs: Sequence[Mapping[str, Any]], **keywords: Any) -> list[AgentResult]:
    """`scatter_gather` of a template filled with each input. Raises ValueError for a field that an input lacks."""
    return await scatter_gather([fill(template, values) for values in inputs], **keywords)


async def tree_reduce(
    template: str, texts: Sequence[str], *, fan_in: int = 8, separator: str = "\n\n", **keywords: Any
) -> str:
    """One text of many: `{texts}` in the template are `fan_in` of them, and the answers are reduced likewise until
    one is left. Raises RuntimeError when a part fails, since what is left would not be of all."""
    if fan_in < 2:
        raise ValueError("fan_in must be at least 2")
    if not texts:
        raise ValueError("there is nothing to reduce")
    keywords.setdefault("outage", Outage(keywords.get("outage_s", OUTAGE_S)))
    left = list(texts)
    while len(left) > 1:
        groups = [left[start : start + fan_in] for start in range(0, len(left), fan_in)]
        whole = [group for group in groups if len(group) > 1]
        results = await map_gather(template, [{"texts": separator.join(group)} for group in whole], **keywords)
        if failed := [result.error for result in results if result.error is not None]:
            raise RuntimeError(f"{len(failed)} of {len(whole)} parts failed, one with: {failed[0]}")
        # A last one that is alone goes up a level as it is.
        left = [str(result.output) for result in results] + [group[0] for group in groups if len(group) == 1]
    return left[0]


async def _completions(calls: ModelCalls, asked: Json, prompts: Sequence[str], start: int) -> list[AgentResult]:
    """Answers are found by their index, never by their position; `start` is the index of the first prompt."""
    indexes = range(start, start + len(prompts))
    try:
        answer = await calls.post("/completions", {**asked, "prompt": list(prompts)}, _APART)
        found = {choice["index"] + start: choice for choice in answer["choices"]}
    except (AgentFailed, TimeoutError) as error:
        return [AgentResult(f"job-{index}", index, None, error_of(error)) for index in indexes]
    except (KeyError, TypeError):
        raise BadAnswer("the gateway answered what is no completion") from None
    return [_result(index, found.get(index)) for index in indexes]


def _result(index: int, choice: Json | None) -> AgentResult:
    name = f"job-{index}"
    if choice is None:
        return AgentResult(name, index, None, AgentError("BadAnswer", "there is no answer to this prompt"))
    if choice.get("error"):
        return AgentResult(name, index, None, AgentError("PromptError", error_text(choice)))
    return AgentResult(name, index, choice["text"], finish_reason=choice.get("finish_reason") or "", turns=1)
