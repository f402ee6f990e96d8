"""Which gateway a batch talks to: the one that is named, that of the environment, or one of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import islice
from secrets import token_hex
from typing import Any, Protocol

from batch_agent import environment
from batch_agent.agent import Agent, Budget, Means
from batch_agent.calls import ModelCalls, Slots, default_calls
from batch_agent.checkpoint import Checkpoint, Saved
from batch_agent.connection import Connection
from batch_agent.environment import gateway_url
from batch_agent.outage import Outage
from batch_agent.plan import Plan
from batch_agent.results import AgentError, AgentResult, AnswerFailed, BudgetError, Timings, jsonable, told
from batch_agent.schema import OutputSchema
from batch_agent.spec import BatchSpec
from batch_agent.tools import runtime_tools
from tool_runtime.runtime import ToolRuntime

# ---- opens a batch: finds its gateway and model, makes what its agents share, and closes all of it again


@asynccontextmanager
async def opened(spec: BatchSpec, outage: Outage) -> AsyncIterator[tuple[ModelAgents, Iterator[str]]]:
    """The agents of a batch and their tasks. Raises ValueError and TypeError for what cannot be run, and
    ConnectionError or AgentFailed where there is no gateway."""
    loop = asyncio.get_running_loop()
    ends_at = None if spec.budget_s is None else loop.time() + spec.budget_s
    schema = None if spec.output_schema is None else OutputSchema(spec.output_schema)
    own_tools, other_names = runtime_tools(spec.tools, spec.timeout_per_tool)
    plan = Plan(spec, spec.model, own_tools, schema)
    prompts = plan.prompts()
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(gateway_url(spec.gateway, spec.backend))
        connection = await stack.enter_async_context(Connection(url, spec.api_key or environment.api_key()))
        checkpoint = await stack.enter_async_context(kept(spec))
        await reached(outage, connection, checkpoint)
        plan.model = spec.model or await only_model(connection, outage)
        if other_names:
            plan.use_gateway_tools(other_names, await outage.through(connection.tools, connection.problem))
        slots = Slots(spec.effective_max_inflight or default_calls())
        calls = ModelCalls(connection, slots, spec.max_retries, spec.timeout_per_turn, outage=outage)
        tools = ToolRuntime(plan.tools, clock=loop.time)
        stack.push_async_callback(tools.close)
        batch_id = checkpoint.batch_id if checkpoint else new_batch_id()
        yield (
            ModelAgents(Means(plan, calls, tools, Budget(spec.budget_tokens, ends_at), checkpoint, batch_id)),
            prompts,
        )


@asynccontextmanager
async def kept(spec: BatchSpec) -> AsyncIterator[Checkpoint | None]:
    """The checkpoint of a batch, if it is to have one. Raises OSError."""
    if spec.checkpoint_dir is None:
        yield None
        return
    checkpoint = Checkpoint(spec.checkpoint_dir)
    try:
        await checkpoint.open()
        yield checkpoint
    finally:
        await checkpoint.close()


def new_batch_id() -> str:
    return f"batch-{token_hex(8)}"


async def reached(outage: Outage, connection: Connection, checkpoint: Checkpoint | None = None) -> None:
    """Finds out whether there is a gateway to wait for if it goes: one that answers now, or that a batch which is
    gone on with has had."""
    if not outage.is_known and outage.outage_s > 0:
        outage.is_known = (checkpoint is not None and checkpoint.is_resumed) or await connection.problem() is None


async def only_model(connection: Connection, outage: Outage) -> str:
    """The model to ask where none is named. Raises ValueError if that is not clear."""
    names = await outage.through(connection.models, connection.problem)
    if len(names) != 1:
        raise ValueError(f"name a model: {connection.base_url} serves {', '.join(names) or 'none'}")
    return names[0]


# --- Bounds an agent's time, and makes a value of whatever ends it.


async def outcome(
    work: Awaitable[Any], timeout_s: float | None, budget: Budget
) -> tuple[Any, None] | tuple[None, Exception]:
    """What `work` gives, or why it gives nothing. Raises CancelledError only."""
    own_end = None if timeout_s is None else asyncio.get_running_loop().time() + timeout_s
    end = min((end for end in (own_end, budget.ends_at) if end is not None), default=None)
    try:
        async with asyncio.timeout_at(end) as time:
            return await work, None
    except TimeoutError as error:
        if not time.expired():
            return None, error
        if end == own_end:
            return None, TimeoutError(f"no result within {timeout_s:g} s (timeout_per_agent)")
        return None, BudgetError("the time of the batch is over (budget_s)")
    except Exception as error:  # one agent's failure, whatever it is, is not the batch's
        return None, error


# ---- begins the agents of a batch as there is room for them, and gives their results in the order of their ends

Attend = Callable[[], Awaitable[AgentResult]]


class Agents(Protocol):
    """The agents of one batch."""

    @property
    def slots(self) -> Slots:
        """What they share: further agents begin while some are free."""

    async def prepare(self, index: int, prompt: str) -> AgentResult | Attend:
        """A result that is there already, or what gets it. An agent's failure is a result, too."""


