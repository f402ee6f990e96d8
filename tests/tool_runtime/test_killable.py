"""Processes that are killed, by the queries of `sql_query`."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tests.deadline import DEADLINE_S
from tests.tool_runtime.tools.calls import called
from tool_runtime import killable_child
from tool_runtime.runtime import ToolRuntime
from tool_runtime.tools import _sqlite_reader
from tool_runtime.tools.sql_query import build
from tool_runtime.types import Call, Context, Status

ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"
LONG = "replace(hex(zeroblob(499000)), '0', 'a')"
INSTR = f"instr({LONG}, substr({LONG}, 1, 490000) || 'b')"
ONE_STEP = {
    "instr": f"SELECT {INSTR}",
    "replace": f"SELECT length(replace({LONG}, substr({LONG}, 1, 490000) || 'b', ''))",
    "printf": "SELECT printf('%.*c', 1000000000, 'x')",
    "many of them": f"SELECT {' + '.join([INSTR] * 20)}",
    "none that ends": ENDLESS,
}


@pytest.mark.parametrize("query", ONE_STEP.values(), ids=ONE_STEP)
async def test_a_query_is_ended_with_its_time_whatever_it_is_in_the_middle_of(database: str, query: str) -> None:
    """SQLite looks at no clock while one function runs, which may be for minutes."""
    tool = build({"database": database, "timeout_s": 0.2})
    result = await called(tool, query=query)
    assert (result.status, "stopped after 0.2 s" in result.text) == (Status.ERROR, True)
    assert await left(database) == []


async def test_a_query_that_its_caller_has_left_is_killed_in_every_phase_of_it(database: str) -> None:
    tool = build({"database": database, "timeout_s": 1000})
    runtime = ToolRuntime([tool], clock=time.monotonic)
    for wait_ms in range(0, 60, 4):
        call = asyncio.create_task(runtime.run(asked(ENDLESS), Context("acme")))
        await asyncio.sleep(wait_ms / 1000)
        call.cancel()
        _, hanging = await asyncio.wait([call], timeout=DEADLINE_S)
        assert not hanging
    assert await left(database) == []
    assert (await runtime.run(asked("SELECT 1"), Context("acme"))).status is Status.OK
    await runtime.close()


async def test_one_process_serves_query_after_query_and_goes_with_the_runtime(database: str) -> None:
    runtime = ToolRuntime([build({"database": database})], clock=time.monotonic)
    pids = set()
    for number in range(5):
        assert (await runtime.run(asked(f"SELECT {number}"), Context("acme"))).status is Status.OK
        pids |= set(processes(database))
    assert len(pids) == 1
    await asyncio.gather(*(runtime.run(asked(f"SELECT {number}"), Context("acme")) for number in range(50)))
    assert len(processes(database)) <= 4
    await runtime.close()
    assert processes(database) == []


async def test_a_process_that_others_have_killed_is_replaced(database: str) -> None:
    runtime = ToolRuntime([build({"database": database})], clock=time.monotonic)
    for number in range(20):  # with luck in each moment before and after we hear of it
        assert (await runtime.run(asked(f"SELECT {number}"), Context("acme"))).status is Status.OK
        [pid] = await left(database, 1)
        os.kill(int(pid), signal.SIGKILL)
        await asyncio.sleep(number / 10_000)
    await runtime.close()


async def test_a_query_whose_process_is_lost_is_an_error_and_the_next_one_is_answered(database: str) -> None:
    runtime = ToolRuntime([build({"database": database})], clock=time.monotonic)
    call = asyncio.create_task(runtime.run(asked(ENDLESS), Context("acme")))
    while not any(map(works, processes(database))):
        await asyncio.sleep(0.01)
    os.kill(int(processes(database)[0]), signal.SIGKILL)
    assert ((await call).status, "was lost" in (await call).text) == (Status.ERROR, True)
    assert (await runtime.run(asked("SELECT 2"), Context("acme"))).status is Status.OK
    await runtime.close()


def works(pid: str) -> bool:
    """Whether it has used more of a processor than its start takes."""
    try:
        ticks = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    except OSError:  # gone
        return False
    return sum(map(int, ticks)) > 0.5 * os.sysconf("SC_CLK_TCK")


RUN_IT = """
import asyncio, sys
from tool_runtime.tools.sql_query import build
from tool_runtime.types import Context
tool = build({"database": sys.argv[1], "timeout_s": 1000})
asyncio.run(tool.run({"query": sys.argv[2]}, Context("acme")))
"""


async def test_no_query_outlives_the_process_that_asked(database: str) -> None:
    asking = await asyncio.create_subprocess_exec(sys.executable, "-c", RUN_IT, database, ONE_STEP["many of them"])
    while not any(map(works, processes(database))):
        await asyncio.sleep(0.01)
    asking.kill()
    await asking.wait()
    assert await left(database) == []


def test_a_query_that_is_not_ended_ends_itself(database: str) -> None:
    fixed = {"uri": f"{Path(database).as_uri()}?mode=ro", "memory_bytes": 100_000_000}
    request = {"query": ONE_STEP["many of them"], "values": [], "max_rows": 1}
    limits = "0.1", "100000000"
    command = sys.executable, "-I", killable_child.__file__, _sqlite_reader.__file__, *limits
    done = subprocess.run((*command, json.dumps(fixed), json.dumps(request)), timeout=DEADLINE_S)
    assert done.returncode == -signal.SIGALRM


async def test_a_query_has_a_bound_on_its_memory(database: str) -> None:
    tool = build({"database": database, "memory_bytes": 20_000_000})
    wide = ", ".join(f"hex(zeroblob(499999 - {n}))" for n in range(60))
    result = await called(tool, query=f"SELECT {wide}")
    assert (result.status, "more memory" in result.text) == (Status.ERROR, True), result.text


def asked(query: str) -> Call:
    return Call("1", "sql_query", json.dumps({"query": query}))


async def left(database: str, num: int = 0) -> list[str]:
    """Processes that read it, once they are so few; they have a while to go."""
    until = time.monotonic() + DEADLINE_S
    while len(found := processes(database)) > num and time.monotonic() < until:
        await asyncio.sleep(0.01)
    return found


def processes(database: str) -> list[str]:
    """Those that read a database; it is named by their command lines."""
    found, uri = [], f'"{Path(database).as_uri()}?'.encode()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if uri in path.read_bytes():
                found.append(path.parent.name)
    return found
