"""A slice of `python -m benchmarks.fuzz`: every target, a few thousand inputs, the same each time."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from benchmarks.fuzz import by_chance
from benchmarks.fuzz_targets import TARGETS, Gateway, relay

NUM_INPUTS = 2_000


@pytest.fixture(autouse=True)
def logs_again() -> Iterator[None]:
    """The target `path` switches logging off."""
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("target", [name for name in TARGETS if name != "path"])
def test_no_input_breaks_a_law(target: str) -> None:
    assert by_chance(target, NUM_INPUTS, seed=1).failure == ""


def test_no_input_breaks_the_gateway() -> None:
    gateway = Gateway()
    try:
        assert by_chance("path", NUM_INPUTS, seed=1, law=gateway).failure == ""
    finally:
        gateway.close()


@pytest.mark.parametrize("kind", ["{}", "[]", "1", "null", '"response.created"'])
def test_an_event_s_type_may_be_anything(kind: str) -> None:
    """Found by the fuzzer: a type that cannot be hashed."""
    relay(b"\0\1" + f'data: {{"type":{kind}}}\n\n'.encode())
