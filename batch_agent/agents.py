"""The agents of a batch that talk to a gateway: begins each, and makes a result of how it ends."""

from __future__ import annotations

import asyncio

from batch_agent.agent import Agent, Means
from batch_agent.attending import outcome
from batch_agent.checkpoint import Saved
from batch_agent.dispatch import Attend
from batch_agent.errors import AnswerFailed, told
from batch_agent.results import AgentError, AgentResult, Timings, jsonable
from batch_agent.slots import Slots


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
