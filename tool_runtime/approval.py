"""Asks whether a call may run. Without a clear yes it may not."""

from __future__ import annotations

import asyncio
import logging

from tool_runtime.types import Approve, Context, Json, Tool, Verdict

LOG = logging.getLogger(__name__)

MOST_S = 600.0
"""Longest wait for a verdict."""


async def verdict_on(
    approve: Approve | None, tool: Tool, arguments: Json, context: Context, timeout_s: float
) -> Verdict:
    """Never raises: who cannot be asked has not approved."""
    if approve is None:
        return Verdict(False, "it needs approval, and nobody here can give it")
    try:
        async with asyncio.timeout(min(timeout_s, MOST_S)):
            return await approve(tool, arguments, context)
    except TimeoutError:
        return Verdict(False, "it needs approval, and none came in time")
    except Exception as error:
        LOG.warning("asking for approval of tool %s failed: %s", tool.name, type(error).__name__)
        return Verdict(False, "it needs approval, and asking for it failed")
