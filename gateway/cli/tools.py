"""`turngate tools`: the configured tools, and a call of one of them without a model."""

from __future__ import annotations

import argparse
import asyncio
import sys
from contextlib import AsyncExitStack

from prometheus_client import CollectorRegistry

from gateway.cli import process
from gateway.config.settings import Settings, ToolSettings
from gateway.core.errors import ConfigError
from gateway.tools.wiring import OwnTools
from gateway.transport.aiohttp_upstream import AiohttpUpstream
from tool_runtime.types import Call, Context, Status

_CALLER = Context("command line")


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "action",
        nargs="?",
        default="list",
        choices=("list", "call"),
        help="list all tools (the default), or call one",
    )
    parser.add_argument("name", nargs="?", help="name of the tool to call")
    parser.add_argument(
        "arguments", nargs="?", default="{}", help="its arguments as a JSON object (default: %(default)s)"
    )


def run(arguments: argparse.Namespace, settings: Settings) -> int:
    if arguments.action == "call" and arguments.name is None:
        raise ConfigError('tools call: say which one, as in `turngate tools call search \'{"q": "a"}\'`')
    name = arguments.name if arguments.action == "call" else None
    return process.run_loop(_with_tools(settings.tools, name, arguments.arguments))


async def _with_tools(section: ToolSettings, name: str | None, arguments: str) -> int:
    """Start the tools; list them, or call the one of that name. Raises ConfigError."""
    async with AsyncExitStack() as running:
        upstream = AiohttpUpstream()
        running.push_async_callback(upstream.close)
        tools = OwnTools(section, upstream, CollectorRegistry(), asyncio.get_running_loop().time)
        running.push_async_callback(tools.stop)
        await tools.start()
        return _list(tools) if name is None else await _call(tools, name, arguments)


def _list(tools: OwnTools) -> int:
    """Print one line per tool; 1 when a server is not up or a tool is left out."""
    rows = tools.catalog.listing(("*",))
    for row in rows:
        summary = row["description"].partition("\n")[0]
        print(f"{row['name']}: {row['source']}, {row['mode']}, {row['effect']}. {summary}")
    if not rows:
        print("No tools are configured: list them under `tools` (docs/tools.md), and let `keys` use them.")
    problems = tools.problems()
    for problem in problems:
        print(f"turngate: {problem}", file=sys.stderr)
    return 1 if problems else 0


async def _call(tools: OwnTools, name: str, arguments: str) -> int:
    """Print the result as a model would read it; 1 unless all went well."""
    if name not in (known := sorted(tools.runtime.tools)):
        print(f"turngate: there is no tool {name!r}; there are: {', '.join(known) or 'none'}", file=sys.stderr)
        return 1
    result = await tools.runtime.run(Call("call_1", name, arguments), _CALLER)
    print(result.text)
    print(f"{result.status} in {result.seconds:.3f} s", file=sys.stderr)
    return 0 if result.status is Status.OK else 1
