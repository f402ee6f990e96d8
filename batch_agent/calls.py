"""Model calls: a bound on their number, the rules for sending one again, and the answers that they get."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from heapq import heappop, heappush
from itertools import count
from typing import Any, TypeVar

import orjson

from batch_agent.connection import Connection, error_text, json_object
from batch_agent.outage import Outage, is_no_answer
from batch_agent.results import AgentFailed, BadAnswer, ConnectError, HTTPStatusError, OutageError, Usage
from tool_runtime.agent_loop import TEXTS, BadCompletion, Message, message_of
from tool_runtime.types import Json

ENOUGH = 1024
"""More calls than a handful of engines run at once. Agents that wait in this process take no memory there."""
_KEPT = 64
"""Open files that are left for everything but connections."""
_PER_CALL = 3
"""Open files of a call. A gateway in this process has two: the other end, and the connection to the engine."""


def default_calls() -> int:
    """Return as many calls as the limit on open files leaves room for, at most `ENOUGH`."""
    try:
        import resource
    except ImportError:  # not a POSIX system
        return ENOUGH // 2
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return ENOUGH
    return max(16, min(ENOUGH, (soft - _KEPT) // _PER_CALL))


class Slots:
    """A bound on model calls at once. A free slot goes to the agent with the fewest turns to come."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []
        self._order = count()
        self._room = asyncio.Event()
        self._room.set()

    async def room(self) -> int:
        """Wait for free slots that no agent waits for, and return their number."""
        while self.used >= self.limit:  # the free slot may be taken again before this wakes
            await self._room.wait()
        return self.limit - self.used

    async def take(self, remaining_turns: int) -> None:
        """Wait for a slot. `give` gives it back."""
        if self.used < self.limit:
            self.used += 1
            self._note()
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heappush(self._waiting, (remaining_turns, next(self._order), turn))
        self._note()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.give()  # granted and cancelled in the same moment
            raise

    def give(self) -> None:
        while self._waiting:
            turn = heappop(self._waiting)[2]
            if not turn.done():
                turn.set_result(None)
                return
        self.used -= 1
        self._note()

    def _note(self) -> None:
        if self.used < self.limit:
            self._room.set()
        else:
            self._room.clear()


# ---- model calls, sent again when a failure may pass

PATIENCE_S = 3600.0
"""Total time that a call waits as `Retry-After` says. Until then waiting is no failure."""
LONGEST_PAUSE_S = 30.0
"""Longest pause between two attempts without a `Retry-After`."""
_MOST_MS = 999_999_999
"""The gateway reads nine digits."""

T = TypeVar("T")


@dataclass(slots=True)
class _Sending:
    """One request, until it is answered."""

    given: Mapping[str, str]
    num_sent: int = 0
    lost_at: float | None = None
    """When the first attempt was sent that the gateway may have begun, and whose answer was lost."""

    def headers(self, now: float) -> Mapping[str, str]:
        """Return the headers of the next attempt. They keep the gateway from repeating a tool call."""
        headers = dict(self.given)
        if self.num_sent:
            headers["x-stainless-retry-count"] = str(self.num_sent)
        if self.lost_at is not None:
            headers["X-Turngate-Lost-Ms"] = str(min(math.ceil(1000 * (now - self.lost_at)), _MOST_MS))
        self.num_sent += 1
        return headers


