"""One agent: a model call, the tool calls in its answer, the next model call, until an answer calls no tool.

Laws:
1. Each step has a position in the transcript: an answer of the model, a result of a tool. It is kept before a
   later step begins.
2. A resumed agent takes its kept steps from the transcript, and repeats none of them.
3. A destructive call that an earlier process may have begun does not run again. The model reads that its
   outcome is unknown.
4. The last turn has to answer: tools that it calls do not run.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from time import monotonic
from typing import Any, Protocol, TypeAlias

from tool_runtime.types import Call, Effect, Json, Tools, not_known

Message: TypeAlias = dict[str, Any]
"""A message of a chat completion, as it goes over the wire."""

TEXTS = ("content", "reasoning", "reasoning_content", "refusal")
_REPEATED = frozenset((*TEXTS, "role", "tool_calls"))
"""Keys of an answer that the history repeats."""


class OutOfTurns(Exception):
    """The model still called tools in its last turn."""


class BadCompletion(ValueError):
    """The answer is no chat completion."""


@dataclass(frozen=True, slots=True)
class Step:
    """One message of a transcript."""

    message: Message
    usage: Any = None
    """Tokens of the model call, in a type of the caller. None: no model wrote the message."""


@dataclass(frozen=True, slots=True)
class ModelTurn:
    """One model call that is due."""

    number: int
    """Counted from 1."""
    is_last: bool
    """The agent has no further turn, so the model has to answer."""
    is_correction: bool
    """An answer was sent back to the model before."""


class Agent(Protocol):
    """How an agent asks its model, runs a tool and keeps a step. What these raise ends the loop."""

    async def ask_model(self, turn: ModelTurn) -> Step: ...

    async def run_tool(self, call: Call) -> str:
        """Return the text of the result. Also answers a call of a tool that the agent does not have."""
        ...

    async def keep_step(self, position: int, step: Step) -> None: ...


@dataclass(slots=True)
class AgentLoop:
    """The state of one agent. It holds no reference to the agent, so that both are freed at once."""

    messages: list[Message]
    """The history. It begins with the task. The agent may replace it when it asks its model."""
    tools: Tools
    """Tools that the agent may call, by name."""
    kept: dict[int, Step] = field(default_factory=dict)
    """Steps of an earlier process by position. The loop removes a step when it comes to it."""
    usages: list[Any] = field(default_factory=list)
    """Usage of each model call, kept ones included."""
    num_calls: int = 0
    tools_s: float = 0.0
    """Time that tools took."""
    _position: int = 0
    _was_corrected: bool = False

    @property
    def turns(self) -> int:
        """Model calls that were answered."""
        return len(self.usages)

    async def answer(self, agent: Agent, max_turns: int, correction: str = "") -> Message:
        """Return the next message that calls no tool. Raises OutOfTurns.

        `correction`: what is wrong with the last answer, so that the model answers again.
        """
        if correction:
            self._was_corrected = True
            request = Step({"role": "user", "content": correction})
            self.messages.append((await self._taken(agent, partial(_ready, request))).message)
        while True:
            turn = ModelTurn(self.turns + 1, self.turns + 1 >= max_turns, self._was_corrected)
            was_kept = self._position in self.kept
            step = await self._taken(agent, partial(agent.ask_model, turn))
            self.usages.append(step.usage)
            self.messages.append(step.message)
            calls = calls_of(step.message)
            if not calls:
                return step.message
            if turn.is_last and self._position not in self.kept:  # else an earlier process had more turns
                raise OutOfTurns
            await self._run_calls(agent, calls, was_kept)

    async def _taken(self, agent: Agent, get: Callable[[], Awaitable[Step]]) -> Step:
        step = await self._at(agent, self._position, get)
        self._position += 1
        return step

    async def _at(self, agent: Agent, position: int, get: Callable[[], Awaitable[Step]]) -> Step:
        """Return the step that is kept at a position. Otherwise get it and keep it."""
        step = self.kept.pop(position, None)
        if step is None:
            step = await get()
            await agent.keep_step(position, step)
        return step

    async def _run_calls(self, agent: Agent, calls: Sequence[Call], was_kept: bool) -> None:
        """Run all calls at once. Their results stand in the order of the calls."""
        began_at, first = monotonic(), self._position
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(self._at(agent, first + n, partial(self._result, agent, call, was_kept)))
                    for n, call in enumerate(calls)
                ]
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None
        finally:
            self.tools_s += monotonic() - began_at
        self._position += len(calls)
        self.num_calls += len(calls)
        self.messages += [task.result().message for task in tasks]

    async def _result(self, agent: Agent, call: Call, was_kept: bool) -> Step:
        """`was_kept`: an earlier process had this call, and may have begun it."""
        tool = self.tools.get(call.name)
        if was_kept and tool is not None and tool.effect is Effect.DESTRUCTIVE:
            text = f"Error: the run was interrupted.\n{not_known(tool)}"
        else:
            text = await agent.run_tool(call)
        return Step({"role": "tool", "tool_call_id": call.id, "content": text})


async def _ready(step: Step) -> Step:
    return step


# ---- chat completions


def message_of(completion: Json) -> Message:
    """Return the answer as the history repeats it. Raises BadCompletion.

    Texts and arguments stay as the model wrote them, byte for byte, so that the engine finds them in its cache.
    """
    try:
        given = completion["choices"][0]["message"]
        message: Message = {key: value for key, value in given.items() if key in _REPEATED and value is not None}
        calls = [_repeated(position, call) for position, call in enumerate(message.pop("tool_calls", ()))]
    except (KeyError, IndexError, TypeError, AttributeError):
        raise BadCompletion(f"this is no chat completion: {str(completion)[:300]}") from None
    message.setdefault("role", "assistant")
    if calls:
        message["tool_calls"] = calls
    message.setdefault("content", None if calls else "")
    return message


def calls_of(message: Message) -> list[Call]:
    """Return the tool calls of a message that `message_of` made."""
    functions = [(call["id"], call["function"]) for call in message.get("tool_calls", ())]
    return [Call(id_, function["name"], function["arguments"]) for id_, function in functions]


def text_in(message: Message) -> str:
    """Return the text of a message, which may be in parts."""
    content = message.get("content")
    if isinstance(content, list):
        return "".join(part.get("text") or "" for part in content if isinstance(part, dict))
    return content or ""


def _repeated(position: int, call: Json) -> Json:
    """Some engines leave the id of a call out, or write its arguments as an object."""
    function = call["function"]
    arguments = function.get("arguments") or ""
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False, separators=(",", ":"))
    id_ = call.get("id") or f"call_{position}"
    return {"id": id_, "type": "function", "function": {"name": function["name"], "arguments": arguments}}
