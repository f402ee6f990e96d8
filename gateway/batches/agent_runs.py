"""Runs an agent: model and tools by turns. Each message is kept as it comes, so a restart goes on behind the last.

A restarted run is the same code over the kept messages: what is kept is read, what is not is asked. A call that
must not be repeated is not, if it may have run before: the model is told that its outcome is unknown.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

import orjson

from gateway.batches import agent_asked, results
from gateway.batches.agent_asked import AgentAsked
from gateway.batches.line_executor import Asking
from gateway.batches.objects import Batch, Finished, Line, Spent, new_id
from gateway.batches.outputs import NotChecked, Outputs
from gateway.batches.store import Store, StoreFailed
from gateway.core import fields
from gateway.core.errors import Failure
from gateway.core.fields import Json
from gateway.dialects import canonical
from gateway.dialects.failures import openai_error
from gateway.request.inprocess import InProcessResponder
from tool_runtime.outcome import not_known
from tool_runtime.runtime import ToolRuntime
from tool_runtime.types import Call, Context, Effect, Tools

CHAT = "/v1/chat/completions"
_KEPT_KEYS = ("role", "content", "reasoning", "reasoning_content", "tool_calls")


class _Ended(Exception):
    """The run is over without an output."""

    def __init__(self, reply: InProcessResponder) -> None:
        super().__init__(reply.status)
        self.reply = reply


@dataclass(frozen=True, slots=True)
class AgentRuns:
    """Keeps nothing of a run but what is in the store."""

    asking: Asking
    store: Store
    runtime: ToolRuntime | None
    session_ended: Callable[[str], None]
    outputs: Outputs

    async def answer(self, batch: Batch, line: Line, body: bytes, tools: Tools) -> Finished:
        """`tools`: those that the batch's key may use. Raises StoreFailed."""
        asked = agent_asked.read(orjson.loads(body), tools)
        with _keeping():
            kept = dict(await self.store.transcript(batch.id, line))
        run = _Run(self, batch, line, asked, kept)
        try:
            reply = _reply(200, await run.output())
        except _Ended as ended:
            reply = ended.reply
        finally:
            if run.session_id:
                self.session_ended(run.session_id)
        return results.finished(line.custom_id, reply)


