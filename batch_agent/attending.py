"""Bounds an agent's time, and makes a value of whatever ends it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

from batch_agent.budget import Budget
from batch_agent.errors import BudgetError


async def outcome(
    work: Awaitable[Any], timeout_s: float | None, budget: Budget
) -> tuple[Any, None] | tuple[None, Exception]:
    """What `work` gives, or why it gives nothing. Raises CancelledError only."""
    own_end = None if timeout_s is None else asyncio.get_running_loop().time() + timeout_s
    end = min((end for end in (own_end, budget.ends_at) if end is not None), default=None)
    try:
        async with asyncio.timeout_at(end) as time:
            return await work, None
    except TimeoutError as error:
        if not time.expired():
            return None, error
        if end == own_end:
            return None, TimeoutError(f"no result within {timeout_s:g} s (timeout_per_agent)")
        return None, BudgetError("the time of the batch is over (budget_s)")
    except Exception as error:  # one agent's failure, whatever it is, is not the batch's
        return None, error
