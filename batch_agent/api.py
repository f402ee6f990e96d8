"""The functions that users call: `BatchAgent` for agents, and scatter, gather and reduce for lists of prompts."""

from __future__ import annotations

import inspect
import logging
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from itertools import accumulate, chain, pairwise
from pathlib import Path
from typing import Any

from batch_agent import environment, reducing
from batch_agent.batch import Agents, in_order_of_completion, only_model, opened, reached
from batch_agent.calls import ModelCalls, Slots, usage_of
from batch_agent.connection import Connection, error_text
from batch_agent.environment import gateway_url
from batch_agent.inputs import read_inputs
from batch_agent.outage import Outage
from batch_agent.plan import fill
from batch_agent.results import AgentError, AgentFailed, AgentResult, BadAnswer, Usage, error_of
from batch_agent.runtimes.base import Runtime
from batch_agent.spec import KEYWORDS, OUTAGE_S, BatchSpec, OnResult, hint
from tool_runtime.types import Json

LOG = logging.getLogger(__name__)


class BatchAgent:
    """Every method takes the fields of `BatchSpec` as keywords, and

    - `runtime`: runs each agent as a process on the command line, see `batch_agent.runtimes`;
    - `outage`: a `batch_agent.Outage` that several batches share, or that reports in another way;
    - `max_agents`: another name of `max_concurrent`.

    An agent's failure is a result with an `error`. Exceptions concern the whole batch: ValueError and TypeError
    for a batch that cannot run, ConnectionError where there is no gateway.
    """

    @classmethod
    async def run(cls, **keywords: Any) -> list[AgentResult]:
        """Return the results in the order of the inputs."""
        async with aclosing(cls.stream(**keywords)) as stream:
            results = [result async for result in stream]
        return sorted(results, key=lambda result: result.index)

    @classmethod
    async def stream(cls, **keywords: Any) -> AsyncGenerator[AgentResult, None]:
        """Yield the results as they come. Leaving the loop ends the agents that still run."""
        spec, runtime, outage = spec_of(keywords)
        async with _opened(spec, runtime, outage) as (agents, prompts):
            max_begun = spec.max_dispatched if spec.max_dispatched > 0 else None
            async with aclosing(in_order_of_completion(agents, prompts, max_begun)) as results:
                async for result in results:
                    await _report(spec.on_result, result)
                    yield result

    @classmethod
    async def run_with_reduce(cls, **keywords: Any) -> tuple[list[AgentResult], Any]:
        """Return the results, and the output of one more agent that reads all of them, failures too.

        `reduce` is its task, in which `{n}` is the number of results. `reduce_schema` is its output schema. Raises
        RuntimeError if this agent fails.
        """
        return await reducing.run_with_reduce(cls.run, keywords)

    @classmethod
    async def run_with_map_reduce(cls, **keywords: Any) -> tuple[list[AgentResult], Any]:
        """Let a planner make items, let an agent work on each item, and let a last agent read all results.

        The keywords of these stages are the fields of `batch_agent.reducing.MapReduce`. Raises RuntimeError if the
        first or the last agent fails, and ValueError for a plan without items.
        """
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
    if unknown := sorted(given.keys() - KEYWORDS):
        raise TypeError("; ".join(f"there is no keyword {key}{hint(key)}" for key in unknown))
    if isinstance(place := given.get("inputs"), str | Path):
        given["inputs"] = read_inputs(place, str(given.get("task", "")))
    spec = BatchSpec(**given)
    return spec, runtime, outage or Outage(spec.outage_s)


def _opened(
    spec: BatchSpec, runtime: Runtime | None, outage: Outage
) -> AbstractAsyncContextManager[tuple[Agents, Iterator[str]]]:
    return opened(spec, outage) if runtime is None else runtime.opened(spec, outage)


async def _report(on_result: OnResult | None, result: AgentResult) -> None:
    """Call the callback. Its failure is logged, and does not end the batch."""
    if on_result is None:
        return
    try:
        returned = on_result(result)
        if inspect.isawaitable(returned):
            await returned
    except Exception:
        LOG.exception("on_result failed for %s", result.job_id)


# ---- lists of prompts, each one request

