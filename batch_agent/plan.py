"""The plan of a batch: filled task templates, and the bodies of model calls, which all agents build alike."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from string import Formatter
from typing import Any

from batch_agent.results import HTTPStatusError
from batch_agent.schema import OutputSchema
from batch_agent.spec import BatchSpec
from tool_runtime.agent_loop import Message
from tool_runtime.types import Tool

_FIELD = re.compile(r"\{([A-Za-z_]\w*)(?:[.\[][^{}!:]*)?(?:![rsa])?(?::[^{}]*)?\}")
_ROOT = re.compile(r"[A-Za-z_]\w*")


def fill(template: str, values: Mapping[str, Any]) -> str:
    """Fill the fields of a template, as `str.format` does. Raises ValueError for a field that is not in `values`.

    In a template that `str.format` cannot read (`Answer as {"a": 1}: {question}`) nothing but the fields changes.
    A doubled brace then stays doubled.
    """
    try:
        if _is_plain(template):
            return template.format(**values)
        return _FIELD.sub(lambda match: match[0].format(**values), template)
    except KeyError as error:
        raise ValueError(f"missing template variable {error.args[0]!r}") from None
    except (AttributeError, IndexError, TypeError, ValueError) as error:
        raise ValueError(f"cannot fill the template: {error}") from None


@lru_cache(maxsize=64)
def _is_plain(template: str) -> bool:
    """Whether `str.format` reads a template, and all fields have names."""
    try:
        fields = [field for _, field, _, _ in Formatter().parse(template) if field is not None]
    except ValueError:
        return False
    return all(_ROOT.match(field) for field in fields)


_CHARS_PER_TOKEN = 4
_SCHEMA_FIELD = re.compile(r"response_format|json_schema|guided|structured|grammar", re.IGNORECASE)


@dataclass(slots=True)
class Plan:
    """The prompts, tools, schema and model calls of one batch."""

    spec: BatchSpec
    model: str
    tools: Sequence[Tool]
    schema: OutputSchema | None
    engine_enforces: bool = True
    """Whether the engine takes `response_format`. False once it has refused one."""
    offered: list[dict[str, Any]] = field(init=False)
    """The tools as they are declared to the model."""
    _gateway_calls_tools: bool = False
    _num_turns: Counter[int] = field(default_factory=Counter)
    _systems: dict[str, str] = field(default_factory=dict)
    """System prompts by their schema instruction: one text that all agents share."""

    def __post_init__(self) -> None:
        self.offered = [_declared(tool.name, tool.description, tool.parameters) for tool in self.tools]

    def use_gateway_tools(self, names: Collection[str], served: Iterable[dict[str, Any]]) -> None:
        """Let agents call tools of the gateway. `served` lists all of them. Raises ValueError for other names."""
        rows = {row["name"]: row for row in served}
        for name in names:
            if name not in rows:
                there = ", ".join(sorted(rows)) or "none"
                raise ValueError(f"there is no tool {name!r}, neither here nor at the gateway, which has {there}")
            if rows[name]["mode"] == "intercept":  # the gateway itself adds the other tools to each request
                self.offered.append(_declared(name, rows[name]["description"], rows[name]["parameters"]))
        self._gateway_calls_tools = bool(names)

    def prompts(self) -> Iterator[str]:
        """Return the tasks, each filled when its agent begins. Raises ValueError at once for a missing field."""
        for index, values in enumerate(self.spec.inputs):
            try:
                fill(self.spec.task, values)
            except ValueError as error:
                raise ValueError(f"input {index}: {error}") from None
        return (fill(self.spec.task, values) for values in self.spec.inputs)

    def is_oversized(self, prompt: str) -> bool:
        room_tokens = self.spec.model_max_context - self.spec.min_response_tokens
        return (len(self.spec.system_prompt) + len(prompt)) / _CHARS_PER_TOKEN > room_tokens

    def first_messages(self, prompt: str) -> list[Message]:
        """Return the opening. All agents have the same system prompt, so that they share its cache."""
        instruction = self.schema.instruction if self.schema and self._states_schema else ""
        system = self._systems.get(instruction)
        if system is None:
            system = self._systems[instruction] = "\n\n".join(filter(None, [self.spec.system_prompt, instruction]))
        opening = [{"role": "system", "content": system}] if system else []
        return [*opening, {"role": "user", "content": prompt}]

    def content(self, prompt: str) -> tuple[Any, ...]:
        """Return the content by which a checkpoint finds an agent."""
        spec, schema = self.spec, self.schema.json_schema if self.schema else None
        return self.model, spec.system_prompt, prompt, self.offered, schema, dict(spec.sampling)

    def body(self, messages: list[Message], *, is_last: bool, is_correction: bool = False) -> dict[str, Any]:
        """Return the body of one model call.

        An engine that enforces a schema cannot call tools meanwhile. So with tools only the last call has the
        schema, and with tools of the gateway, which may run in any call, only a correction has it.
        """
        body = {"model": self.model, "messages": messages, **self.spec.sampling}
        needs_no_tools = is_correction or (not self._gateway_calls_tools and (is_last or not self.offered))
        enforces = self.schema is not None and self.engine_enforces and needs_no_tools
        if self.offered:
            body["tools"] = self.offered
            if is_last and not enforces:
                body["tool_choice"] = "none"
        if enforces and self.schema is not None:
            body["response_format"] = self.schema.response_format
        return body

    def was_schema_refused(self, error: HTTPStatusError) -> bool:
        """Whether an error says that the engine takes no schema. From then on prompts state the schema."""
        if error.status not in (400, 422, 501) or not _SCHEMA_FIELD.search(str(error)):
            return False
        self.engine_enforces = False
        return True

    def record_turns(self, turns: int) -> None:
        """Record that an agent has its output after so many model calls."""
        self._num_turns[turns] += 1

    def remaining_turns(self, turn: int) -> int:
        """Estimate the model calls after call `turn` (from 1) from the agents that have ended, within bounds."""
        most = self.spec.max_turns - turn
        lasted = [(turns, count) for turns, count in self._num_turns.items() if turns >= turn]
        if most <= 0 or not lasted:
            return max(0, most)
        mean = sum((turns - turn) * count for turns, count in lasted) / sum(count for _, count in lasted)
        return min(most, round(mean))

    @property
    def _states_schema(self) -> bool:
        if self.spec.schema_in_prompt is not None:
            return self.spec.schema_in_prompt
        return bool(self.offered) or self._gateway_calls_tools or not self.engine_enforces


def _declared(name: str, description: str, parameters: dict[str, Any]) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}
