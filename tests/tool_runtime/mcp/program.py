"""An MCP server made with the official SDK, with the faults that tests ask for: `python program.py [options]`.

Over standard input and output, or with `--port` over HTTP; then it prints its port when it is ready.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import uvicorn
from mcp.server import Server
from mcp.server.context import ServerRequestContext
from mcp.server.stdio import stdio_server
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler, ToolsListChanged
from mcp_types import (
    CallToolRequestParams,
    CallToolResult,
    ListToolsResult,
    PaginatedRequestParams,
    TextContent,
    Tool,
    ToolAnnotations,
)

READ_ONLY = ToolAnnotations(read_only_hint=True)
CHANGES = InMemorySubscriptionBus()
HANGING = {"begun": asyncio.Event(), "cancelled": asyncio.Event()}
"""What has happened to a call of `hang`."""


def tool(name: str, hints: ToolAnnotations | None = None, **properties: dict[str, Any]) -> Tool:
    schema = {"type": "object", "properties": properties}
    return Tool(name=name, description=f"{name}.", input_schema=schema, annotations=hints)


TOOLS = [
    tool("add", READ_ONLY, a={"type": "integer"}, b={"type": "integer"}),
    tool("big", READ_ONLY, num_bytes={"type": "integer"}),
    tool("environment", READ_ONLY),
    tool("fail", READ_ONLY),
    tool("grow", ToolAnnotations(idempotent_hint=True)),
    tool("hang", READ_ONLY),
    tool("hang_and_write"),
    tool("crash"),
    tool("crash_reading", READ_ONLY),
    tool("wait_until", READ_ONLY, what={"enum": [*HANGING]}),
    tool("not_a_schema", READ_ONLY, a={"type": "no such type"}),
    tool("foreign_schema", READ_ONLY, a={"$ref": "https://example.com/schema.json"}),
]


async def list_tools(context: ServerRequestContext[Any], params: PaginatedRequestParams | None) -> ListToolsResult:
    """In two pages."""
    if params is None or params.cursor is None:
        return ListToolsResult(tools=TOOLS[:4], next_cursor="rest")
    return ListToolsResult(tools=TOOLS[4:])


async def call_tool(context: ServerRequestContext[Any], params: CallToolRequestParams) -> CallToolResult:
    given = params.arguments or {}
    match params.name:
        case "add":
            return said(str(given["a"] + given["b"]))
        case "big":
            return said("x" * given["num_bytes"])
        case "environment":
            return said(" ".join(sorted(os.environ)))
        case "fail":
            return CallToolResult(content=[TextContent(type="text", text="it failed")], is_error=True)
        case "grow":
            TOOLS.append(tool("late", READ_ONLY))
            await CHANGES.publish(ToolsListChanged())
        case "hang" | "hang_and_write":
            await hang()
        case "crash" | "crash_reading":
            print("the last words", file=sys.stderr, flush=True)
            os._exit(3)
        case "wait_until":
            await HANGING[given["what"]].wait()
    return said(f"done: {params.name}")


async def hang() -> None:
    HANGING["begun"].set()
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        HANGING["cancelled"].set()
        raise


def said(text: str) -> CallToolResult:
    return CallToolResult(content=[TextContent(type="text", text=text)])


class HttpServer(uvicorn.Server):
    """Says its port when it is ready."""

    async def startup(self, sockets: Any = None) -> None:
        await super().startup(sockets)
        print(self.servers[0].sockets[0].getsockname()[1], flush=True)


async def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--port", type=int)
    options.add_argument("--slow-s", type=float, default=0.0, help="before it answers anything")
    options.add_argument("--child", type=Path, help="start a child, and write its process id there")
    given = options.parse_args()
    if given.child:
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        given.child.write_text(str(child.pid))
    time.sleep(given.slow_s)
    listening = ListenHandler(CHANGES)
    server = Server("program", on_list_tools=list_tools, on_call_tool=call_tool, on_subscriptions_listen=listening)
    if given.port is not None:
        await HttpServer(uvicorn.Config(server.streamable_http_app(), port=given.port, log_level="error")).serve()
        return
    print("a line that is no message", flush=True)
    async with stdio_server() as (incoming, outgoing):
        await server.run(incoming, outgoing, server.create_initialization_options())


if __name__ == "__main__":
    asyncio.run(main())
