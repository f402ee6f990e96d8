"""Tools of a batch: Python functions that run in this process for all its agents, and built-in tools by name.

Names are those of batch-agent 0.2.0. An agent can call the tools that its batch lists, and no others.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, TypeAlias, overload

import orjson

from batch_agent import environment, process
from batch_agent.results import WorkerError
from tool_runtime.define import define
from tool_runtime.loading import load
from tool_runtime.types import Context, Effect, Json, Limits, ToolError
from tool_runtime.types import Tool as RuntimeTool

__all__ = ["Tool", "ToolDefinition", "ToolError", "runtime_tools"]

LOG = logging.getLogger(__name__)
NO_TIMEOUT_S = 24 * 3600.0
_ROOT = "work"
Function: TypeAlias = Callable[..., Any]
BatchHandler: TypeAlias = Callable[[list[Any]], Awaitable[Iterable[Any]]]

_BYTES_PER_TOKEN = 4
_TTL_S = 60.0
_NOT_TOOLS = ("define", "batchable", "registry")
"""Attributes of `Tool` that are no tools."""
_WINDOW_S = 0.005
"""Calls of a batchable tool within this time become one."""


@dataclass(frozen=True)
class BuiltIn:
    """A built-in tool. `make` runs when a batch uses the tool, and looks for a key or a sandbox then."""

    name: str
    make: Callable[[], RuntimeTool]

    def as_tool(self, timeout_s: float | None) -> RuntimeTool | None:
        """Make the tool. None, and a warning: something that the tool needs is missing."""
        try:
            tool = self.make()
        except ValueError as error:
            LOG.warning("the tool %s is left out: %s", self.name, error)
            return None
        return replace(tool, limits=replace(tool.limits, timeout_s=timeout_s or NO_TIMEOUT_S))


def _loaded(name: str, settings: Mapping[str, Any]) -> RuntimeTool:
    (tool,) = load(name, settings)
    return tool


def _read_file() -> RuntimeTool:
    """Read files of the working directory, by relative paths, or by absolute paths that lie inside."""
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


def _web_search() -> RuntimeTool:
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


BUILT_IN = {
    tool.name: tool
    for tool in (
        BuiltIn("read_file", _read_file),
        BuiltIn("http_get", lambda: _loaded("http_get", {"hosts": ["*"]})),
        BuiltIn("web_search", _web_search),
        BuiltIn("python_eval", lambda: _loaded("python_eval", {})),
        BuiltIn("claude_code", lambda: define(claude_code, limits=Limits())),
    )
}


# ---- tools of the user


@dataclass(unsafe_hash=True)
class ToolDefinition:
    """A tool of the user, as `Tool.define` describes it. It stays as it is, but for `_batch_handler`."""

    name: str
    func: Function
    max_tokens: int = 2000
    cacheable: bool = True
    rate_limit: float | None = None
    key_arg: str | None = None
    batch_query: str | None = None
    cache_key_func: Callable[[dict[str, Any]], str] | None = None

    @property
    def _batch_handler(self) -> BatchHandler | None:
        """Of its function, so that it can be set on either: `define` has put this in the place of the function."""
        return getattr(self.func, "_batch_handler", None)

    @_batch_handler.setter
    def _batch_handler(self, handler: BatchHandler) -> None:
        self.func._batch_handler = handler  # type: ignore[attr-defined]

    def as_tool(self, timeout_s: float | None) -> RuntimeTool:
        """Make the tool for the runtime of one batch. Raises TypeError for parameters that no model can write."""
        limits = Limits(
            timeout_s=timeout_s or NO_TIMEOUT_S,
            rate_per_s=self.rate_limit,
            max_result_bytes=self.max_tokens * _BYTES_PER_TOKEN,
            ttl_s=_TTL_S if self.cacheable else 0.0,
        )
        tool = define(
            self.func,
            name=self.name,
            description=(inspect.getdoc(self.func) or f"Tool: {self.name}").strip(),
            effect=Effect.READ_ONLY if self.cacheable else Effect.DESTRUCTIVE,
            limits=limits,
            key=self.cache_key_func,
        )
        handler = self._batch_handler
        if self.key_arg is None or handler is None:
            return tool
        return replace(tool, run_many=_Grouped(tool, self.key_arg, handler), batch_window_s=_WINDOW_S)


class Tool:
    """`@Tool.define` makes a tool of a function. `Tool.registry` and `Tool.<name>` find it.

    Agents can call the tools that their batch lists in `tools`, and no others.
    """

    registry: ClassVar[dict[str, Any]] = dict(BUILT_IN)
    read_file = BUILT_IN["read_file"]
    http_get = BUILT_IN["http_get"]
    web_search = BUILT_IN["web_search"]
    python_eval = BUILT_IN["python_eval"]
    claude_code = BUILT_IN["claude_code"]

    @overload
    @classmethod
    def define(cls, func: Function, /) -> ToolDefinition: ...

    @overload
    @classmethod
    def define(
        cls,
        func: None = None,
        *,
        name: str | None = None,
        max_tokens: int = 2000,
        cacheable: bool = True,
        rate_limit: float | None = None,
        cache_key_func: Callable[[dict[str, Any]], str] | None = None,
    ) -> Callable[[Function], ToolDefinition]: ...

    @classmethod
    def define(cls, func: Function | None = None, *, name: str | None = None, **options: Any) -> Any:
        """Make a tool of a function.

        `cacheable`: a call changes nothing, so equal calls of all agents run once in 60 s. With False each call
        runs, exactly once. `rate_limit`: calls per second.
        """

        def make(function: Function) -> ToolDefinition:
            definition = ToolDefinition(
                name=name or function.__name__,
                func=function,
                key_arg=getattr(function, "_batch_key_arg", None),
                batch_query=getattr(function, "_batch_query", None),
                **options,
            )
            cls.registry[definition.name] = definition
            if definition.name not in _NOT_TOOLS:
                setattr(cls, definition.name, definition)
            return definition

        return make if func is None else make(func)

    @staticmethod
    def batchable(*, key_arg: str, batch_query: str) -> Callable[[Function], Function]:
        """Mark a function, under `define`, whose calls may become one.

        Calls that differ in `key_arg` alone become `func._batch_handler(keys)`, which returns the results in the
        order of the keys. Without such a handler each call runs by itself.
        """

        def mark(function: Any) -> Function:
            function._batch_key_arg, function._batch_query = key_arg, batch_query
            marked: Function = function
            return marked

        return mark


class _Grouped:
    """Runs several calls as one call of the handler. Single calls and those with further arguments run alone."""

    def __init__(self, tool: RuntimeTool, key_arg: str, handler: BatchHandler) -> None:
        assert tool.run is not None
        self._run_one = tool.run
        self._key_arg = key_arg
        self._handler = handler

    async def __call__(self, calls: list[Json], context: Context) -> Sequence[object]:
        grouped = [position for position, call in enumerate(calls) if call.keys() == {self._key_arg}]
        if len(grouped) < 2:
            grouped = []
        alone = [position for position in range(len(calls)) if position not in set(grouped)]
        found, *rest = await asyncio.gather(
            self._handle([calls[position][self._key_arg] for position in grouped]),
            *(self._run_one(calls[position], context) for position in alone),
            return_exceptions=True,
        )
        shared = [found] * len(grouped) if isinstance(found, BaseException) else found
        results = dict(zip([*grouped, *alone], [*shared, *rest], strict=True))
        return [results[position] for position in range(len(calls))]

    async def _handle(self, keys: list[Any]) -> list[Any]:
        found = list(await self._handler(keys)) if keys else []
        if len(found) != len(keys):
            raise ToolError(f"the batch handler gave {len(found)} results for {len(keys)} keys")
        return found


def runtime_tools(given: Sequence[Any], timeout_s: float | None) -> tuple[list[RuntimeTool], list[str]]:
    """Return the tools of a batch that run here, and the remaining names, which only the gateway may know.

    Raises ValueError for a name that is given twice, and TypeError for a value that is no tool.
    """
    known = [Tool.registry.get(one, one) if isinstance(one, str) else one for one in given]
    others = [one for one in known if isinstance(one, str)]
    tools = [tool for one in known if not isinstance(one, str) and (tool := _tool(one, timeout_s)) is not None]
    names = [*others, *(tool.name for tool in tools)]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"two tools are called {twice[0]}")
    return tools, others


def _tool(given: Any, timeout_s: float | None) -> RuntimeTool | None:
    if isinstance(given, RuntimeTool):
        return given
    if isinstance(given, ToolDefinition | BuiltIn):
        return given.as_tool(timeout_s)
    raise TypeError(f"{given!r} is no tool: put @Tool.define above the function")
