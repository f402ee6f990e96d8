"""A tool that does not end, and does not listen, is cut from outside: each kind of it, on the real clock."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from tests.deadline import DEADLINE_S
from tests.tool_runtime.fakes import ANY_OBJECT
from tests.tool_runtime.mcp.joined import Http, joined, stdio
from tests.tool_runtime.sandbox.here import in_sandbox
from tests.tool_runtime.test_killable import ENDLESS
from tool_runtime.define import define
from tool_runtime.runtime import ToolRuntime
from tool_runtime.tools import http_get, list_files, python_eval, read_file, sql_query, web_search
from tool_runtime.types import Call, Context, Effect, Json, Limits, Status, Tool

TIMEOUT_S = 0.3
NEVER_S = 10_000.0
"""Of the tool's own time-out, where it has one: it is the outer one that has to cut."""
CALLER = Context("acme", "ann")
Stuck: TypeAlias = tuple[Tool, Json]
"""A tool, and arguments with which it never ends."""
Kind: TypeAlias = Callable[[Path], AbstractAsyncContextManager[Stuck]]


@asynccontextmanager
async def coroutine(folder: Path) -> AsyncIterator[Stuck]:
    """It takes a cancellation for an error that it can ignore."""
    may_end = asyncio.Event()

    async def run(arguments: Json, context: Context) -> None:
        while not may_end.is_set():
            try:
                await may_end.wait()
            except asyncio.CancelledError:
                continue

    try:
        yield Tool(name="stuck", description="", parameters=ANY_OBJECT, run=run, effect=Effect.READ_ONLY), {}
    finally:
        may_end.set()


@asynccontextmanager
async def function(folder: Path) -> AsyncIterator[Stuck]:
    """In a thread, which nothing can stop."""
    may_end = threading.Event()

    def run() -> bool:
        return may_end.wait()

    try:
        yield define(run, name="stuck", effect=Effect.READ_ONLY), {}
    finally:
        may_end.set()


@asynccontextmanager
async def group(folder: Path) -> AsyncIterator[Stuck]:
    async def many(arguments: list[Json], context: Context) -> list[str]:
        await asyncio.Event().wait()
        return []

    yield (
        Tool(
            name="stuck",
            description="",
            parameters=ANY_OBJECT,
            run_many=many,
            effect=Effect.READ_ONLY,
            batch_window_s=0.01,
            max_batch=3,
        ),
        {},
    )


@asynccontextmanager
async def on_a_disk_that_hangs(tool: Tool) -> AsyncIterator[Stuck]:
    may_end, os_open = threading.Event(), os.open

    def hangs(path: Any, flags: int, *, dir_fd: int | None = None) -> int:
        may_end.wait()
        return os_open(path, flags, dir_fd=dir_fd)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "open", hangs)
        try:
            yield tool, {"path": "docs/file"}
        finally:
            may_end.set()


def file(folder: Path) -> AbstractAsyncContextManager[Stuck]:
    return on_a_disk_that_hangs(read_file.build({"roots": {"docs": str(folder)}}))


def directory(folder: Path) -> AbstractAsyncContextManager[Stuck]:
    return on_a_disk_that_hangs(list_files.build({"roots": {"docs": str(folder)}}))


@asynccontextmanager
async def silent() -> AsyncIterator[int]:
    """A server that takes each connection and says nothing. Its port."""
    may_end = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await may_end.wait()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        may_end.set()
        server.close()


@asynccontextmanager
async def page(folder: Path) -> AsyncIterator[Stuck]:
    async with silent() as port:
        host = f"127.0.0.1:{port}"
        own = {"hosts": [host], "private_networks": ["127.0.0.0/8"], "timeout_s": NEVER_S}
        yield http_get.build(own), {"url": f"http://{host}/"}


@asynccontextmanager
async def search(folder: Path) -> AsyncIterator[Stuck]:
    async with silent() as port:
        own = {"provider": "searxng", "url": f"http://127.0.0.1:{port}", "timeout_s": NEVER_S}
        yield web_search.build(own), {"query": "q"}


@asynccontextmanager
async def query(folder: Path) -> AsyncIterator[Stuck]:
    database = folder / "shop.db"
    database.touch()
    yield sql_query.build({"database": str(database), "timeout_s": NEVER_S}), {"query": ENDLESS}


@asynccontextmanager
async def sandbox(folder: Path) -> AsyncIterator[Stuck]:
    code = "import signal\nfor n in {*range(1, 32)} - {9, 19}: signal.signal(n, signal.SIG_IGN)\nwhile True: pass"
    yield python_eval.build({"timeout_s": NEVER_S}), {"code": code}


KINDS: dict[str, Kind] = {
    "a coroutine": coroutine,
    "a function": function,
    "a group": group,
    "a file": file,
    "a directory": directory,
    "a page": page,
    "a search": search,
    "a query": query,
}


async def cut(kind: Kind, folder: Path) -> None:
    """Call a tool that does not end, and one that does."""
    quick = Tool(
        name="quick", description="", parameters=ANY_OBJECT, run=says_yes, effect=Effect.READ_ONLY, limits=Limits()
    )
    async with kind(folder) as (tool, arguments):
        tool = replace(tool, limits=replace(tool.limits, timeout_s=TIMEOUT_S))
        runtime = ToolRuntime([tool, quick], clock=time.monotonic)
        call = runtime.run(Call("1", tool.name, json.dumps(arguments)), CALLER)
        result = await asyncio.wait_for(call, DEADLINE_S)
        assert result.status is Status.TIMEOUT
        assert (await runtime.run(Call("2", "quick", "{}"), CALLER)).text == "yes"
    await asyncio.wait_for(runtime.close(), DEADLINE_S)


async def says_yes(arguments: Json, context: Context) -> str:
    return "yes"


@pytest.mark.parametrize("kind", KINDS)
async def test_a_tool_that_does_not_end_is_cut_after_its_time(kind: str, tmp_path: Path) -> None:
    await cut(KINDS[kind], tmp_path)


@in_sandbox
async def test_code_that_ignores_all_signals_is_cut_after_the_time_of_its_tool(tmp_path: Path) -> None:
    await cut(sandbox, tmp_path)


@pytest.mark.parametrize("kind", ["stdio", "http"])
async def test_an_mcp_server_that_is_frozen_is_cut_after_the_time_of_the_call(kind: str) -> None:
    program = Http()
    if kind == "http":
        await program.start()
    before = children()
    async with joined(stdio() if kind == "stdio" else program.settings()) as it:
        pid = program.process.pid if program.process is not None else (children() - before).pop()
        os.kill(pid, signal.SIGSTOP)
        try:
            call = it.runtime.run(Call("1", "it_add", '{"a": 1, "b": 2}'), CALLER, timeout_s=TIMEOUT_S)
            assert (await asyncio.wait_for(call, DEADLINE_S)).status is Status.TIMEOUT
        finally:
            os.kill(pid, signal.SIGCONT)
        assert (await it.call("it_add", a=1, b=2)).text == "3"
    if kind == "http":
        await program.stop()


def children() -> set[int]:
    """Processes that this one has started."""
    return {
        int(pid) for task in Path("/proc/self/task").iterdir() for pid in (task / "children").read_text().split()
    }