async def in_order_of_completion(
    agents: Agents, prompts: Iterable[str], max_begun: int | None = None
) -> AsyncGenerator[AgentResult, None]:
    """Each agent's result once. Closing it cancels what runs and waits until that has ended."""
    run = _Run(agents, prompts, max_begun)
    beginner = asyncio.create_task(run.begin_all())
    try:
        while (result := await run.results.get()) is not None:
            yield result
        await beginner
    except BaseExceptionGroup as group:
        raise group.exceptions[0] from None
    finally:
        beginner.cancel()
        await asyncio.wait([beginner])


class _Run:
    def __init__(self, agents: Agents, prompts: Iterable[str], max_begun: int | None) -> None:
        self._agents = agents
        self._prompts = iter(enumerate(prompts))
        self._places = asyncio.Semaphore(max_begun) if max_begun else None
        self.results: asyncio.Queue[AgentResult | None] = asyncio.Queue()
        """None: that was all."""

    async def begin_all(self) -> None:
        """Ends when all agents have. An agent begins only where it can call the model at once, so that a large
        batch is not all in memory, and those that have begun are not slowed down."""
        try:
            async with asyncio.TaskGroup() as group:
                while some := list(islice(self._prompts, await self._agents.slots.room())):
                    for index, prompt in some:
                        await self._begin(group, index, prompt)
                    await asyncio.sleep(0)  # they take their slots
        finally:
            self.results.put_nowait(None)

    async def _begin(self, group: asyncio.TaskGroup, index: int, prompt: str) -> None:
        prepared = await self._agents.prepare(index, prompt)
        if isinstance(prepared, AgentResult):
            self.results.put_nowait(prepared)
            return
        if self._places:
            await self._places.acquire()
        group.create_task(self._attend(prepared))

    async def _attend(self, attend: Attend) -> None:
        try:
            self.results.put_nowait(await attend())
        finally:
            if self._places:
                self._places.release()


# ---- the agents of a batch that talk to a gateway: begins each, and makes a result of how it ends


class ModelAgents:
    """Those of one batch."""

    def __init__(self, means: Means) -> None:
        self._means = means
        self._began_at = asyncio.get_running_loop().time()

    @property
    def slots(self) -> Slots:
        return self._means.calls.slots

    async def prepare(self, index: int, prompt: str) -> AgentResult | Attend:
        means, plan = self._means, self._means.plan
        if plan.is_oversized(prompt):
            text = f"the task does not fit into {plan.spec.model_max_context} tokens (model_max_context)"
            return AgentResult(f"job-{index}", index, None, AgentError("OVERSIZED", text), attempts=0)
        saved, session = Saved(), f"{means.batch_id}-{index}"
        if means.checkpoint is not None:
            saved = await means.checkpoint.load(means.checkpoint.key(*plan.content(prompt)))
            session = f"{means.batch_id}-{saved.key.hex()}"
            if (result := saved.result(index, plan.schema)) is not None:
                return result
        agent = Agent(means, session, plan.first_messages(prompt), saved)
        return lambda: self._attend(agent, index)

    async def _attend(self, agent: Agent, index: int) -> AgentResult:
        means, spec, loop = self._means, self._means.plan.spec, asyncio.get_running_loop()
        started_at = loop.time()
        output, failure = await outcome(agent.output(), spec.timeout_per_agent, means.budget)
        if failure is None:
            means.plan.ended(agent.turns)
        if means.checkpoint is not None and failure is None:
            await means.checkpoint.done(agent.saved.key, jsonable(output))
        elif means.checkpoint is not None and isinstance(failure, AnswerFailed):
            await means.checkpoint.forget(agent.saved.key)
        total_s = loop.time() - started_at
        return AgentResult(
            job_id=f"job-{index}",
            index=index,
            output=output,
            error=told(failure) if failure else None,
            attempts=1 + agent.num_retries,
            turns=agent.turns,
            usage=agent.usage,
            timings=Timings(started_at - self._began_at, total_s, agent.model_s, agent.queued_s, agent.tools_s),
            finish_reason=agent.finish_reason,
            session=agent.session,
            transcript=agent.messages if spec.transcript else None,
        )
