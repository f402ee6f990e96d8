"""A database for the tests of tools and processes that read one."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest


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
