"""One batch: opens what its agents share, runs them as the model calls allow, and gives results as they end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from itertools import islice
from secrets import token_hex
from typing import Any, Protocol

from batch_agent.agent import Agent, BatchResources, Budget
from batch_agent.calls import ModelCalls, Slots, default_calls
from batch_agent.checkpoint import Checkpoint, Saved
from batch_agent.connection import Connection
from batch_agent.environment import api_key, gateway_url
from batch_agent.outage import Outage
from batch_agent.plan import Plan
from batch_agent.results import AgentError, AgentResult, AnswerFailed, BudgetError, Timings, error_of
from batch_agent.schema import OutputSchema
from batch_agent.spec import BatchSpec
from batch_agent.tools import runtime_tools
from tool_runtime.runtime import ToolRuntime


@asynccontextmanager
async def opened(spec: BatchSpec, outage: Outage) -> AsyncIterator[tuple[ModelAgents, Iterator[str]]]:
    """Yield the agents of a batch and their tasks.

    Raises ValueError and TypeError for a batch that cannot run, and ConnectionError or AgentFailed where there is
    no gateway.
    """
    loop = asyncio.get_running_loop()
    ends_at = None if spec.budget_s is None else loop.time() + spec.budget_s
    schema = None if spec.output_schema is None else OutputSchema(spec.output_schema)
    own_tools, other_names = runtime_tools(spec.tools, spec.timeout_per_tool)
    plan = Plan(spec, spec.model, own_tools, schema)
    prompts = plan.prompts()
    async with opened_gateway(spec, plan, outage) as gateway:
        connection = gateway.connection
        if other_names:
            plan.use_gateway_tools(other_names, await outage.through(connection.tools, connection.problem))
        slots = Slots(spec.effective_max_inflight or default_calls())
        calls = ModelCalls(connection, slots, spec.max_retries, spec.timeout_per_turn, outage=outage)
        budget = Budget(spec.budget_tokens, ends_at)
        tools = ToolRuntime(plan.tools, clock=loop.time)
        try:
            shared = BatchResources(plan, calls, tools, budget, gateway.checkpoint, gateway.batch_id)
            yield ModelAgents(shared), prompts
        finally:
            await tools.close()


@dataclass(frozen=True, slots=True)
class OpenedGateway:
    """The gateway that a batch has reached, and the record of the batch."""

    connection: Connection
    checkpoint: Checkpoint | None
    batch_id: str


@asynccontextmanager
async def opened_gateway(spec: BatchSpec, plan: Plan, outage: Outage) -> AsyncIterator[OpenedGateway]:
    """Connect to the gateway of a batch and open its checkpoint. A plan without a model gets the only one."""
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(gateway_url(spec.gateway, spec.backend))
        connection = await stack.enter_async_context(Connection(url, spec.api_key or api_key()))
        checkpoint = None
        if spec.checkpoint_dir is not None:
            checkpoint = Checkpoint(spec.checkpoint_dir)
            stack.push_async_callback(checkpoint.close)
            await checkpoint.open()
        await reached(outage, connection, checkpoint)
        plan.model = plan.model or await only_model(connection, outage)
        yield OpenedGateway(connection, checkpoint, checkpoint.batch_id if checkpoint else f"batch-{token_hex(8)}")


async def reached(outage: Outage, connection: Connection, checkpoint: Checkpoint | None = None) -> None:
    """Find out whether an outage is worth waiting for: the gateway answers now, or a resumed batch has had it."""
    if not outage.is_known and outage.outage_s > 0:
        outage.is_known = (checkpoint is not None and checkpoint.is_resumed) or await connection.problem() is None


async def only_model(connection: Connection, outage: Outage) -> str:
    """Return the model to ask where none is named. Raises ValueError if there is not exactly one."""
    names = await outage.through(connection.models, connection.problem)
    if len(names) != 1:
        raise ValueError(f"name a model: {connection.base_url} serves {', '.join(names) or 'none'}")
    return names[0]


# ---- the agents of a batch begin as there is room for them, and give their results in the order of their ends

Attend = Callable[[], Awaitable[AgentResult]]


class Agents(Protocol):
    """The agents of one batch."""

    @property
    def slots(self) -> Slots:
        """The bound that they share. Further agents begin while some slots are free."""

    async def prepare(self, index: int, prompt: str) -> AgentResult | Attend:
        """Return a result that is there already, or the function that gets it. A failure is a result, too."""


async def in_order_of_completion(
    agents: Agents, prompts: Iterable[str], max_begun: int | None = None
) -> AsyncGenerator[AgentResult, None]:
    """Yield each agent's result once. Closing this cancels the running agents, and waits for their end."""
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
        """None: there are no more."""

    async def begin_all(self) -> None:
        """Begin the agents, and return when all have ended.

        An agent begins only when it can call the model at once. So a large batch is not all in memory, and does
        not slow down the agents that have begun.
        """
        try:
            async with asyncio.TaskGroup() as group:
                while some := list(islice(self._prompts, await self._agents.slots.room())):
                    for index, prompt in some:
                        await self._begin_agent(group, index, prompt)
                    await asyncio.sleep(0)  # they take their slots
        finally:
            self.results.put_nowait(None)

    async def _begin_agent(self, group: asyncio.TaskGroup, index: int, prompt: str) -> None:
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


