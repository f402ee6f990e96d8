"""A tool for the gateway of a soak: it takes a moment, and fails at times."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from typing import Any

from tool_runtime.types import Context, Effect, Json, Tool


def build(settings: Mapping[str, Any]) -> list[Tool]:
    """As configuration loads it."""

    async def run(arguments: Json, context: Context) -> str:
        await asyncio.sleep(random.uniform(0, 0.3))
        if random.random() < 0.1:
            raise RuntimeError("it broke")
        return "found"

    schema = {"type": "object", "properties": {"q": {"type": "string"}}}
    return [Tool(name="look_up", description="Looks it up.", parameters=schema, run=run, effect=Effect.READ_ONLY)]
