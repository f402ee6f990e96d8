"""Large bodies are read in slices: one at a time, in order, and nothing is left of one that is cancelled."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Generator, Iterator, Mapping
from itertools import pairwise
from typing import Any

import pytest

from gateway.core import slices
from gateway.core.slices import SLICE_S, Reading, Slices, finished, freed


class Time:
    """A clock on which each look takes so long."""

    def __init__(self, step_s: float) -> None:
        self.now, self.step_s = 0.0, step_s

    def __call__(self) -> float:
        self.now += self.step_s
        return self.now


def steps(name: str, count: int, log: list[str]) -> Generator[None, None, str]:
    try:
        for _ in range(count):
            log.append(name)
            yield
        return name
    finally:
        log.append(f"{name} closed")


async def test_the_loop_goes_round_after_each_slice() -> None:
    log: list[str] = []
    running = asyncio.create_task(Slices(Time(SLICE_S / 3)).run(steps("a", 7, log)))
    rounds = []
    while not running.done():
        await asyncio.sleep(0)
        rounds.append(log.count("a"))
    assert running.result() == "a"
    assert max(after - before for before, after in zip([0, *rounds], rounds, strict=False)) <= 3
    assert rounds[-1] == 7


async def test_one_body_is_read_at_a_time_in_the_order_of_arrival() -> None:
    log: list[str] = []
    slices = Slices(Time(SLICE_S))
    found = await asyncio.gather(*(slices.run(steps(name, 3, log)) for name in "abc"))
    assert found == ["a", "b", "c"]
    assert log == ["a"] * 3 + ["a closed"] + ["b"] * 3 + ["b closed"] + ["c"] * 3 + ["c closed"]


@pytest.mark.parametrize("at", [1, 2, 3])
async def test_a_body_that_is_cancelled_leaves_nothing_and_lets_the_next_one_in(at: int) -> None:
    log: list[str] = []
    slices = Slices(Time(SLICE_S))
    first, second = (asyncio.create_task(slices.run(steps(name, 5, log))) for name in "ab")
    while log.count("a") < at:
        await asyncio.sleep(0)
    first.cancel()
    await asyncio.wait((first,))
    assert first.cancelled()
    assert log.count("a closed") == 1
    assert await second == "b"
    assert not slices._turnstile.locked()


async def test_bodies_under_one_name_are_read_in_the_order_of_arrival_and_others_pass() -> None:
    slices, log = Slices(), list[str]()

    async def read(name: str, label: str) -> None:
        reading = await slices.admit(name)
        log.append(label)
        await asyncio.sleep(0)
        reading.leave()
        reading.leave()

    first = await slices.admit("s")
    tasks = [asyncio.create_task(read(*one)) for one in (("s", "s2"), ("s", "s3"), ("t", "t1"), ("", "none"))]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert log == ["t1", "none"]
    tasks[0].cancel()
    await asyncio.wait((tasks[0],))
    assert log == ["t1", "none"], "what follows a cancelled one still waits for those before it"
    first.leave()
    await asyncio.wait(tasks)
    assert log == ["t1", "none", "s3"]
    assert slices.names == {}


async def test_a_reading_is_of_the_latest_body_under_its_name() -> None:
    slices = Slices()
    first = Reading(slices, "s")
    second = Reading(slices, "s")
    first.leave()
    assert list(slices.names) == ["s"]
    second.leave()
    assert slices.names == {}


def test_all_steps_at_once_give_the_same_result() -> None:
    log: list[str] = []
    assert finished(steps("a", 3, log)) == "a"
    assert log == ["a", "a", "a", "a closed"]


def deep(num: int) -> Any:
    held: Any = []
    for _ in range(num):
        held = {"a": held}
    return held


VALUES: Mapping[str, Callable[[int], Any]] = {
    "a wide list": lambda num: [[] for _ in range(num)],
    "a wide object": lambda num: {str(at): [] for at in range(num)},
    "lists in lists": lambda num: [[[0]] for _ in range(num // 2)],
    "a deep one": deep,
}


@pytest.fixture
def containers() -> Iterator[Callable[[], int]]:
    """Counts what is alive, without collections of anything else meanwhile."""
    gc.collect()
    gc.disable()
    yield lambda: sum(type(one) in (dict, list) for one in gc.get_objects())
    gc.enable()


@pytest.mark.parametrize("name", VALUES)
def test_a_long_value_is_freed_a_few_containers_at_a_time(
    name: str, containers: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slices, "_FREED_ITEMS", 100)
    before = containers()
    freeing = freed(VALUES[name](1_000))
    alive = [containers()]
    for _ in freeing:
        alive.append(containers())
    alive.append(containers())
    assert max(earlier - later for earlier, later in pairwise(alive)) <= 250
    assert alive[0] >= before + 1_000
    assert alive[-1] <= before + 20


def test_what_something_else_refers_to_is_not_freed() -> None:
    kept = {"a": [{"b": [1, 2]}]}
    finished(freed([kept, [kept["a"]]]))
    assert kept == {"a": [{"b": [1, 2]}]}


async def test_a_value_is_freed_in_slices_beside_what_else_runs(
    containers: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slices, "_FREED_ITEMS", 10)
    before = containers()
    Slices(Time(SLICE_S)).free([[] for _ in range(1_000)])
    alive = [containers()]
    while alive[-1] > before + 100:
        await asyncio.sleep(0)
        alive.append(containers())
    assert len(alive) > 50