class ModelAgents:
    """The agents of one batch that ask models through the gateway."""

    def __init__(self, shared: BatchResources) -> None:
        self._shared = shared
        self._began_at = asyncio.get_running_loop().time()

    @property
    def slots(self) -> Slots:
        return self._shared.calls.slots

    async def prepare(self, index: int, prompt: str) -> AgentResult | Attend:
        shared, plan = self._shared, self._shared.plan
        if plan.is_oversized(prompt):
            text = f"the task does not fit into {plan.spec.model_max_context} tokens (model_max_context)"
            return AgentResult(f"job-{index}", index, None, AgentError("OVERSIZED", text), attempts=0)
        saved, session = Saved(), f"{shared.batch_id}-{index}"
        if shared.checkpoint is not None:
            saved = await shared.checkpoint.load(shared.checkpoint.key(*plan.content(prompt)))
            session = f"{shared.batch_id}-{saved.key.hex()}"
            if (result := saved.result(index, plan.schema)) is not None:
                return result
        agent = Agent(shared, session, plan.first_messages(prompt), saved)
        return lambda: self._attend(agent, index)

    async def _attend(self, agent: Agent, index: int) -> AgentResult:
        shared, spec, clock = self._shared, self._shared.plan.spec, asyncio.get_running_loop().time
        started_at = clock()
        output, failure = await outcome(agent.output(), spec.timeout_per_agent, shared.budget)
        if failure is None:
            shared.plan.record_turns(agent.loop.turns)
        waited_s, total_s = started_at - self._began_at, clock() - started_at
        result = AgentResult(
            job_id=f"job-{index}",
            index=index,
            output=output,
            error=error_of(failure) if failure else None,
            attempts=1 + agent.num_retries,
            turns=agent.loop.turns,
            usage=agent.usage,
            timings=Timings(waited_s, total_s, agent.model_s, agent.queued_s, agent.loop.tools_s),
            finish_reason=agent.finish_reason,
            session=agent.session,
            receipt=agent.receipt,
            tool_calls=agent.num_tool_calls,
            tool_calls_saved=agent.num_tool_calls_saved,
            transcript=agent.loop.messages if spec.transcript else None,
        )
        if shared.checkpoint is not None and failure is None:
            await shared.checkpoint.finish(agent.saved.key, result)
        elif shared.checkpoint is not None and isinstance(failure, AnswerFailed):
            await shared.checkpoint.forget(agent.saved.key)
        return result


async def outcome(
    work: Awaitable[Any], timeout_s: float | None, budget: Budget
) -> tuple[Any, None] | tuple[None, Exception]:
    """Return the output of an agent, or the reason why there is none. Raises CancelledError only."""
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
    except Exception as error:  # the failure of one agent, whatever it is, does not end the batch
        return None, error
