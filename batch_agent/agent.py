"""One agent of a batch, which asks its model through the gateway, and the budget that all agents share."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import Any

from batch_agent.calls import ModelCalls, Reply
from batch_agent.checkpoint import Checkpoint, Saved
from batch_agent.plan import Plan
from batch_agent.results import BudgetError, HTTPStatusError, MaxTurnsError, OutputTruncated, Usage
from batch_agent.schema import correction, output_of
from tool_runtime.agent_loop import AgentLoop, Message, ModelTurn, OutOfTurns, Step, text_in
from tool_runtime.runtime import ToolRuntime
from tool_runtime.types import Call, Context, Origin


class Budget:
    """The tokens and the time that a whole batch may use."""

    def __init__(self, tokens: int | None, ends_at: float | None) -> None:
        self._tokens = tokens
        self._spent = Usage()
        self.ends_at = ends_at
        """On the clock of the event loop."""

    def check(self) -> None:
        """Call this before a model call. Raises BudgetError."""
        if self._tokens is not None and self._spent.total_tokens >= self._tokens:
            raise BudgetError(f"the batch has used its budget of {self._tokens} tokens")

    def spend(self, usage: Usage) -> None:
        if self._tokens is not None:
            self._spent += usage


@dataclass(frozen=True, slots=True)
class BatchResources:
    """Resources that the agents of a batch share."""

    plan: Plan
    calls: ModelCalls
    tools: ToolRuntime
    budget: Budget
    checkpoint: Checkpoint | None
    batch_id: str
    """Session id of the batch, the parent of its agents' sessions."""


class Agent:
    """One agent. It begins with its task, or resumes behind the steps that were saved."""

    def __init__(self, shared: BatchResources, session: str, opening: list[Message], saved: Saved) -> None:
        self.session = session
        self.loop = AgentLoop(opening, shared.tools.tools, dict(saved.steps))
        self.saved = saved
        self.num_retries = 0
        self.model_s = self.queued_s = 0.0
        self.finish_reason = self.receipt = ""
        self.num_tool_calls = self.num_tool_calls_saved = 0
        self._shared = shared

    @property
    def usage(self) -> Usage:
        return sum(self.loop.usages, Usage())

    async def output(self) -> Any:
        """Raises AgentFailed, TimeoutError."""
        plan = self._shared.plan
        try:
            message = await self.loop.answer(self, plan.spec.max_turns)
        except OutOfTurns:
            text = f"the model still called tools in the last of {plan.spec.max_turns} turns"
            raise MaxTurnsError(text) from None
        return await output_of(plan.schema, text_in(message), self._correct)

    async def _correct(self, fault: str) -> str | None:
        if self.finish_reason == "length":
            raise OutputTruncated(_cut(self.loop.usages[-1].completion_tokens, fault))
        try:
            return text_in(await self.loop.answer(self, self.loop.turns + 1, correction(fault)))
        except OutOfTurns:
            return None

    async def ask_model(self, turn: ModelTurn) -> Step:
        self._shared.budget.check()
        await self._compact()
        started_at = monotonic()
        try:
            reply = await self._reply(turn)
        finally:
            self.model_s += monotonic() - started_at
        self.queued_s += reply.queued_s
        self.finish_reason, self.receipt = reply.finish_reason, reply.receipt or self.receipt
        self._shared.budget.spend(reply.usage)
        return Step(reply.message, reply.usage)

    async def _reply(self, turn: ModelTurn) -> Reply:
        plan, calls = self._shared.plan, self._shared.calls
        body_of = partial(plan.body, is_last=turn.is_last, is_correction=turn.is_correction)
        remaining = 0 if turn.is_last else plan.remaining_turns(turn.number)
        headers = {
            "X-Turngate-Session": self.session,
            "X-Turngate-Parent": self._shared.batch_id,
            "X-Turngate-Remaining-Turns": str(remaining),
        }
        if turn.is_last:
            headers["X-Turngate-Final"] = "true"
        body = body_of(self.loop.messages)
        try:
            return await calls.chat(body, headers, remaining, self._count_retry)
        except HTTPStatusError as error:
            if "response_format" not in body or not plan.was_schema_refused(error):
                raise
        self._state_schema()
        return await calls.chat(body_of(self.loop.messages), headers, remaining, self._count_retry)

    async def run_tool(self, call: Call) -> str:
        tool = self._shared.tools.tools.get(call.name)
        # Only calls of one context become one. A handler of keys gets no context, so that all agents share one.
        session = self.session if tool is None or tool.run_many is None else ""
        context = Context(self._shared.batch_id, session)
        timeout_s = self._shared.plan.spec.timeout_per_tool
        result = await self._shared.tools.run(call, context, timeout_s=timeout_s)
        self.num_tool_calls += 1
        self.num_tool_calls_saved += result.origin in (Origin.COALESCED, Origin.CACHED)
        return result.text

    async def keep_step(self, position: int, step: Step) -> None:
        if self._shared.checkpoint is not None:
            await self._shared.checkpoint.keep(self.saved.key, position, step)

    async def _compact(self) -> None:
        """Let the user's function replace the history, before every model call but the first."""
        compact, loop = self._shared.plan.spec.compact, self.loop
        if compact is None or not loop.usages:
            return
        shorter = compact(loop.messages, loop.usages[-1].prompt_tokens)
        shorter = await shorter if inspect.isawaitable(shorter) else shorter
        if shorter is not None:
            loop.messages = shorter

    def _state_schema(self) -> None:
        """Add the schema to a last message of the user: some chat templates want the roles to alternate."""
        schema, messages = self._shared.plan.schema, self.loop.messages
        assert schema is not None
        if (last := messages[-1])["role"] == "user":
            messages[-1] = last | {"content": f"{last['content']}\n\n{schema.instruction}"}
        else:
            messages.append({"role": "user", "content": schema.instruction})

    def _count_retry(self) -> None:
        self.num_retries += 1


def _cut(num_tokens: int, fault: str) -> str:
    """Return the message of an answer that ended at its token limit, with the remedy."""
    limit = f"its limit of {num_tokens:,} tokens" if num_tokens else "its token limit"
    return f"the answer was cut at {limit} before its output was complete ({fault}): raise sampling['max_tokens']"
