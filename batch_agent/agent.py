"""What a whole batch may use: tokens and time."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from time import monotonic
from typing import Any

from batch_agent.calls import ModelCalls, Reply, reply_of
from batch_agent.checkpoint import Checkpoint, Saved
from batch_agent.plan import Plan
from batch_agent.results import BudgetError, HTTPStatusError, MaxTurnsError, OutputTruncated, Usage
from batch_agent.schema import output_of
from batch_agent.spec import Message
from tool_runtime.results import not_known
from tool_runtime.runtime import ToolRuntime
from tool_runtime.types import Call, Context, Effect


class Budget:
    def __init__(self, tokens: int | None, ends_at: float | None) -> None:
        self._tokens = tokens
        self._spent = Usage()
        self.ends_at = ends_at
        """On the clock of the event loop."""

    def check(self) -> None:
        """Before a model call. Raises BudgetError."""
        if self._tokens is not None and self._spent.total_tokens >= self._tokens:
            raise BudgetError(f"the batch has used its budget of {self._tokens} tokens")

    def spend(self, usage: Usage) -> None:
        if self._tokens is not None:
            self._spent += usage


# ---- one agent: model call, tools, model call, until there is an output or a reason why there is none


@dataclass(frozen=True, slots=True)
class Means:
    """What the agents of a batch work with."""

    plan: Plan
    calls: ModelCalls
    tools: ToolRuntime
    budget: Budget
    checkpoint: Checkpoint | None
    batch_id: str
    """Session id of the batch: the parent of its agents' sessions."""


@dataclass(slots=True)
class Agent:
    """Begins anew, or where `saved` ends."""

    means: Means
    session: str
    messages: list[Message]
    saved: Saved = field(default_factory=Saved)
    turns: int = 0
    usage: Usage = field(default_factory=Usage)
    num_retries: int = 0
    model_s: float = 0.0
    queued_s: float = 0.0
    tools_s: float = 0.0
    finish_reason: str = ""
    _num_steps: int = 0
    _prompt_tokens: int = 0

    def __post_init__(self) -> None:
        self.messages += self.saved.messages
        self.turns, self.usage, self._num_steps = self.saved.turns, self.saved.usage, self.saved.num_steps
        self._prompt_tokens = self.saved.prompt_tokens

    async def output(self) -> Any:
        """Raises AgentFailed, TimeoutError."""
        max_turns = self.means.plan.spec.max_turns
        reply, was_interrupted = _unfinished(self.saved.messages), True
        while True:
            if reply is None:
                reply, was_interrupted = await self._turn(is_last=self.turns + 1 >= max_turns), False
            if not reply.calls:
                return await output_of(self.means.plan.schema, reply.text, self._correct)
            if self.turns >= max_turns:
                raise MaxTurnsError(f"the model still called tools in the last of {max_turns} turns")
            await self._run_tools(reply.calls, was_interrupted)
            reply = None

    async def _turn(self, *, is_last: bool, asked: Sequence[Message] = ()) -> Reply:
        """One model call, after further messages if any. A step is kept only once it is answered."""
        self.means.budget.check()
        await self._compact()
        self.messages += asked
        started_at = monotonic()
        try:
            reply = await self._ask(is_last, is_correction=bool(asked))
        finally:
            self.model_s += monotonic() - started_at
        self.turns += 1
        self.usage += reply.usage
        self.queued_s += reply.queued_s
        self.finish_reason = reply.finish_reason
        self._prompt_tokens = reply.usage.prompt_tokens
        self.means.budget.spend(reply.usage)
        self.messages.append(reply.message)
        await self._keep([*asked, reply.message], reply.usage)
        return reply

    async def _ask(self, is_last: bool, is_correction: bool) -> Reply:
        plan, calls = self.means.plan, self.means.calls
        body_of = partial(plan.body, is_last=is_last, is_correction=is_correction)
        remaining = 0 if is_last else plan.remaining_turns(self.turns + 1)
        headers = {
            "X-Turngate-Session": self.session,
            "X-Turngate-Parent": self.means.batch_id,
            "X-Turngate-Remaining-Turns": str(remaining),
        }
        if is_last:
            headers["X-Turngate-Final"] = "true"
        body = body_of(self.messages)
        try:
            return await calls.chat(body, headers, remaining, self._was_retried)
        except HTTPStatusError as error:
            if "response_format" not in body or not plan.was_schema_refused(error):
                raise
        self._state_schema()
        return await calls.chat(body_of(self.messages), headers, remaining, self._was_retried)

    async def _correct(self, fault: str) -> str:
        if self.finish_reason == "length":
            raise OutputTruncated(f"the answer was cut at its token limit. {fault}")
        return (await self._turn(is_last=True, asked=[{"role": "user", "content": fault}])).text

    async def _run_tools(self, calls: Sequence[Call], was_interrupted: bool) -> None:
        started_at = monotonic()
        work = [self._run_tool(call, was_interrupted) for call in calls]
        texts = await asyncio.gather(*work) if len(work) > 1 else [await work[0]]
        self.tools_s += monotonic() - started_at
        told = [
            {"role": "tool", "tool_call_id": call.id, "content": text}
            for call, text in zip(calls, texts, strict=True)
        ]
        self.messages += told
        await self._keep(told)

    async def _run_tool(self, call: Call, was_interrupted: bool) -> str:
        means = self.means
        tool = means.tools.tools.get(call.name)
        if was_interrupted and tool is not None and tool.effect is Effect.DESTRUCTIVE:
            return f"Error: the batch was interrupted.\n{not_known(tool)}"
        context = Context(means.batch_id, self.session)
        return (await means.tools.run(call, context, timeout_s=means.plan.spec.timeout_per_tool)).text

    async def _compact(self) -> None:
        compact = self.means.plan.spec.compact
        if compact is None or not self.turns:
            return
        shorter = compact(self.messages, self._prompt_tokens)
        shorter = await shorter if inspect.isawaitable(shorter) else shorter
        if shorter is not None:
            self.messages = shorter

    async def _keep(self, messages: list[Message], usage: Usage | None = None) -> None:
        if self.means.checkpoint is not None:
            await self.means.checkpoint.step(self.saved.key, self._num_steps, messages, usage)
            self._num_steps += 1

    def _state_schema(self) -> None:
        """Into the last message if it is the user's, since some chat templates want roles to alternate."""
        schema, last = self.means.plan.schema, self.messages[-1]
        assert schema is not None
        if last["role"] == "user":
            self.messages[-1] = last | {"content": f"{last['content']}\n\n{schema.instruction}"}
        else:
            self.messages.append({"role": "user", "content": schema.instruction})

    def _was_retried(self) -> None:
        self.num_retries += 1


def _unfinished(saved: Sequence[Message]) -> Reply | None:
    """The answer that was kept last, if nothing of what follows it was."""
    if not saved or saved[-1]["role"] != "assistant":
        return None
    return reply_of({"choices": [{"message": saved[-1]}]})
