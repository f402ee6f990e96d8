"""Any agent on the command line, by a template of its command."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from batch_agent.results import Usage
from batch_agent.runtimes.base import Launch, Link, Output, Runtime


@dataclass(kw_only=True)
class CommandRuntime(Runtime):
    """`CommandRuntime(command=["mini", "-m", "openai/{model}", "-y", "-t", "{prompt}"], gateway="http://...")`.

    In `command` and in the values of `variables`, `{prompt}`, `{model}`, `{base_url}`, `{session}`, `{parent}`,
    `{workspace}` and `{state}` are filled in; other braces stay. A command without `{prompt}` gets the prompt on
    standard input. Its standard output is the answer. OPENAI_BASE_URL and OPENAI_API_KEY are set for it.

    An agent that can send headers becomes a session of the batch with `X-Turngate-Session: {session}` and
    `X-Turngate-Parent: {parent}`; others are recognised by what they send.
    """

    command: Sequence[str]
    variables: dict[str, str] = field(default_factory=dict)
    """Further environment variables."""

    def __post_init__(self) -> None:
        if not self.command:
            raise ValueError("command is empty")

    @property
    def program(self) -> str:
        return self.command[0]

    def refuse_missing_program(self) -> None:
        if "{" not in self.program and "PATH" not in self.variables:  # else it is known once an agent starts
            super().refuse_missing_program()

    def launch(self, link: Link, prompt: str, conversation: str = "") -> Launch | None:
        if conversation:
            return None
        values = {
            "model": link.model,
            "base_url": link.base_url,
            "session": link.session,
            "parent": link.parent,
            "workspace": str(link.workspace),
            "state": str(link.state),
        }
        env = {name: _filled(text, values) for name, text in self.variables.items()}
        env |= {"BATCH_AGENT_SESSION": link.session, "BATCH_AGENT_PARENT": link.parent}
        takes_prompt = any("{prompt}" in word for word in self.command)
        words = [_filled(word, values | {"prompt": prompt}) for word in self.command]
        return Launch(words, "" if takes_prompt else prompt, env)

    def output(self) -> Output:
        return PlainOutput()


class PlainOutput:
    """The whole output of the program is its answer."""

    conversation = ""
    turns = 0
    usage = Usage()

    def __init__(self) -> None:
        self._lines: list[str] = []

    @property
    def text(self) -> str:
        return "".join(self._lines).strip()

    def line(self, raw: bytes) -> None:
        self._lines.append(raw.decode(errors="replace"))


def _filled(text: str, values: dict[str, str]) -> str:
    """Fill in the prompt last, since it may hold text that looks like a field."""
    for name, value in values.items():
        text = text.replace(f"{{{name}}}", value)
    return text
