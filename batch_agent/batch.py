"""Opens a batch: finds its gateway and model, makes what its agents share, and closes all of it again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from secrets import token_hex

from batch_agent import environment
from batch_agent.agent import Means
from batch_agent.agents import ModelAgents
from batch_agent.backend import gateway_url
from batch_agent.budget import Budget
from batch_agent.calls import ModelCalls
from batch_agent.checkpoint import Checkpoint
from batch_agent.connection import Connection
from batch_agent.descriptors import default_calls
from batch_agent.outage import Outage
from batch_agent.plan import Plan
from batch_agent.schema import OutputSchema
from batch_agent.slots import Slots
from batch_agent.spec import BatchSpec
from batch_agent.tools import runtime_tools
from tool_runtime.runtime import ToolRuntime


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
