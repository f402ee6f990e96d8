"""Fills task templates: `str.format`, but for braces that cannot be meant as fields, such as those of JSON."""

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
    """The template with the fields of `values` in it.

    A template that `str.format` cannot read (`Answer as {"a": 1}: {question}`) has its fields filled and nothing
    else changed; there a doubled brace stays doubled. Raises ValueError for a field that is not in `values`.
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
    """Whether `str.format` reads it, with names for all fields."""
    try:
        fields = [field for _, field, _, _ in Formatter().parse(template) if field is not None]
    except ValueError:
        return False
    return all(_ROOT.match(field) for field in fields)


# ---- what all agents of a batch share, worked out once: their prompts, tools, schema and model calls

_CHARS_PER_TOKEN = 4
_SCHEMA_FIELD = re.compile(r"response_format|json_schema|guided|structured|grammar", re.IGNORECASE)


@dataclass(slots=True)
class Plan:
    """Of one batch."""

    spec: BatchSpec
    model: str
    tools: Sequence[Tool]
    schema: OutputSchema | None
    engine_enforces: bool = True
    """Whether the engine takes `response_format`; false once it has refused one."""
    offered: list[dict[str, Any]] = field(init=False)
    """As they are declared to the model."""
    _gateway_calls_tools: bool = False
    _num_turns: Counter[int] = field(default_factory=Counter)
    _systems: dict[str, str] = field(default_factory=dict)
    """System prompts by what they say of the schema: one text for all agents, not one for each."""

    def __post_init__(self) -> None:
        self.offered = [_declared(tool.name, tool.description, tool.parameters) for tool in self.tools]

    def use_gateway_tools(self, names: Collection[str], served: Iterable[dict[str, Any]]) -> None:
        """`served`: the gateway's list of its tools. Raises ValueError for a name that is not in it."""
        rows = {row["name"]: row for row in served}
        for name in names:
            if name not in rows:
                there = ", ".join(sorted(rows)) or "none"
                raise ValueError(f"there is no tool {name!r}, neither here nor at the gateway, which has {there}")
            if rows[name]["mode"] == "intercept":  # what it offers, it adds to each request itself
                self.offered.append(_declared(name, rows[name]["description"], rows[name]["parameters"]))
        self._gateway_calls_tools = bool(names)

    def prompts(self) -> Iterator[str]:
        """The task of each agent, made when it begins. Raises ValueError, now, for a field that an input lacks."""
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
        """The system prompt is the same for all agents, so that they share its cache."""
        instruction = self.schema.instruction if self.schema and self._states_schema else ""
        system = self._systems.get(instruction)
        if system is None:
            system = self._systems[instruction] = "\n\n".join(filter(None, [self.spec.system_prompt, instruction]))
        opening = [{"role": "system", "content": system}] if system else []
        return [*opening, {"role": "user", "content": prompt}]

    def content(self, prompt: str) -> tuple[Any, ...]:
        """What makes two agents the same to a checkpoint."""
        spec, schema = self.spec, self.schema.json_schema if self.schema else None
        return self.model, spec.system_prompt, prompt, self.offered, schema, dict(spec.sampling)

    def body(self, messages: list[Message], *, is_last: bool, is_correction: bool = False) -> dict[str, Any]:
        """Of one model call. A model that is held to a schema cannot call tools meanwhile, so with tools only the
        last call asks for it; where the gateway calls them, that may take any call but a correction."""
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
        """Whether an error says that the engine takes no schema; from then on prompts state it."""
        if error.status not in (400, 422, 501) or not _SCHEMA_FIELD.search(str(error)):
            return False
        self.engine_enforces = False
        return True

    def record_turns(self, turns: int) -> None:
        """Record that an agent has its output after so many model calls."""
        self._num_turns[turns] += 1

    def remaining_turns(self, turn: int) -> int:
        """Model calls to come after call `turn` (from 1): as many as in the agents that have ended, in the mean;
        at most what is allowed."""
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
