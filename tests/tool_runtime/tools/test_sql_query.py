from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.tool_runtime.tools.calls import called
from tool_runtime.runtime import ToolRuntime
from tool_runtime.tools.sql_query import build
from tool_runtime.types import Call, Context, Json, Status, Tool

BY_ID = {"query": "SELECT id, city FROM customers WHERE id IN (:keys)", "key": "id"}


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


async def test_a_result_is_cut_while_it_is_read_not_after(database: str) -> None:
    """All rows together would be 450 MB, and more than the process may have."""
    keyed = {"query": "SELECT id, hex(zeroblob(30000)) AS x FROM customers, (SELECT 1 FROM customers LIMIT 50)"}
    tool = build({"database": database, "key": "id", **keyed | {"query": keyed["query"] + " WHERE id IN (:keys)"}})
    assert tool.run_many is not None
    found: Any = await tool.run_many([{"id": n} for n in range(150)], Context("acme"))
    results = list(map(json.loads, found))
    assert {(len(each["rows"]), each["cut"]) for each in results} == {(1, "only the first 1 rows")}
    await closed(tool)


async def closed(tool: Tool) -> None:
    assert tool.close is not None
    await tool.close()


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
