"""Agent fleets as data: sessions that share a prompt prefix, grow turn by turn, and wait for tools."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import orjson

from gateway.core.fields import integer, obj
from gateway.core.sse import EventSplitter, data_of
from gateway.core.transport import Timeouts, Upstream, UpstreamCut, UpstreamRefused

CHARS_PER_TOKEN = 4.0
"""Of the embedded engine."""
CALIBRATION_CHARS = 4_000


@dataclass(frozen=True, slots=True)
class FleetShape:
    """A fleet by its sizes; tokens and seconds. A range is drawn uniformly, seeded."""

    num_sessions: int
    lengths: Sequence[int] = (4,)
    """Turns per session; session i has lengths[i % len(lengths)] after a seeded shuffle."""
    shared_tokens: int = 2_008
    first_tokens: int = 400
    append_tokens: int = 400
    """Tool result that a turn adds, beyond the answer before it."""
    output_tokens: tuple[int, int] = (72, 168)
    gap_s: tuple[float, float] = (0.3, 0.8)
    arrival_rate_per_s: float | None = None
    """Poisson arrivals; None: all at once."""


@dataclass(frozen=True, slots=True)
class PlannedTurn:
    prompt_tokens: int
    output_tokens: int
    gap_s: float
    """Tool time after the answer."""


@dataclass(frozen=True, slots=True)
class PlannedSession:
    id: str
    family_id: str
    arrives_at: float
    shared_tokens: int
    turns: tuple[PlannedTurn, ...]


def draw(shape: FleetShape, seed: int) -> list[PlannedSession]:
    """The sessions of one fleet in order of arrival; equal seeds give equal fleets."""
    rng = random.Random(seed)  # noqa: S311 - repeatable, not secret
    lengths = [shape.lengths[i % len(shape.lengths)] for i in range(shape.num_sessions)]
    rng.shuffle(lengths)
    at = 0.0
    sessions = []
    for number, length in enumerate(lengths):
        if shape.arrival_rate_per_s is not None:
            at += rng.expovariate(shape.arrival_rate_per_s)
        prompt_tokens = shape.shared_tokens + shape.first_tokens
        turns = []
        for _ in range(length):
            output_tokens = rng.randint(*shape.output_tokens)
            turns.append(PlannedTurn(prompt_tokens, output_tokens, rng.uniform(*shape.gap_s)))
            prompt_tokens += output_tokens + shape.append_tokens
        sessions.append(PlannedSession(f"s{number}", "family", at, shape.shared_tokens, tuple(turns)))
    return sessions


# ---- the demo's agents

TIMEOUTS = Timeouts(connect_s=10.0, first_byte_s=600.0, idle_s=600.0)
CALL_FAILURES = (RuntimeError, UpstreamRefused, UpstreamCut)


class CallRefused(RuntimeError):
    """The answer has another status than 200."""

    def __init__(self, status: int, text: str, retry_after_s: float | None) -> None:
        super().__init__(text)
        self.status, self.retry_after_s = status, retry_after_s


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
    gate_s: float = 0.0
    """Its wait in the gateway's queue."""

    @property
    def ttft_s(self) -> float:
        """The gateway's queue included."""
        return self.first_token_at - self.wanted_at


@dataclass(slots=True)
class SessionRecord:
    id: str
    arrived_at: float
    turns: list[TurnRecord] = field(default_factory=list)
    failure: str | None = None
    """Why it did not run to its end."""

    @property
    def completion_s(self) -> float:
        return self.turns[-1].done_at - self.arrived_at


