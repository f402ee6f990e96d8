"""A slice of `python -m benchmarks.fuzz`: every target, a few thousand inputs, the same each time."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.fuzz import __main__ as fuzz
from benchmarks.fuzz.__main__ import by_chance
from benchmarks.fuzz.targets import TARGETS, FuzzedGateway, relay

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
    gateway = FuzzedGateway()
    try:
        assert by_chance("path", NUM_INPUTS, seed=1, law=gateway).failure == ""
    finally:
        gateway.close()


@pytest.mark.parametrize("kind", ["{}", "[]", "1", "null", '"response.created"'])
def test_an_event_s_type_may_be_anything(kind: str) -> None:
    """Found by the fuzzer: a type that cannot be hashed."""
    relay(b"\0\1" + f'data: {{"type":{kind}}}\n\n'.encode())


def test_an_input_that_hangs_is_told_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fuzz, "HANGS_S", 0.01)
    monkeypatch.setattr(fuzz, "RAW", tmp_path)

    def hang(data: bytes) -> None:
        threading.Event().wait()

    found = by_chance("sse", 5, seed=1, law=hang)
    assert (found.num_inputs, found.failure) == (1, "TimeoutError: more than 0.01 s")
    assert (tmp_path / "sse.bin").exists()


def test_what_the_gateway_waits_out_takes_no_time() -> None:
    """Found by the fuzzer: a list whose engine sends nonsense is asked eight times, for a minute."""
    gateway = FuzzedGateway()
    try:
        list_of_prompts = b'\1{"model":"m","prompt":["a","b"],"n":2}\0\3\1data: 7\n\n'
        assert by_chance("path", 1, seed=1, law=lambda _: gateway(list_of_prompts)).failure == ""
    finally:
        gateway.close()
