"""What a line that is an agent run asks for: a task, tools by name, a schema for its output, a number of turns."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

import orjson
from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError
from jsonschema.validators import validator_for

from gateway.batches import finalizer, output_check
from gateway.batches.line_executor import LineExecutor
from gateway.batches.objects import Batch, Finished, Line, Spent, new_id
from gateway.batches.store import Store, StoreFailed
from gateway.core import fields
from gateway.core.errors import Failure
from gateway.core.fields import Json
from gateway.dialects import base, canonical
from gateway.dialects.base import Script, openai_error
from gateway.request.inprocess import InProcessResponder
from tool_runtime.killable import Killable, ProcessLost
from tool_runtime.places import Throttle, claim_of
from tool_runtime.results import not_known
from tool_runtime.runtime import ToolRuntime
from tool_runtime.types import Call, Context, Effect, Limits, Tool, Tools

DEFAULT_TURNS, MOST_TURNS = 16, 200
MAX_PROBLEM_CHARS = 500
_OWN = frozenset(("model", "task", "system", "tools", "schema", "max_turns", "include"))
_REFUSED = ("messages", "tool_choice", "response_format", "n")
_SHAPES = base.COMMON | {
    "task": base.TEXT,
    "system": base.TEXT,
    "tools": base.LIST,
    "schema": base.OBJECT,
    "include": base.LIST,
}


@dataclass(frozen=True, slots=True)
class AgentRunRequest:
    """One agent run."""

    model: str | None
    task: str
    system: str
    tools: tuple[Tool, ...]
    schema: Json | None
    max_turns: int
    wants_messages: bool
    sampling: Mapping[str, Any]
    """Everything else, for every model call: temperature, max_tokens, what an engine takes beyond."""

    def opening(self) -> list[Json]:
        """The messages that every run of this line begins with."""
        system = self.system
        if self.schema is not None and self.tools:
            schema = orjson.dumps(self.schema).decode()
            system = (
                f"{system}\n\nEnd with an answer that is only JSON, and fits this JSON Schema: {schema}".lstrip()
            )
        messages = [{"role": "system", "content": system}] if system else []
        return [*messages, {"role": "user", "content": self.task}]

    def request(self, messages: list[Json], enforces: bool) -> bytes:
        """A model call. An engine that enforces a schema cannot call tools meanwhile, so the tools stay in the
        prompt, which keeps it cached, and are not to be called."""
        body: Json = {**self.sampling, "messages": messages}
        if self.model is not None:
            body["model"] = self.model
        if self.tools:
            body["tools"] = [_offered(tool) for tool in self.tools]
            if enforces:
                body["tool_choice"] = "none"
        if self.schema is not None and (enforces or not self.tools):
            wanted = {"name": "output", "schema": self.schema}
            body["response_format"] = {"type": "json_schema", "json_schema": wanted}
        return orjson.dumps(body)

    def value(self, text: str) -> tuple[Any, str | None]:
        """What an answer says, and why that is nothing; not yet whether it fits the schema."""
        if self.schema is None:
            return text, None
        try:
            return orjson.loads(_unfenced(text)), None
        except orjson.JSONDecodeError as error:
            return None, f"it is no JSON: {error}"


def check(body: Json, tools: Tools) -> Failure | None:
    """`tools`: those that its key may use."""
    if (failure := base.wrong_field(body, _SHAPES, required="task")) is not None:
        return failure
    for key in _REFUSED:
        if key in body:
            return base.refusal(key, f"`{key}` is the gateway's own in an agent run.")
    for name in fields.items(body, "tools"):
        if not isinstance(name, str) or name not in tools:
            known = ", ".join(sorted(tools)) or "none"
            return base.refusal("tools", f"There is no tool {name!r} here for this key; there are: {known}.")
    max_turns = body.get("max_turns", DEFAULT_TURNS)
    if not isinstance(max_turns, int) or not 1 <= max_turns <= MOST_TURNS:
        return base.refusal("max_turns", f"`max_turns` must be between 1 and {MOST_TURNS}.")
    schema = body.get("schema")
    if schema is not None:
        try:
            validator_for(schema, default=Draft202012Validator).check_schema(schema)
        except SchemaError as error:
            return base.refusal("schema", f"`schema` is no JSON Schema: {error.message[:MAX_PROBLEM_CHARS]}")
    return None


def read(body: Json, tools: Tools) -> AgentRunRequest:
    """Of a body that `check` passed. A tool that is gone since then is not offered."""
    return AgentRunRequest(
        model=fields.text(body, "model"),
        task=fields.text(body, "task") or "",
        system=fields.text(body, "system") or "",
        tools=tuple(tools[name] for name in fields.items(body, "tools") if name in tools),
        schema=fields.obj(body, "schema") or None,
        max_turns=fields.integer(body, "max_turns") or DEFAULT_TURNS,
        wants_messages="messages" in fields.items(body, "include"),
        sampling={key: value for key, value in body.items() if key not in _OWN},
    )


def script(body: Json) -> Script:
    """For its place among other lines."""
    names = tuple(name for name in fields.items(body, "tools") if isinstance(name, str))
    system, task = fields.text(body, "system") or "", fields.text(body, "task") or ""
    return Script(tuple(map(str.encode, names)), system.encode(), (task.encode(),), bool(names), names)


def _offered(tool: Tool) -> Json:
    function = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    return {"type": "function", "function": function}


def _unfenced(text: str) -> str:
    """Without a Markdown fence around it."""
    text = text.strip()
    if text.startswith("```") and text.endswith("```"):
        return text[3:-3].removeprefix("json")
    return text


# ---- runs an agent

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

    asking: LineExecutor
    store: Store
    runtime: ToolRuntime | None
    session_ended: Callable[[str], None]
    outputs: OutputChecker

    async def answer(self, batch: Batch, line: Line, body: bytes, tools: Tools) -> Finished:
        """`tools`: those that the batch's key may use. Raises StoreFailed."""
        asked = read(orjson.loads(body), tools)
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
        return finalizer.finished_line(line.custom_id, reply)


@dataclass(slots=True)
class _Run:
    runs: AgentRuns
    batch: Batch
    line: Line
    asked: AgentRunRequest
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
        answer = finalizer.parsed(reply.body)
        return _message_of(answer), finalizer.spent(answer)

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


# --- Checks the outputs of agent runs against the schemas that tenants gave, in processes that are killed.

CHECK_S = 2.0
"""For one check, which takes a millisecond unless it is meant to do harm."""
AT_ONCE = 2
MEMORY_BYTES = 256 * 1024 * 1024


class NotChecked(Exception):
    """It cannot be said whether an output fits; the text says why."""


class OutputChecker:
    """A few checks at a time, and tenants in turn."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._processes = Killable(output_check.__file__, CHECK_S, MEMORY_BYTES, {})
        self._throttle = Throttle(Limits(concurrency=AT_ONCE, timeout_s=CHECK_S), clock)
        self.close = self._processes.close

    async def problem(self, tenant: str, schema: Json, value: Any) -> str | None:
        """What is wrong with an output. None: it fits. Raises NotChecked."""
        try:
            async with self._throttle.place(claim_of(Context(tenant))):
                kind, text = await self._processes.ask({"schema": schema, "value": value})
        except TimeoutError:
            raise NotChecked(f"to check the answer against the schema takes more than {CHECK_S:g} s") from None
        except ProcessLost as error:
            raise NotChecked(f"the answer was not checked against the schema: {error}") from None
        if kind == output_check.UNUSABLE:
            raise NotChecked(text)
        return None if kind == output_check.FITS else text
