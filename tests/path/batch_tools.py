"""Tools of the gateway for agent runs in tests; each call is written down."""

from __future__ import annotations

import asyncio
from typing import Any

from tool_runtime.types import Context, Effect, Tool

CALLS: list[tuple[str, Any]] = []
HOLDS = asyncio.Event()
"""While it is set, `slow` does not return."""


async def _look(arguments: dict[str, Any], context: Context) -> str:
    CALLS.append(("look", arguments))
    return f"seen {arguments['key']}"


async def _order(arguments: dict[str, Any], context: Context) -> str:
    CALLS.append(("order", arguments))
    while HOLDS.is_set():
        await asyncio.sleep(0.01)
    return "ordered"


_KEY = {"type": "object", "properties": {"key": {"type": "string"}}, "required": ["key"]}
look = Tool(name="look", description="Look.", parameters=_KEY, run=_look, effect=Effect.READ_ONLY)
order = Tool(name="order", description="Order.", parameters=_KEY, run=_order)