@lru_cache(maxsize=16)
def prose(name: str, num_chars: int) -> str:
    """Filler text of that length that depends on `name` alone."""
    rng = random.Random(name)  # noqa: S311 - filler text
    words = (rng.choice(_WORDS) + str(rng.randrange(10_000)) for _ in range(num_chars // 5))
    return " ".join(words)[:num_chars]


class ModelClient:
    """Streaming chat calls to one base URL on one connection pool; its clock starts with it."""

    def __init__(self, upstream: Upstream, base_url: str, model: str) -> None:
        self._upstream = upstream
        self._url = f"{base_url}/v1/chat/completions"
        self._model = model
        self._started_at = time.monotonic()
        self.chars_per_token = CHARS_PER_TOKEN
        """Of the texts of `prose`, by the engine's tokenizer."""

    async def warm_up(self) -> None:
        """Make the first call, which is cold and not measured. It shows how long the engine's tokens are."""
        record = TurnRecord(0, 0.0)
        await self.call([{"role": "user", "content": prose("calibration", CALIBRATION_CHARS)}], 4, record)
        if record.prompt_tokens:
            self.chars_per_token = CALIBRATION_CHARS / record.prompt_tokens

    def now(self) -> float:
        return time.monotonic() - self._started_at

    async def call(
        self,
        messages: Sequence[Mapping[str, str]],
        output_tokens: int,
        record: TurnRecord,
        headers: Sequence[tuple[str, str]] = (),
    ) -> str:
        """The answer, of exactly that many tokens; what happened is noted in the record."""
        body = {
            "model": self._model,
            "messages": messages,
            "max_tokens": output_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        all_headers = [("content-type", "application/json"), *headers]
        reply = await self._upstream.call("POST", self._url, all_headers, orjson.dumps(body), TIMEOUTS)
        if reply.status != 200:
            refusal = await reply.read(10_000)
            text = f"{self._url} answered {reply.status}: {refusal.decode(errors='replace')}"
            retry_after = reply.headers.get("retry-after", "")
            raise CallRefused(reply.status, text, float(retry_after) if retry_after.isdigit() else None)
        splitter, words = EventSplitter(), []
        queue_ms = float(reply.headers.get("x-turngate-queue-ms", "0"))
        record.gate_s = queue_ms / 1000
        async for chunk in reply.chunks():
            for event in splitter.feed(chunk):
                data = data_of(event)
                if data is not None and data != b"[DONE]":
                    words.append(self._read(orjson.loads(data), record, queue_ms))
        record.done_at = self.now()
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
            record.first_token_at = self.now()
        return str(words)


class Fleet:
    """Runs planned sessions; all send the same headers.

    `chars_per_token`: of its texts, by the engine's tokenizer. Then each prompt has the planned length by the
    engine's count, which has the tokens of the chat template. None: nearly as the embedded engine counts."""

    def __init__(
        self,
        model: ModelClient,
        on_turn: Callable[[], None],
        headers: Sequence[tuple[str, str]] = (),
        chars_per_token: float | None = None,
    ) -> None:
        self._model = model
        self._on_turn = on_turn
        self._headers = headers
        self._is_counted = chars_per_token is not None
        self._chars_per_token = chars_per_token or CHARS_PER_TOKEN

    async def run(self, sessions: Sequence[PlannedSession], within_s: float | None = None) -> list[SessionRecord]:
        """A session that fails, or is not done in time, says so in its record."""
        records = [SessionRecord(session.id, session.arrives_at) for session in sessions]
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s), asyncio.TaskGroup() as group:
                for session, record in zip(sessions, records, strict=True):
                    group.create_task(self._attend(session, record))
        return records

    async def _attend(self, session: PlannedSession, record: SessionRecord) -> None:
        try:
            await self._session(session, record)
        except CALL_FAILURES as error:
            record.failure = str(error) or type(error).__name__
        except asyncio.CancelledError:
            record.failure = "not done in time"
            raise

    async def _session(self, session: PlannedSession, record: SessionRecord) -> None:
        await asyncio.sleep(session.arrives_at)
        record.arrived_at = self._model.now()
        shared = self._text(session.family_id, session.shared_tokens)
        messages, known_tokens, surplus_tokens = [{"role": "system", "content": shared}], session.shared_tokens, 0
        for index, turn in enumerate(session.turns):
            if turn.prompt_tokens <= known_tokens:  # it was compacted
                messages, known_tokens, surplus_tokens = messages[:1], session.shared_tokens, 0
            text = self._text(f"{session.id} {index}", turn.prompt_tokens - known_tokens - surplus_tokens)
            messages.append({"role": "user", "content": text})
            record.turns.append(TurnRecord(index, self._model.now()))
            answer = await self._model.call(messages, turn.output_tokens, record.turns[-1], self._headers)
            messages.append({"role": "assistant", "content": answer})
            known_tokens = turn.prompt_tokens + turn.output_tokens
            if self._is_counted and (counted_tokens := record.turns[-1].prompt_tokens):
                surplus_tokens = counted_tokens - turn.prompt_tokens
            self._on_turn()
            if index + 1 < len(session.turns):
                await asyncio.sleep(turn.gap_s)

    def _text(self, name: str, num_tokens: int) -> str:
        return prose(name, round(self._chars_per_token * max(1, num_tokens)))


# ---- the figures: one row per arm, and the ratio of each to going straight


@dataclass(frozen=True, slots=True)
class Arm:
    """One run of the fleet."""

    name: str
    pool_tokens: int
    """0: that of an engine of the user's."""
    sessions: Sequence[SessionRecord]
    floor_tokens: int
    """Prompt tokens that every arm has to compute: each distinct one once."""

    @property
    def prompt_tokens(self) -> int:
        return sum(turn.prompt_tokens for session in self.sessions for turn in session.turns)

    @property
    def cached_tokens(self) -> int:
        return sum(turn.cached_tokens for session in self.sessions for turn in session.turns)

    @property
    def recomputed_tokens(self) -> int:
        """Prompt tokens that were computed although they had been computed before."""
        return max(0, self.prompt_tokens - self.cached_tokens - self.floor_tokens)

    @property
    def completions_s(self) -> list[float]:
        return [session.completion_s for session in self.sessions]

    @property
    def mean_s(self) -> float:
        return sum(self.completions_s) / len(self.sessions)

    @property
    def makespan_s(self) -> float:
        return max(turn.done_at for session in self.sessions for turn in session.turns)

    def ttft_p99_s(self, is_first: bool) -> float:
        """p99 time to first token of first turns, or of all later ones; the gateway's queue included."""
        return quantile(
            [turn.ttft_s for session in self.sessions for turn in session.turns if (turn.index == 0) is is_first],
            0.99,
        )


def quantile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


HEADER = (
    "KV pool",
    "arm",
    "recomputed tokens",
    "prefix hit",
    "mean session s",
    "p99 session s",
    "p99 TTFT s turn 1",
    "later turns",
    "makespan s",
)


def table(arms: Sequence[Arm]) -> str:
    """Arms in pairs of (straight, gateway), each pair followed by its ratios."""
    rows: list[tuple[str, ...]] = [HEADER]
    for straight, gateway in zip(arms[::2], arms[1::2], strict=True):
        rows += [_row(straight), _row(gateway), _ratios(straight, gateway)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADER))]
    lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:]])


