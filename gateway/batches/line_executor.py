"""Asks for one line on the gateway's own path, as a turn of a low class, until its answer stands."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from gateway.access.keys import Caller, Keys
from gateway.batches.concurrency_limiter import Window
from gateway.batches.objects import Batch, Line
from gateway.core.transport import Handler, HeaderList
from gateway.request.inprocess import InProcessResponder, ask
from gateway.request.retries import again_in_s

TENANT, URGENCY, KEY = "x-turngate-tenant", "x-turngate-urgency", "x-turngate-key"


class LineKeys(Keys):
    """Who asks is what the request says: only the gateway itself can make one that this reads. Models and budgets
    are those of the key that made the batch, while there is one of that name."""

    def __init__(self, keys: Keys) -> None:
        super().__init__({})
        self._keys = keys

    def at_once(self, headers: Mapping[str, str]) -> Caller:
        tenant = headers[TENANT]
        salt = self._keys.salt_of(tenant)
        caller = Caller(tenant, may_prioritise=False, urgency=int(headers[URGENCY]), cache_salt=salt)
        made_by = self._keys.named(headers[KEY])
        if made_by is None:
            return caller
        budgets = made_by.limits.budgets() if made_by.limits is not None else None
        return replace(caller, id=made_by.id, models=made_by.models, limits=budgets)


@dataclass(frozen=True, slots=True)
class LineExecutor:
    """`path` is the gateway's own, with LineKeys."""

    path: Handler
    window: Window
    attempts: int
    retried: Callable[[], None]
    """Told of each attempt after the first."""
    chance: Callable[[], float] = field(default=random.random)

    async def answer(
        self, batch: Batch, line: Line, url: str, body: bytes, more: HeaderList
    ) -> InProcessResponder:
        """The answer that stands. Waits for a place, and between attempts without one; ends with its task."""
        num_failures = 0
        while True:
            async with self.window.place(batch.tenant) as urgency:
                headers = [
                    (TENANT, batch.tenant),
                    (URGENCY, str(urgency)),
                    (KEY, batch.key_id),
                    ("x-turngate-session", f"{batch.id}/{line.number}"),
                    ("content-type", "application/json"),
                    *more,
                ]
                reply = await ask(self.path, url, headers, body)
            num_failures += 1
            wait_s = again_in_s(reply.status, reply.headers, num_failures, self.attempts, self.chance())
            if wait_s is None:
                return reply
            self.retried()
            await asyncio.sleep(wait_s)
