"""The tools that come with batch-agent, by their names in 0.2.0; each is off until a batch lists it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import orjson

from batch_agent import environment, process
from batch_agent.errors import WorkerError
from tool_runtime.define import define
from tool_runtime.loading import load
from tool_runtime.types import Context, Json, Limits, Tool, ToolError

LOG = logging.getLogger(__name__)
NO_TIMEOUT_S = 24 * 3600.0
_ROOT = "work"


@dataclass(frozen=True)
class BuiltIn:
    """Made when a batch uses it, since what it needs is looked for then."""

    name: str
    make: Callable[[], Tool]

    def as_tool(self, timeout_s: float | None) -> Tool | None:
        """None, and a warning, where something that it needs is missing: a key, a sandbox."""
        try:
            tool = self.make()
        except ValueError as error:
            LOG.warning("the tool %s is left out: %s", self.name, error)
            return None
        return replace(tool, limits=replace(tool.limits, timeout_s=timeout_s or NO_TIMEOUT_S))


def _loaded(name: str, settings: Mapping[str, Any]) -> Tool:
    (tool,) = load(name, settings)
    return tool


def _read_file() -> Tool:
    """Of the working directory, by paths as people write them: relative to it, or absolute and inside."""
    tool, here = _loaded("read_file", {"roots": {_ROOT: "."}}), Path.cwd()
    assert tool.run is not None
    run_below_root = tool.run

    async def run(arguments: Json, context: Context) -> object:
        path = Path(arguments["path"])
        inside = path.relative_to(here) if path.is_relative_to(here) else path
        if inside.is_absolute():
            raise ToolError(f"{path} is outside of the working directory")
        return await run_below_root({**arguments, "path": f"{_ROOT}/{inside}"}, context)

    return replace(tool, run=run, description="Read a text file. Paths are relative to the working directory.")


def _web_search() -> Tool:
    settings = environment.search_provider()
    if settings is None:
        raise ValueError("set BRAVE_SEARCH_API_KEY, TAVILY_API_KEY or SEARXNG_URL")
    return _loaded("web_search", settings)


async def claude_code(task: str) -> str:
    """Let Claude Code work on a task in the working directory, within the permissions that it has there."""
    lines: list[bytes] = []
    command = ["claude", "--print", "--output-format", "json"]
    try:
        await process.run(command, task.encode(), Path.cwd(), environment.inherited(), lines.append)
    except WorkerError as error:
        raise ToolError(str(error)) from None
    said = b"".join(lines)
    try:
        return str(orjson.loads(said)["result"])
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return said.decode(errors="replace")


TOOLS = {
    tool.name: tool
    for tool in (
        BuiltIn("read_file", _read_file),
        BuiltIn("http_get", lambda: _loaded("http_get", {"hosts": ["*"]})),
        BuiltIn("web_search", _web_search),
        BuiltIn("python_eval", lambda: _loaded("python_eval", {})),
        BuiltIn("claude_code", lambda: define(claude_code, limits=Limits())),
    )
}