class ModelCalls:
    """The model calls of one batch."""

    def __init__(
        self,
        connection: Connection,
        slots: Slots,
        max_retries: int = 3,
        timeout_s: float | None = None,
        *,
        outage: Outage | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        rng: random.Random | None = None,
    ) -> None:
        """`timeout_s` bounds each request, but no pause between two. `outage` None: no outage is waited out."""
        self._connection = connection
        self._outage = outage or Outage(0)
        self._timeout_s = timeout_s
        self.slots = slots
        self._max_retries = max_retries
        self._sleep = sleep
        self._rng = rng or random.Random()  # noqa: S311 - spreads retries
        self._asks_for_streams = False
        """Whether an earlier answer took longer than a plain answer may. A stream is kept alive."""

    def chat(
        self,
        body: Json,
        headers: Mapping[str, str],
        remaining_turns: int = 0,
        on_retry: Callable[[], None] = lambda: None,
    ) -> Awaitable[Reply]:
        """Get one answer. Holds a slot only while a request runs or an outage lasts. Raises AgentFailed,
        TimeoutError."""
        return self._until_answered(self._chat, body, headers, remaining_turns, on_retry)

    def post(self, path: str, body: Json, headers: Mapping[str, str]) -> Awaitable[Json]:
        """Get the answer of another endpoint. Raises AgentFailed, TimeoutError."""

        async def ask(body: Json, headers: Mapping[str, str]) -> Json:
            return json_object((await self._connection.post(path, body, headers))[0])

        return self._until_answered(ask, body, headers, 0, lambda: None)

    async def _chat(self, body: Json, headers: Mapping[str, str]) -> Reply:
        if self._asks_for_streams:
            body = body | {"stream": True, "stream_options": {"include_usage": True}}
            raw, received = await self._connection.post("/chat/completions", body, headers)
            answer = joined(events_of(raw))
        else:
            raw, received = await self._connection.post("/chat/completions", body, headers)
            answer = json_object(raw)
        queued_s = float(received.get("X-Turngate-Queue-Ms") or 0) / 1000
        return replace(reply_of(answer, queued_s), receipt=received.get("X-Turngate-Receipt") or "")

    async def _until_answered(
        self,
        ask: Callable[[Json, Mapping[str, str]], Awaitable[T]],
        body: Json,
        headers: Mapping[str, str],
        remaining_turns: int,
        on_retry: Callable[[], None],
    ) -> T:
        sending = _Sending(headers)
        once = partial(self._once, ask, body, sending)
        num_failures, waited_s = 0, 0.0
        while True:
            await self.slots.take(remaining_turns)
            try:
                return await self._outage.through(once, self._connection.problem)
            except TimeoutError:
                retry_after_s = None
                num_failures += 1
                if num_failures > self._max_retries:
                    raise TimeoutError(f"no answer within {self._timeout_s:g} s (timeout_per_turn)") from None
            except OutageError:
                raise
            except AgentFailed as error:
                retry_after_s = error.retry_after_s if isinstance(error, HTTPStatusError) else None
                num_failures += retry_after_s is None or waited_s >= PATIENCE_S
                if not error.retryable or num_failures > self._max_retries:
                    raise
                self._asks_for_streams |= isinstance(error, HTTPStatusError) and error.status == 504
            finally:
                self.slots.give()
            pause_s = self._pause_s(retry_after_s, num_failures)
            waited_s += pause_s
            on_retry()
            await self._sleep(pause_s)

    async def _once(
        self, ask: Callable[[Json, Mapping[str, str]], Awaitable[T]], body: Json, sending: _Sending
    ) -> T:
        sent_at = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(self._timeout_s):
                return await ask(body, sending.headers(sent_at))
        except (AgentFailed, TimeoutError) as error:
            if is_no_answer(error) and not (isinstance(error, ConnectError) and not error.was_sent):
                sending.lost_at = sent_at if sending.lost_at is None else sending.lost_at
            raise

    def _pause_s(self, retry_after_s: float | None, num_failures: int) -> float:
        """Add a little to `Retry-After`, so that calls with the same `Retry-After` do not return as one."""
        if retry_after_s is not None:
            return min(retry_after_s, PATIENCE_S) * self._rng.uniform(1.0, 1.2)
        return self._rng.uniform(0.5, 1.0) * min(LONGEST_PAUSE_S, 2.0 ** (num_failures - 1))


# ---- reads chat completions, whole or streamed


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer of the model."""

    message: Message
    """The answer as the history repeats it."""
    finish_reason: str
    usage: Usage
    queued_s: float = 0.0
    receipt: str = ""
    """Id of its receipt at the gateway."""


def reply_of(body: Json, queued_s: float = 0.0) -> Reply:
    """Raises BadAnswer."""
    try:
        message = message_of(body)
    except BadCompletion:
        raise BadAnswer(f"the gateway answered what is no chat completion: {str(body)[:300]}") from None
    return Reply(message, body["choices"][0].get("finish_reason") or "", usage_of(body), queued_s)


def usage_of(body: Json) -> Usage:
    usage = body.get("usage") or {}
    details = usage.get("prompt_tokens_details") or {}
    return Usage(
        usage.get("prompt_tokens") or 0, details.get("cached_tokens") or 0, usage.get("completion_tokens") or 0
    )


def events_of(stream: bytes) -> Iterator[bytes]:
    """Yield the data of each event of a whole stream, except [DONE]."""
    for line in stream.splitlines():
        if line.startswith(b"data:") and (data := line[5:].strip()) != b"[DONE]":
            yield data


def joined(events: Iterable[bytes]) -> Json:
    """Make a plain completion of a streamed one.

    Raises ConnectError if the end is missing, and HTTPStatusError for an event with an error.
    """
    texts: dict[str, list[str]] = {}
    calls: dict[int, _StreamedCall] = {}
    finish_reason, usage = None, None
    for event in map(orjson.loads, events):
        if "error" in event:
            is_wrong = isinstance(event["error"], dict) and event["error"].get("type") == "invalid_request_error"
            raise HTTPStatusError(400 if is_wrong else 502, error_text(event), retryable=not is_wrong)
        usage = event.get("usage") or usage
        for choice in event.get("choices") or ():
            finish_reason = choice.get("finish_reason") or finish_reason
            delta = choice.get("delta") or {}
            for key in TEXTS:
                if delta.get(key):
                    texts.setdefault(key, []).append(delta[key])
            for part in delta.get("tool_calls") or ():
                calls.setdefault(part.get("index", 0), _StreamedCall()).feed(part)
    if finish_reason is None:
        raise ConnectError("the stream ended before the answer did")
    message: Message = {"role": "assistant"} | {key: "".join(pieces) for key, pieces in texts.items()}
    if calls:
        message["tool_calls"] = [calls[index].whole() for index in sorted(calls)]
    return {"choices": [{"message": message, "finish_reason": finish_reason}], "usage": usage}


@dataclass(slots=True)
class _StreamedCall:
    """The pieces of one tool call."""

    id: Any = None
    names: list[str] = field(default_factory=list)
    arguments: list[str] = field(default_factory=list)

    def feed(self, part: Json) -> None:
        self.id = part.get("id") or self.id
        function = part.get("function") or {}
        self.names.append(function.get("name") or "")
        self.arguments.append(function.get("arguments") or "")

    def whole(self) -> Json:
        return {"function": {"name": "".join(self.names), "arguments": "".join(self.arguments)}, "id": self.id}
