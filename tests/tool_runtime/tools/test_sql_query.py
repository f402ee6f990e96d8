from __future__ import annotations

import asyncio
import json
import sqlite3
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.tool_runtime.tools.calls import called
from tool_runtime.runtime import ToolRuntime
from tool_runtime.tools.sql_query import build
from tool_runtime.types import Call, Context, Json, Status

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
        "SELECT printf('%.*c', 1000000000, 'x')",
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


async def test_a_query_is_stopped_after_its_time(database: str) -> None:
    result = await called(build({"database": database, "timeout_s": 0.2}), query=ENDLESS)
    assert (result.status, "stopped after 0.2 s" in result.text) == (Status.ERROR, True)


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
    found = await tool.run_many([{"customer": "ann"}, {"customer": "bob"}], Context("acme"))
    assert [len(each["rows"]) for each in found if isinstance(each, dict)] == [2, 1]


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
