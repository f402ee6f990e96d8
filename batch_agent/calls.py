"""Model calls: a bound on how many run at once, and when a failed one is sent again."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from batch_agent.connection import Connection, json_object
from batch_agent.errors import AgentFailed, ConnectError, HTTPStatusError, OutageError
from batch_agent.outage import Outage, is_no_answer
from batch_agent.replies import Json, Reply, events_of, joined, reply_of
from batch_agent.slots import Slots

PATIENCE_S = 3600.0
"""How long one call waits in all where it is told to come back later; that is no failure until then."""
LONGEST_PAUSE_S = 30.0
"""Between two tries where nobody says how long."""
_MOST_MS = 999_999_999
"""The gateway reads nine digits."""

T = TypeVar("T")


@dataclass(slots=True)
class _Sending:
    """One request, until it is answered."""

    given: Mapping[str, str]
    num_sent: int = 0
    lost_at: float | None = None
    """When the first one was sent that may have been begun and whose answer was lost."""

    def headers(self, now: float) -> Mapping[str, str]:
        """Of the next one. What a gateway has begun and lost, a call of a tool, is not to be begun again."""
        headers = dict(self.given)
        if self.num_sent:
            headers["x-stainless-retry-count"] = str(self.num_sent)
        if self.lost_at is not None:
            headers["X-Turngate-Lost-Ms"] = str(min(math.ceil(1000 * (now - self.lost_at)), _MOST_MS))
        self.num_sent += 1
        return headers


class ModelCalls:
    """All calls of one batch."""

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
        """`timeout_s`: of each request, not of the pauses between them. `outage` None: none is waited out."""
        self._connection = connection
        self._outage = outage or Outage(0)
        self._timeout_s = timeout_s
        self.slots = slots
        self._max_retries = max_retries
        self._sleep = sleep
        self._rng = rng or random.Random()  # noqa: S311 - spreads retries
        self._asks_for_streams = False
        """An earlier answer took longer than a plain one may; a stream is kept alive."""

    def chat(
        self,
        body: Json,
        headers: Mapping[str, str],
        remaining_turns: int = 0,
        on_retry: Callable[[], None] = lambda: None,
    ) -> Awaitable[Reply]:
        """One answer; a slot is held only while a request runs, or an outage lasts. Raises AgentFailed,
        TimeoutError."""
        return self._until_answered(self._chat, body, headers, remaining_turns, on_retry)

    def post(self, path: str, body: Json, headers: Mapping[str, str]) -> Awaitable[Json]:
        """The answer to anything else. Raises AgentFailed, TimeoutError."""

        async def ask(body: Json, headers: Mapping[str, str]) -> Json:
            return json_object((await self._connection.post(path, body, headers))[0])

        return self._until_answered(ask, body, headers, 0, lambda: None)

    async def _chat(self, body: Json, headers: Mapping[str, str]) -> Reply:
        if self._asks_for_streams:
            body = body | {"stream": True, "stream_options": {"include_usage": True}}
            raw, told = await self._connection.post("/chat/completions", body, headers)
            answer = joined(events_of(raw))
        else:
            raw, told = await self._connection.post("/chat/completions", body, headers)
            answer = json_object(raw)
        return reply_of(answer, float(told.get("X-Turngate-Queue-Ms") or 0) / 1000)

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
                told_s = None
                num_failures += 1
                if num_failures > self._max_retries:
                    raise TimeoutError(f"no answer within {self._timeout_s:g} s (timeout_per_turn)") from None
            except OutageError:
                raise
            except AgentFailed as error:
                told_s = error.retry_after_s if isinstance(error, HTTPStatusError) else None
                num_failures += told_s is None or waited_s >= PATIENCE_S
                if not error.retryable or num_failures > self._max_retries:
                    raise
                self._asks_for_streams |= isinstance(error, HTTPStatusError) and error.status == 504
            finally:
                self.slots.give()
            pause_s = self._pause_s(told_s, num_failures)
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

    def _pause_s(self, told_s: float | None, num_failures: int) -> float:
        """As told and a little more, so that those who were told the same do not come back as one."""
        if told_s is not None:
            return min(told_s, PATIENCE_S) * self._rng.uniform(1.0, 1.2)
        return self._rng.uniform(0.5, 1.0) * min(LONGEST_PAUSE_S, 2.0 ** (num_failures - 1))
