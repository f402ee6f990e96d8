"""What a line that is an agent run asks for: a task, tools by name, a schema for its output, a number of turns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson
from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError
from jsonschema.validators import validator_for

from gateway.core import fields
from gateway.core.errors import Failure
from gateway.core.fields import Json
from gateway.dialects import checks
from gateway.dialects.base import Script
from tool_runtime.types import Tool, Tools

DEFAULT_TURNS, MOST_TURNS = 16, 200
MAX_PROBLEM_CHARS = 500
_OWN = frozenset(("model", "task", "system", "tools", "schema", "max_turns", "include"))
_REFUSED = ("messages", "tool_choice", "response_format", "n")
_SHAPES = checks.COMMON | {
    "task": checks.TEXT,
    "system": checks.TEXT,
    "tools": checks.LIST,
    "schema": checks.OBJECT,
    "include": checks.LIST,
}


@dataclass(frozen=True, slots=True)
class AgentAsked:
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
    if (failure := checks.wrong_field(body, _SHAPES, required="task")) is not None:
        return failure
    for key in _REFUSED:
        if key in body:
            return checks.refusal(key, f"`{key}` is the gateway's own in an agent run.")
    for name in fields.items(body, "tools"):
        if not isinstance(name, str) or name not in tools:
            known = ", ".join(sorted(tools)) or "none"
            return checks.refusal("tools", f"There is no tool {name!r} here for this key; there are: {known}.")
    max_turns = body.get("max_turns", DEFAULT_TURNS)
    if not isinstance(max_turns, int) or not 1 <= max_turns <= MOST_TURNS:
        return checks.refusal("max_turns", f"`max_turns` must be between 1 and {MOST_TURNS}.")
    schema = body.get("schema")
    if schema is not None:
        try:
            validator_for(schema, default=Draft202012Validator).check_schema(schema)
        except SchemaError as error:
            return checks.refusal("schema", f"`schema` is no JSON Schema: {error.message[:MAX_PROBLEM_CHARS]}")
    return None


def read(body: Json, tools: Tools) -> AgentAsked:
    """Of a body that `check` passed. A tool that is gone since then is not offered."""
    return AgentAsked(
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
