"""Checks the outputs of agent runs against the schemas that tenants gave, in processes that are killed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gateway.batches import output_check
from gateway.core.fields import Json
from tool_runtime.killable import Killable, ProcessLost
from tool_runtime.places import Throttle, claim_of
from tool_runtime.types import Context, Limits

CHECK_S = 2.0
"""For one check, which takes a millisecond unless it is meant to do harm."""
AT_ONCE = 2
MEMORY_BYTES = 256 * 1024 * 1024


class NotChecked(Exception):
    """It cannot be said whether an output fits; the text says why."""


class Outputs:
    """A few checks at a time, and tenants in turn."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._processes = Killable(output_check.__file__, CHECK_S, MEMORY_BYTES, {})
        self._throttle = Throttle(Limits(concurrency=AT_ONCE, timeout_s=CHECK_S), clock)
        self.close = self._processes.close

    async def problem(self, tenant: str, schema: Json, value: Any) -> str | None:
        """What is wrong with an output. None: it fits. Raises NotChecked."""
        try:
            async with self._throttle.place(claim_of(Context(tenant))):
                kind, text = await self._processes.ask({"schema": schema, "value": value})
        except TimeoutError:
            raise NotChecked(f"to check the answer against the schema takes more than {CHECK_S:g} s") from None
        except ProcessLost as error:
            raise NotChecked(f"the answer was not checked against the schema: {error}") from None
        if kind == output_check.UNUSABLE:
            raise NotChecked(text)
        return None if kind == output_check.FITS else text