@dataclass(slots=True)
class _Run:
    runs: AgentRuns
    batch: Batch
    line: Line
    asked: AgentAsked
    kept: dict[int, bytes]
    """By position: what an earlier process got."""
    messages: list[Json] = field(default_factory=list)
    position: int = 0
    turn: int = 0
    num_calls: int = 0
    spent: Spent = Spent()
    session_id: str = ""

    async def output(self) -> Json:
        """Raises _Ended."""
        asked = self.asked
        self.messages = asked.opening()
        enforces = False
        while self.turn < asked.max_turns:
            self.turn += 1
            is_last = self.turn == asked.max_turns
            was_kept = self.position in self.kept
            message = await self._message(partial(self._ask, enforces or is_last))
            if calls := fields.items(message, "tool_calls"):
                if is_last:
                    break
                await self._run_calls(calls, was_kept)
                continue
            value, problem = asked.value(fields.text(message, "content") or "")
            if problem is None and asked.schema is not None:
                problem = await self._misfit(asked.schema, value)
            if problem is None:
                return self._told(value)
            if is_last:
                raise _failed("invalid_output", f"The answer does not fit the schema: {problem}")
            await self._message(partial(_correction, problem))
            enforces = True
        raise _failed("max_turns", f"There was no answer after {asked.max_turns} turns.")

    async def _misfit(self, schema: Json, value: Any) -> str | None:
        try:
            return await self.runs.outputs.problem(self.batch.tenant, schema, value)
        except NotChecked as error:
            raise _failed("not_checked", f"The run ended without a checked answer: {error}.") from None

    async def _message(self, get: Callable[[], Awaitable[tuple[Json, Spent]]]) -> Json:
        """The next message: the kept one, else one that is got and kept. Raises _Ended."""
        kept = await self._at(self.position, get)
        self.position += 1
        self.messages.append(kept)
        return kept

    async def _at(self, position: int, get: Callable[[], Awaitable[tuple[Json, Spent]]]) -> Json:
        if position in self.kept:
            row = orjson.loads(self.kept.pop(position))
        else:
            message, spent = await get()
            row = {"message": message, "spent": asdict(spent)}
            with _keeping():
                await self.runs.store.append(self.batch.id, self.line, position, orjson.dumps(row))
        self.spent += Spent(**row["spent"])
        message = row["message"]
        assert isinstance(message, dict)
        return message

    async def _ask(self, enforces: bool) -> tuple[Json, Spent]:
        asked, remaining = self.asked, self.asked.max_turns - self.turn
        headers = [("x-turngate-remaining-turns", str(remaining))]
        body = asked.request(self.messages, enforces)
        reply = await self.runs.asking.answer(self.batch, self.line, CHAT, body, headers)
        self.session_id = reply.headers.get("x-turngate-session", "")
        if reply.status != 200:
            raise _Ended(reply)
        answer = results.parsed(reply.body)
        return _message_of(answer), results.spent(answer)

    async def _run_calls(self, calls: list[Json], was_kept: bool) -> None:
        """All at once; their results stand in the order of the calls."""
        start = self.position
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(self._at(start + n, self._calling(call, was_kept)))
                    for n, call in enumerate(calls)
                ]
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None
        self.position += len(calls)
        self.num_calls += len(calls)
        self.messages += [task.result() for task in tasks]

    def _calling(self, told: Json, was_kept: bool) -> Callable[[], Awaitable[tuple[Json, Spent]]]:
        function = fields.obj(told, "function")
        call = Call(told["id"], fields.text(function, "name") or "", function["arguments"])

        async def get() -> tuple[Json, Spent]:
            text = await self._tool_text(call, was_kept)
            return {"role": "tool", "tool_call_id": call.id, "content": text}, Spent()

        return get

    async def _tool_text(self, call: Call, was_kept: bool) -> str:
        """Law: only tools that the line names can be called, whatever the model writes. `was_kept`: an earlier
        process had this call, and may have begun it."""
        tool = next((tool for tool in self.asked.tools if tool.name == call.name), None)
        if tool is None or self.runs.runtime is None:
            return f"There is no tool {call.name!r}."
        if was_kept and tool.effect is Effect.DESTRUCTIVE:
            return f"Error: the run was interrupted.\n{not_known(tool)}"
        context = Context(
            self.batch.tenant, f"{self.batch.id}/{self.line.number}", str(self.turn), self.batch.key_id
        )
        return (await self.runs.runtime.run(call, context)).text

    def _told(self, output: Any) -> Json:
        told: Json = {
            "id": new_id("run_"),
            "object": "turngate.agent_run",
            "model": self.asked.model,
            "output": output,
            "turns": self.turn,
            "tool_calls": self.num_calls,
            "usage": self.spent.as_json(),
        }
        return told | ({"messages": self.messages} if self.asked.wants_messages else {})


@contextmanager
def _keeping() -> Iterator[None]:
    """Raises StoreFailed."""
    try:
        yield
    except Exception as error:
        raise StoreFailed(str(error)) from error


async def _correction(problem: str) -> tuple[Json, Spent]:
    text = f"That answer does not fit the schema: {problem}. Answer again, with nothing but the JSON."
    return {"role": "user", "content": text}, Spent()


def _message_of(answer: Json) -> Json:
    """For the history: the model's own words. Raises _Ended where there are none."""
    said = next((fields.obj(choice, "message") for choice in canonical.objects(answer.get("choices"))), {})
    calls = fields.items(said, "tool_calls")
    if not said or not all(isinstance(call, dict) for call in calls):
        raise _failed("no_answer", "What the engine sent is no answer of a chat.", 502)
    kept = {key: said[key] for key in _KEPT_KEYS if said.get(key)}
    if calls:
        kept["tool_calls"] = [_as_sent_back(position, call) for position, call in enumerate(calls)]
    return {"role": "assistant", "content": said.get("content"), **kept}


def _as_sent_back(position: int, call: Json) -> Json:
    """Some engines leave the id of a call out, or write its arguments as an object."""
    function = fields.obj(call, "function")
    arguments = function.get("arguments") or "{}"
    if not isinstance(arguments, str):
        arguments = orjson.dumps(arguments).decode()
    id_ = fields.text(call, "id") or f"call_{position}"
    return {**call, "id": id_, "function": {**function, "arguments": arguments}}


def _failed(code: str, message: str, status: int = 422) -> _Ended:
    failure = Failure(status, "agent_error", message, code=code)
    return _Ended(_reply(status, {"error": openai_error(failure)}))


def _reply(status: int, body: Json) -> InProcessResponder:
    reply = InProcessResponder()
    reply.status, reply.body, reply.headers = status, orjson.dumps(body), {}
    return reply
