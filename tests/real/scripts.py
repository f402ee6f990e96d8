"""Scripts: what a model that cannot choose is made to answer, turn by turn, to a real agent."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Body = dict[str, Any]
ITEMS_OF_MODEL = ("function_call", "custom_tool_call", "reasoning", "local_shell_call")
SHELL_TOOLS = {
    **dict.fromkeys(("bash", "Bash", "run_shell_command", "shell_command"), "command"),
    "exec_command": "cmd",
}
"""Name of the tool -> its argument that takes one line of shell."""


@dataclass(frozen=True)
class Call:
    name: str
    arguments: dict[str, Any]
    namespace: str = ""
    """Of Codex's `namespace` tools; empty for plain functions."""

    @property
    def flat_name(self) -> str:
        """As vLLM shows it to the model."""
        return f"{self.namespace}__{self.name}" if self.namespace else self.name


@dataclass(frozen=True)
class Shell:
    """A shell command, in whichever shell tool the client offers."""

    command: str


@dataclass(frozen=True)
class Answer:
    text: str
    calls: tuple[Call, ...] = ()


Script = Callable[[Body, int], Answer]
"""(request body, number of the session's turn from 0) -> what the model answers."""

Action = Call | Shell
Step = str | Action | tuple[Action, ...] | Callable[[Body], Action]


def steps(*steps: Step, title: str = "A scripted run") -> Script:
    """One step per turn, the last one again when they run out; requests without tools get the title."""

    def script(body: Body, turn: int) -> Answer:
        if not body.get("tools"):
            return Answer(title)
        return answer_to(body, steps[min(turn, len(steps) - 1)])

    return script


def for_agents(main: Script, child: Script, spawning_tool: str) -> Script:
    """Both clients take the tool that starts sub-agents away from the sub-agents themselves."""

    def script(body: Body, turn: int) -> Answer:
        is_child = bool(body.get("tools")) and spawning_tool not in tool_names(body)
        return (child if is_child else main)(body, turn)

    return script


def answer_to(body: Body, step: Step) -> Answer:
    if isinstance(step, str):
        return Answer(step)
    actions = (step(body),) if callable(step) else step if isinstance(step, tuple) else (step,)
    calls = tuple(_shell_call(action, body) if isinstance(action, Shell) else action for action in actions)
    return Answer("I will use " + ", ".join(call.name for call in calls) + ".\n", calls)


def hermes(answer: Answer) -> str:
    """As text in the format of the engines' hermes tool parser."""
    payloads = [json.dumps({"name": call.flat_name, "arguments": call.arguments}) for call in answer.calls]
    return answer.text + "\n".join(f"<tool_call>\n{payload}\n</tool_call>" for payload in payloads)


def _shell_call(shell: Shell, body: Body) -> Call:
    offered = tool_names(body)
    for name, argument in SHELL_TOOLS.items():
        if name in offered:
            description = {"description": "Runs a command"} if name == "bash" else {}
            return Call(name, {argument: shell.command} | description)
    raise LookupError(f"the client offers no known shell tool: {offered}")


def tool_names(body: Body) -> list[str]:
    """Of chat, Responses and Messages tools; those in a namespace under their flat names."""
    names: list[str] = []
    for tool in body.get("tools") or []:
        if tool.get("type") == "namespace":
            names += [f"{tool['name']}__{inner['name']}" for inner in tool["tools"]]
        else:
            names.append(tool.get("function", tool).get("name") or tool["type"])
    return names


def num_turns(body: Body) -> int:
    """Answers of the model so far: runs of its items, since one answer can be several items."""
    items = body.get("messages") or body.get("input") or []
    if isinstance(items, str):
        return 0
    is_answer = [_is_from_model(item) for item in items]
    return sum(now and not before for before, now in zip([False, *is_answer], is_answer, strict=False))


def _is_from_model(item: Body) -> bool:
    return item.get("role") == "assistant" or item.get("type") in ITEMS_OF_MODEL


def spawned_agent_id(body: Body) -> str:
    """Of the sub-agent that Codex started last, from the output of its `spawn_agent`."""
    for item in reversed(body["input"]):
        if item.get("type") == "function_call_output" and '"agent_id"' in item["output"]:
            agent_id: str = json.loads(item["output"])["agent_id"]
            return agent_id
    raise LookupError("no spawn_agent has returned yet")
