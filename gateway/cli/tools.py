"""`turngate tools`: what the configured tools are, and one call of one of them, without a model."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack

from prometheus_client import CollectorRegistry

from gateway.config.settings import ToolSettings
from gateway.tools.wiring import OwnTools
from gateway.transport.aiohttp_upstream import AiohttpUpstream
from tool_runtime.types import Call, Context, Status

_CALLER = Context("command line")


async def listed(section: ToolSettings) -> int:
    """One line per tool; 1 when a server is not up or a tool is left out."""
    return await _with(section, _list)


async def called(section: ToolSettings, name: str, arguments: str) -> int:
    """The result of a call, as a model would read it; 1 unless all went well."""

    async def call(tools: OwnTools) -> int:
        if name not in (known := sorted(tools.runtime.tools)):
            print(f"turngate: there is no tool {name!r}; there are: {', '.join(known) or 'none'}", file=sys.stderr)
            return 1
        result = await tools.runtime.run(Call("call_1", name, arguments), _CALLER)
        print(result.text)
        print(f"{result.status} in {result.seconds:.3f} s", file=sys.stderr)
        return 0 if result.status is Status.OK else 1

    return await _with(section, call)


async def _list(tools: OwnTools) -> int:
    rows = tools.toolbox.listing(("*",))
    for row in rows:
        summary = row["description"].partition("\n")[0]
        print(f"{row['name']}: {row['source']}, {row['mode']}, {row['effect']}. {summary}")
    if not rows:
        print("No tools are configured: list them under `tools` (docs/tools.md), and let `keys` use them.")
    problems = tools.problems()
    for problem in problems:
        print(f"turngate: {problem}", file=sys.stderr)
    return 1 if problems else 0


async def _with(section: ToolSettings, work: Callable[[OwnTools], Awaitable[int]]) -> int:
    """Raises ConfigError."""
    async with AsyncExitStack() as running:
        upstream = AiohttpUpstream()
        running.push_async_callback(upstream.close)
        tools = OwnTools(section, upstream, CollectorRegistry(), asyncio.get_running_loop().time)
        running.push_async_callback(tools.close)
        await tools.start()
        return await work(tools)
