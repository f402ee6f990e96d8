"""Laws of the loop that batches of the gateway and `batch_agent` share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from tool_runtime.agent_loop import (
    AgentLoop,
    BadCompletion,
    Message,
    ModelTurn,
    OutOfTurns,
    Step,
    calls_of,
    message_of,
    text_in,
)
from tool_runtime.types import Call, Effect, Tool

TASK = {"role": "user", "content": "go"}


async def never(arguments: Any, context: Any) -> object:
    raise AssertionError("the loop runs tools through its agent")


TOOLS = {
    name: Tool(name=name, description="", parameters={}, run=never, effect=effect)
    for name, effect in (("look", Effect.READ_ONLY), ("send", Effect.DESTRUCTIVE))
}


def says(text: str) -> Message:
    return {"role": "assistant", "content": text}


def calls(*names: str) -> Message:
    rows = [
        {"id": f"call_{n}", "type": "function", "function": {"name": name, "arguments": "{}"}}
        for n, name in enumerate(names)
    ]
    return {"role": "assistant", "content": None, "tool_calls": rows}


@dataclass
class Scripted:
    """An agent whose model gives answers one after the other, and whose steps survive it."""

    answers: list[Message]
    kept: dict[int, Step] = field(default_factory=dict)
    turns: list[ModelTurn] = field(default_factory=list)
    runs: list[str] = field(default_factory=list)
    breaks_at: str = ""
    """The tool that never returns."""

    async def ask_model(self, turn: ModelTurn) -> Step:
        self.turns.append(turn)
        return Step(self.answers.pop(0), 1)

    async def run_tool(self, call: Call) -> str:
        self.runs.append(call.name)
        if call.name == self.breaks_at:
            raise ConnectionAbortedError
        return f"{call.name} done" if call.name in TOOLS else "no such tool"

    async def keep_step(self, position: int, step: Step) -> None:
        assert position not in self.kept
        self.kept[position] = step


def loop_of(agent: Scripted) -> AgentLoop:
    return AgentLoop([dict(TASK)], TOOLS, dict(agent.kept))


def texts(messages: Sequence[Message]) -> list[Any]:
    return [message["content"] for message in messages]


async def test_model_calls_and_tool_calls_alternate_until_an_answer_calls_no_tool() -> None:
    agent = Scripted([calls("look", "send"), calls("other"), says("done")])
    loop = loop_of(agent)
    assert text_in(await loop.answer(agent, 5)) == "done"
    assert texts(loop.messages) == ["go", None, "look done", "send done", None, "no such tool", "done"]
    assert (loop.turns, loop.num_calls, loop.usages) == (3, 3, [1, 1, 1])
    assert [agent.kept[n].message for n in range(6)] == loop.messages[1:]
    assert [turn.is_last for turn in agent.turns] == [False] * 3


async def test_the_last_turn_has_to_answer_and_its_tools_do_not_run() -> None:
    agent = Scripted([calls("look"), calls("look")])
    with pytest.raises(OutOfTurns):
        await loop_of(agent).answer(agent, 2)
    assert [(turn.number, turn.is_last) for turn in agent.turns] == [(1, False), (2, True)]
    assert agent.runs == ["look"]


async def test_a_correction_is_a_message_of_the_user_and_every_later_turn_knows_of_it() -> None:
    agent = Scripted([says("wrong"), calls("look"), says("right")])
    loop = loop_of(agent)
    await loop.answer(agent, 3)
    assert text_in(await loop.answer(agent, 4, "This is wrong.")) == "right"
    assert loop.messages[2] == {"role": "user", "content": "This is wrong."}
    assert [turn.is_correction for turn in agent.turns] == [False, True, True]


@pytest.mark.parametrize("num_kept", range(6))
async def test_a_resumed_agent_repeats_no_step_wherever_it_was_cut(num_kept: int) -> None:
    answers = [calls("look"), says("wrong"), calls("look"), says("right")]
    whole = Scripted(list(answers))
    loop = loop_of(whole)
    await loop.answer(whole, 9)
    await loop.answer(whole, 9, "Again.")
    kept = {position: whole.kept[position] for position in range(num_kept)}
    num_answers = sum(step.usage is not None for step in kept.values())
    resumed = Scripted(answers[num_answers:], dict(kept))
    again = loop_of(resumed)
    await again.answer(resumed, 9)
    await again.answer(resumed, 9, "Again.")
    assert again.messages == loop.messages
    assert (again.turns, again.num_calls) == (loop.turns, loop.num_calls)
    assert resumed.kept == whole.kept


async def test_a_destructive_call_that_may_have_begun_does_not_run_again_and_others_do() -> None:
    agent = Scripted([calls("look", "send", "look")], breaks_at="send")
    with pytest.raises(ConnectionAbortedError):
        await loop_of(agent).answer(agent, 3)
    resumed = Scripted([says("done")], agent.kept)
    loop = loop_of(resumed)
    await loop.answer(resumed, 3)
    assert "send" not in resumed.runs
    assert "outcome of this call is unknown" in texts(loop.messages)[3]
    assert texts(loop.messages)[2:5:2] == ["look done", "look done"]
    assert agent.runs.count("look") + resumed.runs.count("look") <= 4


async def test_a_result_that_was_kept_stands_in_its_place_although_an_earlier_one_was_lost() -> None:
    kept = {0: Step(calls("send", "send"), 1), 2: Step({"role": "tool", "content": "kept"})}
    agent = Scripted([says("done")], kept)
    loop = loop_of(agent)
    await loop.answer(agent, 3)
    assert "unknown" in texts(loop.messages)[2]
    assert texts(loop.messages)[3:] == ["kept", "done"]
    assert agent.runs == []


async def test_an_agent_that_resumes_with_fewer_turns_has_one_to_answer() -> None:
    kept = {0: Step(calls("look"), 1), 1: Step({"role": "tool", "content": "seen"})}
    agent = Scripted([says("done")], kept)
    assert text_in(await loop_of(agent).answer(agent, 1)) == "done"
    assert agent.turns == [ModelTurn(2, True, False)]


def test_a_completion_goes_into_the_history_as_the_model_wrote_it() -> None:
    function = {"name": "f", "arguments": '{ "a":1 }'}
    given = {"content": None, "reasoning": "r", "tool_calls": [{"function": function, "index": 0}], "audio": None}
    message = message_of({"choices": [{"message": given}]})
    assert message == {
        "role": "assistant",
        "content": None,
        "reasoning": "r",
        "tool_calls": [{"id": "call_0", "type": "function", "function": function}],
    }
    assert calls_of(message) == [Call("call_0", "f", '{ "a":1 }')]


@pytest.mark.parametrize("completion", [{}, {"choices": ["x"]}, {"choices": [{"message": {"tool_calls": ["x"]}}]}])
def test_anything_else_is_no_completion(completion: Any) -> None:
    with pytest.raises(BadCompletion):
        message_of(completion)
