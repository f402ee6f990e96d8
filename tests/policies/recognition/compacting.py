"""Agents that compact their histories, for tests of recognition."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from typing import Any

from policies.recognition.continuation import Call
from policies.recognition.lineage import Lineage, Sighting

TOOLS = (b'{"name":"bash"}',)
SYSTEM = b"You are an agent. " * 60
SUMMARIST = b"You summarise conversations for another agent. " * 20


def canonical(role: str, text: str, call_id: str = "") -> bytes:
    call = {"tool_call_id": call_id} if call_id else {}
    return json.dumps([role, {"content": text} | call], separators=(",", ":")).encode()


@dataclass
class Desk:
    """A Lineage and its clock, shared by agents that work at the same time."""

    lineage: Lineage = field(default_factory=Lineage)
    now: float = 0.0

    def ask(self, call: Call) -> Sighting:
        self.now += 1
        return self.lineage.recognise(call, self.now)

    def end(self, sighting: Sighting, answer: str | None) -> str:
        """The id of its tool call. No answer: it failed."""
        self.now += 1
        said, call_id = json.dumps(answer or "").encode()[1:-1], f"call_{self.now:012}"
        self.lineage.answered(sighting, answer is not None, (call_id.encode(),), self.now, said)
        return call_id


@dataclass
class Agent:
    """A client that compacts as OpenCode does: the history as a transcript, then a history of three messages."""

    desk: Desk
    task: str = "Explain what main.py does"
    call: Call = Call(b"tenant and model", TOOLS, SYSTEM, ())
    history: list[tuple[str, ...]] = field(default_factory=list)
    prior: str = ""
    most_messages: int = 100
    """Messages that its requests for a summary hold."""

    def __post_init__(self) -> None:
        self.history = self.history or [("user", self.task)]

    def send(self, **changed: Any) -> Sighting:
        messages = tuple(canonical(*message) for message in self.history)
        return self.desk.ask(dataclasses.replace(self.call, messages=messages, **changed))

    def turn(self, answer: str | None, **changed: Any) -> Sighting:
        sighting = self.send(**changed)
        call_id = self.desk.end(sighting, answer)
        if answer is not None:
            self.keep(answer, call_id)
        return sighting

    def keep(self, answer: str, call_id: str) -> None:
        self.history += [("assistant", answer, call_id), ("tool", f"a result of\n\t{answer}", call_id)]

    def ask_for_summary(self) -> Sighting:
        roles = {"user": "[User]: ", "assistant": "[Assistant]: ", "tool": "[Tool result]: "}
        history = "\n\n".join(roles[role] + text for role, text, *_ in self.history[: self.most_messages])
        text = f"Sum up this conversation:\n<conversation>\n{history}\n</conversation>\n{self.prior}\nBe brief."
        return self.desk.ask(
            dataclasses.replace(self.call, tools=(), system=SUMMARIST, messages=(canonical("user", text),))
        )

    def restart_from(self, summary: str) -> None:
        self.prior = summary
        self.history = [
            ("user", "What did we do so far?"),
            ("assistant", summary),
            ("user", "Continue if you can."),
        ]

    def compact(self, summary: str) -> None:
        self.desk.end(self.ask_for_summary(), summary)
        self.restart_from(summary)