MOST_PROMPTS = 10_000
"""Prompts that the gateway takes in one request."""
_APART = {"X-Turngate-Prompt-Errors": "separate"}
"""The header with which a prompt that cannot be answered fails alone, instead of the request."""


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
    """Return the answer to each prompt, in the order of the prompts. A failure is a result with an error.

    Without `chat` the prompts go to /v1/completions as one list, without a chat template, and the gateway spreads
    them over its engines. Such a list may take hours, and its answer comes as a whole: bound it with
    `asyncio.timeout`. With `chat` each prompt is a user message under `system_prompt`, in a request of its own.
    Raises as `BatchAgent.run`.
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
        common = {"model": model or await only_model(connection, outage), **(sampling or {})}
        parts = (prompts[start : start + MOST_PROMPTS] for start in range(0, len(prompts), MOST_PROMPTS))
        answers = [await _completions(calls, common, part, MOST_PROMPTS * n) for n, part in enumerate(parts)]
        return list(chain.from_iterable(answers))


async def map_gather(template: str, inputs: Sequence[Mapping[str, Any]], **keywords: Any) -> list[AgentResult]:
    """Fill a template with each input, then `scatter_gather`. Raises ValueError for a missing field."""
    return await scatter_gather([fill(template, values) for values in inputs], **keywords)


async def tree_reduce(
    template: str, texts: Sequence[str], *, fan_in: int = 8, separator: str = "\n\n", **keywords: Any
) -> str:
    """Reduce many texts to one. Raises RuntimeError when a part fails: the last text would lack that part.

    `{texts}` in the template stands for `fan_in` texts. The answers are reduced in the same way until one is left.
    """
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
        # A last text that is alone goes up a level as it is.
        left = [str(result.output) for result in results] + [group[0] for group in groups if len(group) == 1]
    return left[0]


async def _completions(calls: ModelCalls, common: Json, prompts: Sequence[str], start: int) -> list[AgentResult]:
    """Find answers by their index, never by their position. `start` is the index of the first prompt."""
    indexes = range(start, start + len(prompts))
    try:
        answer = await calls.post("/completions", {**common, "prompt": list(prompts)}, _APART)
        found = {choice["index"] + start: choice for choice in answer["choices"]}
    except (AgentFailed, TimeoutError) as error:
        return [AgentResult(f"job-{index}", index, None, error_of(error)) for index in indexes]
    except (KeyError, TypeError):
        raise BadAnswer("the gateway answered what is no completion") from None
    choices = [found.get(index) for index in indexes]
    answered = [choice is not None and not choice.get("error") for choice in choices]
    usages = shared_usage(
        usage_of(answer),
        [len(prompt) if is_in else 0 for prompt, is_in in zip(prompts, answered, strict=True)],
        [len(choice["text"]) if choice and is_in else 0 for choice, is_in in zip(choices, answered, strict=True)],
    )
    return [_result(*each) for each in zip(indexes, choices, usages, strict=True)]


def shared_usage(total: Usage, prompt_chars: Sequence[int], answer_chars: Sequence[int]) -> list[Usage]:
    """Return each prompt's part of the tokens of a list, by lengths: an answer to a list counts them as one sum.
    The parts have that sum."""
    prompt_tokens = _parts(total.prompt_tokens, prompt_chars)
    cached_tokens = _parts(total.cached_tokens, prompt_chars)
    completion_tokens = _parts(total.completion_tokens, answer_chars)
    return list(map(Usage, prompt_tokens, cached_tokens, completion_tokens))


def _parts(total: int, sizes: Sequence[int]) -> list[int]:
    whole = sum(sizes)
    bounds = [total * before // whole if whole else 0 for before in accumulate(sizes, initial=0)]
    return [end - begin for begin, end in pairwise(bounds)]


def _result(index: int, choice: Json | None, usage: Usage) -> AgentResult:
    name = f"job-{index}"
    if choice is None:
        return AgentResult(name, index, None, AgentError("BadAnswer", "there is no answer to this prompt"))
    if choice.get("error"):
        return AgentResult(name, index, None, AgentError("PromptError", error_text(choice)))
    reason = choice.get("finish_reason") or ""
    return AgentResult(name, index, choice["text"], finish_reason=reason, turns=1, usage=usage)
