"""The demo's agents: plain OpenAI chat clients that stream, wait for a tool, and send the longer history again."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from gateway.demo.workload import CHARS_PER_TOKEN, PlannedSession, PlannedTurn
from gateway.fields import integer, obj
from gateway.sse import EventSplitter, data_of
from gateway.transport import Timeouts, Upstream

TIMEOUTS = Timeouts(connect_s=10.0, first_byte_s=600.0, idle_s=600.0)
_WORDS = ("state", "cache", "agent", "index", "token", "queue", "slots", "merge", "patch", "build")


@dataclass(slots=True)
class TurnRecord:
    """One turn as its client saw it; seconds since the fleet started."""

    index: int
    wanted_at: float
    admitted_at: float = 0.0
    """When it stopped waiting: gateway and engine queues are behind it."""
    first_token_at: float = 0.0
    done_at: float = 0.0
    prompt_tokens: int = 0
    cached_tokens: int = 0


@dataclass(slots=True)
class SessionRecord:
    id: str
    arrived_at: float
    turns: list[TurnRecord] = field(default_factory=list)

    @property
    def completion_s(self) -> float:
        return self.turns[-1].done_at - self.arrived_at


def prose(name: str, num_chars: int) -> str:
    """Filler text of that length that depends on `name` alone."""
    rng = random.Random(name)  # noqa: S311 - filler text
    words = (rng.choice(_WORDS) + str(rng.randrange(10_000)) for _ in range(num_chars // 5))
    return " ".join(words)[:num_chars]


class Fleet:
    """Runs planned sessions against one base URL, all on one connection pool."""

    def __init__(
        self,
        upstream: Upstream,
        base_url: str,
        model: str,
        on_turn: Callable[[], None],
        chars_per_token: float = CHARS_PER_TOKEN,
    ) -> None:
        self._upstream = upstream
        self._chars_per_token = chars_per_token
        self._url = f"{base_url}/v1/chat/completions"
        self._model = model
        self._on_turn = on_turn
        self._started_at = 0.0

    async def run(self, sessions: Sequence[PlannedSession]) -> list[SessionRecord]:
        self._started_at = time.monotonic()
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._session(session)) for session in sessions]
        return [task.result() for task in tasks]

    def _now(self) -> float:
        return time.monotonic() - self._started_at

    def _prose(self, name: str, num_tokens: int) -> str:
        return prose(name, round(num_tokens * self._chars_per_token))

    async def _session(self, session: PlannedSession) -> SessionRecord:
        await asyncio.sleep(session.arrives_at)
        record = SessionRecord(session.id, self._now())
        shared = self._prose(session.family_id, session.shared_tokens)
        messages: list[dict[str, Any]] = [{"role": "system", "content": shared}]
        known_tokens = session.shared_tokens
        for index, turn in enumerate(session.turns):
            name = f"{session.id} {index}"
            messages.append({"role": "user", "content": self._prose(name, turn.prompt_tokens - known_tokens)})
            answer = await self._turn(record, index, turn, messages)
            messages.append({"role": "assistant", "content": answer})
            known_tokens = turn.prompt_tokens + turn.output_tokens
            self._on_turn()
            if index + 1 < len(session.turns):
                await asyncio.sleep(turn.gap_s)
        return record

    async def _turn(
        self, session: SessionRecord, index: int, turn: PlannedTurn, messages: list[dict[str, Any]]
    ) -> str:
        record = TurnRecord(index, self._now())
        session.turns.append(record)
        body = {
            "model": self._model,
            "messages": messages,
            "max_tokens": turn.output_tokens,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        headers = [("content-type", "application/json")]
        reply = await self._upstream.call("POST", self._url, headers, orjson.dumps(body), TIMEOUTS)
        if reply.status != 200:
            refusal = await reply.read(10_000)
            raise RuntimeError(f"{self._url} answered {reply.status}: {refusal.decode(errors='replace')}")
        splitter, words = EventSplitter(), []
        queue_ms = float(reply.headers.get("x-turngate-queue-ms", "0"))
        async for chunk in reply.chunks():
            for event in splitter.feed(chunk):
                data = data_of(event)
                if data is not None and data != b"[DONE]":
                    words.append(self._read(orjson.loads(data), record, queue_ms))
        record.done_at = self._now()
        reply.close(reuse=True)
        return "".join(words)

    def _read(self, event: dict[str, Any], record: TurnRecord, queue_ms: float) -> str:
        """Text of one event; notes the first token and the usage."""
        usage = obj(event, "usage")
        if usage:
            record.prompt_tokens = integer(usage, "prompt_tokens") or 0
            record.cached_tokens = integer(obj(usage, "prompt_tokens_details"), "cached_tokens") or 0
            queue_ms += integer(usage, "embedded_queue_ms") or 0
            record.admitted_at = min(record.first_token_at, record.wanted_at + queue_ms / 1000)
        choices = event.get("choices") or [{}]
        words = obj(choices[0], "delta").get("content") or ""
        if words and not record.first_token_at:
            record.first_token_at = self._now()
        return str(words)
