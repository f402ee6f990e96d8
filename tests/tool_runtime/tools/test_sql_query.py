from __future__ import annotations

import asyncio
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.deadline import DEADLINE_S
from tests.tool_runtime.tools.calls import called
from tool_runtime import killable_child
from tool_runtime.runtime import ToolRuntime
from tool_runtime.tools import _sqlite_reader
from tool_runtime.tools.sql_query import build
from tool_runtime.types import Call, Context, Json, Status, Tool

ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"
BY_ID = {"query": "SELECT id, city FROM customers WHERE id IN (:keys)", "key": "id"}


@pytest.fixture
def database(tmp_path: Path) -> str:
    path = tmp_path / "shop.db"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE customers (id INTEGER PRIMARY KEY, city TEXT, picture BLOB)")
        rows = [(number, f"city {number}", b"x") for number in range(300)]
        connection.executemany("INSERT INTO customers VALUES (?, ?, ?)", rows)
        connection.execute("CREATE TABLE orders (customer TEXT, item TEXT)")
        connection.execute("CREATE INDEX by_customer ON orders (customer)")
        orders = [("ann", str(number)) for number in range(9)]
        connection.executemany("INSERT INTO orders VALUES (?, ?)", [*orders, ("bob", "x")])
    return str(path)


async def test_rows_come_with_their_columns(database: str) -> None:
    query = "SELECT id, city, picture, NULL AS empty FROM customers WHERE id > ? AND city <> ? LIMIT 1"
    result = await called(build({"database": database}), query=query, parameters=[7, "x"])
    assert json.loads(result.text) == {
        "columns": ["id", "city", "picture", "empty"],
        "rows": [[8, "city 8", "[1 bytes]", None]],
    }


@pytest.mark.parametrize(
    "query",
    [
        *("DELETE FROM customers", "INSERT INTO orders VALUES ('a', 'b')", "UPDATE customers SET city = ''"),
        *("DROP TABLE customers", "CREATE TABLE t (a)", "CREATE TEMP TABLE t (a)", "ALTER TABLE orders ADD a"),
        *("ATTACH 'other.db' AS other", "VACUUM", "VACUUM INTO 'copy.db'", "REINDEX", "ANALYZE"),
        *("PRAGMA query_only = 0", "PRAGMA writable_schema = 1", "SELECT * FROM pragma_table_info('orders')"),
        *("BEGIN", "SAVEPOINT a", "SELECT load_extension('x.so')"),
        "INSERT INTO orders SELECT id, city FROM customers RETURNING *",
        "WITH x AS (SELECT 1) DELETE FROM customers",
    ],
)
async def test_all_but_reading_is_refused(database: str, query: str) -> None:
    before = Path(database).read_bytes()
    result = await called(build({"database": database}), query=query)
    assert result.status is Status.REFUSED, result.text
    assert Path(database).read_bytes() == before
    assert [path.name for path in Path(database).parent.iterdir()] == ["shop.db"]


@pytest.mark.parametrize(
    "query",
    [
        *("SELECT", "SELECT absent FROM customers", "SELECT 1; SELECT 2", "SELECT ?", "SELECT '\0'"),
        *("SELECT zeroblob(100000000)", "SELECT hex(zeroblob(900000))", "SELECT 'a' FROM absent"),
        "SELECT " + ",".join("1" * 101),
        f"SELECT 'a' LIKE '{'%a' * 200}'",
    ],
)
async def test_a_query_that_fails_or_is_too_large_is_an_error(database: str, query: str) -> None:
    result = await called(build({"database": database}), query=query)
    assert (result.status, result.text.startswith("Error: ")) == (Status.ERROR, True)


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


async def test_a_result_is_cut_while_it_is_read_not_after(database: str) -> None:
    """All rows together would be 450 MB, and more than the process may have."""
    keyed = {"query": "SELECT id, hex(zeroblob(30000)) AS x FROM customers, (SELECT 1 FROM customers LIMIT 50)"}
    tool = build({"database": database, "key": "id", **keyed | {"query": keyed["query"] + " WHERE id IN (:keys)"}})
    assert tool.run_many is not None
    found: Any = await tool.run_many([{"id": n} for n in range(150)], Context("acme"))
    results = list(map(json.loads, found))
    assert {(len(each["rows"]), each["cut"]) for each in results} == {(1, "only the first 1 rows")}
    await closed(tool)


def asked(query: str) -> Call:
    return Call("1", "sql_query", json.dumps({"query": query}))


async def closed(tool: Tool) -> None:
    assert tool.close is not None
    await tool.close()


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


async def test_rows_are_counted_and_weighed(database: str) -> None:
    tool = build({"database": database, "max_rows": 3})
    many = json.loads((await called(tool, query="SELECT id FROM customers")).text)
    assert many == {"columns": ["id"], "rows": [[0], [1], [2]], "cut": "only the first 3 rows"}
    exactly = json.loads((await called(tool, query="SELECT id FROM customers LIMIT 3")).text)
    assert "cut" not in exactly
    heavy = build({"database": database})
    text = (await called(heavy, query="SELECT hex(zeroblob(400000)) FROM customers")).text
    assert len(text) < 1_000_000


async def test_keys_that_come_together_are_one_query(database: str) -> None:
    tool = build({"database": database, "name": "customer", **BY_ID})
    groups: list[int] = []

    async def counted(group: list[Json], context: Context) -> Sequence[object]:
        groups.append(len(group))
        assert tool.run_many is not None
        return await tool.run_many(group, context)

    runtime = ToolRuntime([replace(tool, run_many=counted)], clock=time.monotonic)
    keys = [1, 2, "3", 999]
    results = await asyncio.gather(
        *(runtime.run(Call("1", "customer", json.dumps({"id": key})), Context("acme", "ann")) for key in keys)
    )
    await runtime.close()
    assert groups == [4]
    assert [json.loads(result.text)["rows"] for result in results] == [
        [[1, "city 1"]],
        [[2, "city 2"]],
        [[3, "city 3"]],
        [],
    ]


async def test_one_key_with_many_rows_takes_none_from_another(database: str) -> None:
    query = "SELECT customer, item FROM orders WHERE customer IN (:keys) ORDER BY customer"
    tool = build({"database": database, "query": query, "key": "customer", "max_rows": 2})
    assert tool.run_many is not None
    found: Any = await tool.run_many([{"customer": "ann"}, {"customer": "bob"}], Context("acme"))
    ann, bob = map(json.loads, found)
    assert (ann["rows"], ann["cut"]) == ([["ann", "0"], ["ann", "1"]], "only the first 2 rows")
    assert bob == {"columns": ["customer", "item"], "rows": [["bob", "x"]]}
    await closed(tool)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"database": "/no/such/file"}, "no database file"),
        ({"query": "SELECT 1"}, "key"),
        ({"key": "id"}, ":keys"),
        ({"query": "SELECT 1 AS id", "key": "id"}, ":keys"),
        ({"query": "SELECT city FROM customers WHERE id IN (:keys)", "key": "id"}, "no column 'id'"),
        ({"query": "SELECT id FROM absent WHERE id IN (:keys)", "key": "id"}, "no such table"),
        ({"query": "DELETE FROM customers WHERE id IN (:keys)", "key": "id"}, "only reading"),
    ],
)
def test_settings_that_are_wrong_are_told(database: str, settings: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        build({"database": database, **settings})
