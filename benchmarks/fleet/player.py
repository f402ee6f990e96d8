"""Plays the simulator's fleets on real engines: texts become chat messages, sessions become clients."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias

from benchmarks.fleet.clients import Client
from benchmarks.simulation.workloads import AgentRun, ModelCall, Text, everyone
from gateway.cli.demo_fleet import CALL_FAILURES, ModelClient, SessionRecord, TurnRecord

Message: TypeAlias = Mapping[str, str]
Headers: TypeAlias = Sequence[tuple[str, str]]
NOT_DONE = "not done in time"

VOCABULARY = (
    "the of to in is and for with that from this not are be as it on by or an file name list type code test line "
    "path data time read open find call last next each same new old only when then than into over set get put add "
    "use run make take give keep write close value class error"
)
WORDS = VOCABULARY.split()


def prose(name: str, num_chars: int) -> str:
    """Plain words that depend on `name` alone, of that many characters: 4.5 per token on Dynamo's small model, as
    the simulator's worlds have it. All words come equally often, so that equal lengths are equal tokens."""
    rng, words = random.Random(name), list[str]()
    for _ in range(num_chars // len(VOCABULARY) + 1):
        words += rng.sample(WORDS, len(WORDS))
    return " ".join(words)[:num_chars]


@dataclass(frozen=True, slots=True)
class Author:
    """Writes the parts of texts: the first part of a text is a family's system prompt, each later one is a user's
    message or a tool's result. Equal parts are equal strings."""

    chars_per_token: float
    edition: str = ""
    """Texts of two editions agree in their system prompts alone."""

    def messages(self, text: Text, start: int, end: int, surplus_tokens: int = 0) -> list[Message]:
        """The tokens of a text from `start` to `end`, one message per part, the first one shorter by the
        surplus."""
        found: list[Message] = []
        at = start
        for part_end, name in text.parts:
            upto = min(part_end, end)
            if upto > at:
                role, title = ("user", f"{self.edition}{name} {at}") if at else ("system", name)
                num_tokens = max(1, upto - at - surplus_tokens)
                found.append({"role": role, "content": prose(title, round(num_tokens * self.chars_per_token))})
                at, surplus_tokens = upto, 0
        return found


@dataclass(frozen=True, slots=True)
class Conversation:
    """The messages of the first tokens of a text."""

    text: Text = Text()
    known_tokens: int = 0
    messages: Sequence[Message] = ()
    surplus_tokens: int = 0
    """What the engine counts beyond `known_tokens`: the chat template, and answers that it cuts into other tokens
    than those that it generated. The next message makes up for it."""

    def prompt(self, call: ModelCall, author: Author) -> Conversation:
        """The prompt of the next call, which continues this conversation if its text does. A sub-agent may
        continue its parent's, and a text that was compacted begins again."""
        if call.text.shared(self.text) < self.known_tokens:
            return Conversation().prompt(call, author)
        more = author.messages(call.text, self.known_tokens, call.prompt_tokens, self.surplus_tokens)
        return Conversation(call.text, call.prompt_tokens, (*self.messages, *more))

    def counted(self, prompt_tokens: int) -> Conversation:
        """With the engine's own count of this prompt; 0: it states none."""
        return replace(self, surplus_tokens=prompt_tokens - self.known_tokens if prompt_tokens else 0)

    def answered(self, answer: str, output_tokens: int) -> Conversation:
        messages = (*self.messages, {"role": "assistant", "content": answer})
        return replace(self, known_tokens=self.known_tokens + output_tokens, messages=messages)


class Player:
    """Plays the sessions of one fleet, and keeps one record per session and sub-agent."""

    def __init__(self, model: ModelClient, author: Author, client: Client) -> None:
        self._model = model
        self._author = author
        self._client = client
        self._records: dict[str, SessionRecord] = {}

    async def play(self, runs: Sequence[AgentRun], within_s: float) -> dict[str, SessionRecord]:
        """A session that fails, or is not done in time, says so in its record."""
        assert not any(run.side for run in runs), "requests for titles are not played"
        self._records = {run.id: SessionRecord(run.id, run.arrives_at, failure=NOT_DONE) for run in everyone(runs)}
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s), asyncio.TaskGroup() as group:
                for run in runs:
                    group.create_task(self._attend(run, Conversation()))
        return self._records

    async def _attend(self, run: AgentRun, before: Conversation) -> None:
        record = self._records[run.id]
        try:
            await self._session(run, record, before)
        except CALL_FAILURES as error:
            record.failure = str(error) or type(error).__name__
        else:
            record.failure = None
        finally:
            await self._client.left(run)

    async def _session(self, run: AgentRun, record: SessionRecord, before: Conversation) -> None:
        await asyncio.sleep(run.arrives_at)
        record.arrived_at = self._model.now()
        conversation = before
        for index, call in enumerate(run.calls):
            prompt = conversation.prompt(call, self._author)
            turn = TurnRecord(index, self._model.now())
            record.turns.append(turn)
            async with self._client.place(run, index):
                headers = self._client.headers(run, index)
                ask = partial(self._ask, prompt.messages, call.output_tokens, turn, headers)
                answer = await self._client.call(ask, turn)
            prompt = prompt.counted(turn.prompt_tokens)
            conversation = prompt.answered(answer, call.output_tokens)
            if index + 1 < len(run.calls):
                await self._between(call, prompt)

    async def _ask(
        self, messages: Sequence[Message], output_tokens: int, turn: TurnRecord, headers: Headers, more: Headers
    ) -> str:
        return await self._model.call(messages, output_tokens, turn, [*headers, *more])

    async def _between(self, call: ModelCall, prompt: Conversation) -> None:
        """The tool of a call, and the sub-agents that its answer starts, which may continue its prompt."""
        async with asyncio.TaskGroup() as group:
            group.create_task(asyncio.sleep(call.gap_s))
            for child in call.children:
                group.create_task(self._attend(child, prompt))