def conclusions(arms: Sequence[Arm]) -> list[str]:
    """Return one sentence for each pair of (straight, gateway)."""
    return [_conclusion(straight, gateway) for straight, gateway in zip(arms[::2], arms[1::2], strict=True)]


NOISE = 0.02
"""Differences below it show nothing."""


def _conclusion(straight: Arm, gateway: Arm) -> str:
    pool = f"With a KV pool of {straight.pool_tokens:,} tokens" if straight.pool_tokens else "On this engine"
    if abs(gateway.mean_s / straight.mean_s - 1) < NOISE:
        return f"{pool} the gateway changes nothing: the mean session takes {gateway.mean_s:.1f} s either way."
    return (
        f"{pool} the mean session takes {gateway.mean_s:.1f} s through the gateway, and {straight.mean_s:.1f} s"
        f" without it; {gateway.recomputed_tokens:,} tokens are computed again, and"
        f" {straight.recomputed_tokens:,}."
    )


def _row(arm: Arm) -> tuple[str, ...]:
    return (
        f"{arm.pool_tokens:,}" if arm.pool_tokens else "its own",
        arm.name,
        f"{arm.recomputed_tokens:,}",
        f"{arm.cached_tokens / arm.prompt_tokens:.1%}",
        f"{arm.mean_s:.1f}",
        f"{quantile(arm.completions_s, 0.99):.1f}",
        f"{arm.ttft_p99_s(True):.1f}",
        f"{arm.ttft_p99_s(False):.2f}",
        f"{arm.makespan_s:.1f}",
    )


def _ratios(straight: Arm, gateway: Arm) -> tuple[str, ...]:
    def ratio(new: float, old: float) -> str:
        return f"{new / old:.2f}x" if old else "-"

    return (
        "",
        "ratio",
        ratio(gateway.recomputed_tokens, straight.recomputed_tokens),
        "",
        ratio(gateway.mean_s, straight.mean_s),
        ratio(quantile(gateway.completions_s, 0.99), quantile(straight.completions_s, 0.99)),
        ratio(gateway.ttft_p99_s(True), straight.ttft_p99_s(True)),
        ratio(gateway.ttft_p99_s(False), straight.ttft_p99_s(False)),
        ratio(gateway.makespan_s, straight.makespan_s),
    )
