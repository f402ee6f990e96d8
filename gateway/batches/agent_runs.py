"""Lines that are agent runs: a task, the names of tools, a schema for the output, a number of turns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

import orjson
from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError
from jsonschema.validators import validator_for

from gateway.batches import output_check
from gateway.batches.finalizer import NAMES, finished_line, parsed, spent
from gateway.batches.line_executor import LineExecutor
from gateway.batches.objects import Batch, Finished, Line, Spent, new_id
from gateway.batches.store import Store, StoreFailed
from gateway.core import fields
from gateway.core.errors import Failure
from gateway.core.fields import Json
from gateway.core.slices import Steps
from gateway.dialects import base
from gateway.dialects.base import Script, openai_error
from gateway.request.inprocess import InProcessResponder
from tool_runtime.agent_loop import AgentLoop, BadCompletion, ModelTurn, OutOfTurns, Step, message_of, text_in
from tool_runtime.killable import Killable, ProcessLost
from tool_runtime.places import Throttle, claim_of
from tool_runtime.runtime import ToolRuntime
from tool_runtime.types import Call, Context, Limits, Tool, Tools

CHAT = "/v1/chat/completions"
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
    """The body of a line that is an agent run."""

    model: str | None
    task: str
    system: str
    tools: Tools
    schema: Json | None
    max_turns: int
    wants_messages: bool
    sampling: Mapping[str, Any]
    """All other fields, for every model call: temperature, max_tokens, extensions of an engine."""

    @staticmethod
    def of(body: Json, tools: Tools) -> AgentRunRequest:
        """Read a body that `check` passed. A tool that has gone since then is not offered."""
        return AgentRunRequest(
            model=fields.text(body, "model"),
            task=fields.text(body, "task") or "",
            system=fields.text(body, "system") or "",
            tools={name: tools[name] for name in fields.items(body, "tools") if name in tools},
            schema=fields.obj(body, "schema") or None,
            max_turns=fields.integer(body, "max_turns") or DEFAULT_TURNS,
            wants_messages="messages" in fields.items(body, "include"),
            sampling={key: value for key, value in body.items() if key not in _OWN},
        )

    def opening(self) -> list[Json]:
        """Return the messages with which every run of this line begins."""
        system = self.system
        if self.schema is not None and self.tools:
            schema = orjson.dumps(self.schema).decode()
            system = (
                f"{system}\n\nEnd with an answer that is only JSON, and fits this JSON Schema: {schema}".lstrip()
            )
        messages = [{"role": "system", "content": system}] if system else []
        return [*messages, {"role": "user", "content": self.task}]

    def model_call(self, messages: list[Json], enforces: bool) -> bytes:
        """Return the body of a model call. An engine that enforces a schema cannot call tools meanwhile. The tools
        then stay in the prompt, which keeps it cached, but cannot be chosen."""
        body: Json = {**self.sampling, "messages": messages}
        if self.model is not None:
            body["model"] = self.model
        if self.tools:
            body["tools"] = [_offered(tool) for tool in self.tools.values()]
            if enforces:
                body["tool_choice"] = "none"
        if self.schema is not None and (enforces or not self.tools):
            output = {"name": "output", "schema": self.schema}
            body["response_format"] = {"type": "json_schema", "json_schema": output}
        return orjson.dumps(body)

    def value(self, text: str) -> tuple[Any, str | None]:
        """Return the value of an answer, or why there is none. Does not check it against the schema."""
        if self.schema is None:
            return text, None
        try:
            return orjson.loads(_unfenced(text)), None
        except orjson.JSONDecodeError as error:
            return None, f"it is no JSON: {error}"


def check(body: Json, tools: Tools) -> Failure | None:
    """Return what is wrong with a body. `tools` are those that its key may use."""
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


def script(body: Json) -> Steps[Script]:
    """Return the conversation of a run, which decides its place among other lines."""
    yield
    names = tuple(name for name in fields.items(body, "tools") if isinstance(name, str))
    system, task = fields.text(body, "system") or "", fields.text(body, "task") or ""
    return Script(tuple(map(str.encode, names)), system.encode(), (task.encode(),), bool(names), names)


def _offered(tool: Tool) -> Json:
    function = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    return {"type": "function", "function": function}


def _unfenced(text: str) -> str:
    """Remove a Markdown fence around a text."""
    text = text.strip()
    if text.startswith("```") and text.endswith("```"):
        return text[3:-3].removeprefix("json")
    return text


# ---- runs an agent


class _RunFailed(Exception):
    """The run is over without an output."""

    def __init__(self, reply: InProcessResponder) -> None:
        super().__init__(reply.status)
        self.reply = reply


@dataclass(frozen=True, slots=True)
class AgentRuns:
    """Runs agents. All that it keeps of a run is in the store."""

    executor: LineExecutor
    store: Store
    runtime: ToolRuntime | None
    end_session: Callable[[str], None]
    checker: OutputChecker

    async def answer(self, batch: Batch, line: Line, body: bytes, tools: Tools) -> Finished:
        """Get the result of a line. `tools` are those that the key of the batch may use. Raises StoreFailed."""
        run = _Run(self, batch, line, AgentRunRequest.of(orjson.loads(body), tools))
        try:
            reply = _reply(200, await run.output())
        except _RunFailed as failed:
            reply = failed.reply
        finally:
            if run.session_id:
                self.end_session(run.session_id)
        reply.headers = run.names
        return finished_line(line.custom_id, reply)


@dataclass(slots=True)
class _Run:
    runs: AgentRuns
    batch: Batch
    line: Line
    request: AgentRunRequest
    session_id: str = ""
    names: dict[str, str] = field(default_factory=dict)
    """Headers of its last answer that name it."""
    loop: AgentLoop = field(init=False)

    async def output(self) -> Json:
        """Raises _RunFailed, StoreFailed."""
        request, correction = self.request, ""
        loop = self.loop = AgentLoop(request.opening(), request.tools, await self._kept())
        try:
            while True:
                value, problem = request.value(text_in(await loop.answer(self, request.max_turns, correction)))
                if problem is None and request.schema is not None:
                    problem = await self._misfit(request.schema, value)
                if problem is None:
                    return self._result(value)
                if loop.turns >= request.max_turns:
                    raise _failed("invalid_output", f"The answer does not fit the schema: {problem}")
                correction = (
                    f"That answer does not fit the schema: {problem}. Answer again, with nothing but the JSON."
                )
        except OutOfTurns:
            raise _failed("max_turns", f"There was no answer after {request.max_turns} turns.") from None

    async def _misfit(self, schema: Json, value: Any) -> str | None:
        try:
            return await self.runs.checker.problem(self.batch.tenant, schema, value)
        except NotChecked as error:
            raise _failed("not_checked", f"The run ended without a checked answer: {error}.") from None

    async def ask_model(self, turn: ModelTurn) -> Step:
        headers = [("x-turngate-remaining-turns", str(self.request.max_turns - turn.number))]
        body = self.request.model_call(self.loop.messages, enforces=turn.is_last or turn.is_correction)
        reply = await self.runs.executor.answer(self.batch, self.line, CHAT, body, headers)
        self.session_id = reply.headers.get("x-turngate-session", "")
        self.names = {name: reply.headers[name] for name in NAMES.values() if name in reply.headers}
        if reply.status != 200:
            raise _RunFailed(reply)
        answer = parsed(reply.body)
        try:
            return Step(message_of(answer), spent(answer))
        except BadCompletion:
            raise _failed("no_answer", "What the engine sent is no answer of a chat.", 502) from None

    async def run_tool(self, call: Call) -> str:
        """Law: only tools that the line names can be called, whatever the model writes."""
        if call.name not in self.request.tools or self.runs.runtime is None:
            return f"There is no tool {call.name!r}."
        session_id, turn_id = f"{self.batch.id}/{self.line.number}", str(self.loop.turns)
        context = Context(self.batch.tenant, session_id, turn_id, self.batch.key_id)
        return (await self.runs.runtime.run(call, context)).text

    async def _kept(self) -> dict[int, Step]:
        with _store_failures():
            rows = await self.runs.store.transcript(self.batch.id, self.line)
        read = ((position, orjson.loads(row)) for position, row in rows)
        return {position: Step(row["message"], Spent(**row["spent"])) for position, row in read}

    async def keep_step(self, position: int, step: Step) -> None:
        row = orjson.dumps({"message": step.message, "spent": asdict(step.usage or Spent())})
        with _store_failures():
            await self.runs.store.append(self.batch.id, self.line, position, row)

    def _result(self, output: Any) -> Json:
        result: Json = {
            "id": new_id("run_"),
            "object": "turngate.agent_run",
            "model": self.request.model,
            "output": output,
            "turns": self.loop.turns,
            "tool_calls": self.loop.num_calls,
            "usage": sum(self.loop.usages, Spent()).as_json(),
        }
        return result | ({"messages": self.loop.messages} if self.request.wants_messages else {})


@contextmanager
def _store_failures() -> Iterator[None]:
    """Raises StoreFailed for every failure inside."""
    try:
        yield
    except Exception as error:
        raise StoreFailed(str(error)) from error


def _failed(code: str, message: str, status: int = 422) -> _RunFailed:
    failure = Failure(status, "agent_error", message, code=code)
    return _RunFailed(_reply(status, {"error": openai_error(failure)}))


def _reply(status: int, body: Json) -> InProcessResponder:
    reply = InProcessResponder()
    reply.status, reply.body, reply.headers = status, orjson.dumps(body), {}
    return reply


# ---- checks outputs against the schemas of tenants, in processes that can be killed

CHECK_S = 2.0
"""Longest time of one check, which takes a millisecond unless the schema is meant to do harm."""
AT_ONCE = 2
MEMORY_BYTES = 256 * 1024 * 1024


class NotChecked(Exception):
    """An output could not be checked. The text says why."""


class OutputChecker:
    """Makes a few checks at a time. Tenants take turns."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._processes = Killable(output_check.__file__, CHECK_S, MEMORY_BYTES, {})
        self._throttle = Throttle(Limits(concurrency=AT_ONCE, timeout_s=CHECK_S), clock)
        self.close = self._processes.close

    async def problem(self, tenant: str, schema: Json, value: Any) -> str | None:
        """Return what is wrong with an output. None: it fits. Raises NotChecked."""
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
