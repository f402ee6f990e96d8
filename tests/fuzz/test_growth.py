"""No place in which a client, an engine or a model repeats something costs more than in proportion."""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Iterator

import pytest

from tests.fuzz.growth import Made, places

PLACES = places()
MOST_TIMES = 2.5
"""What twice as much may take at most, against once: twice, and room for what else the machine does."""
SLACK_S = 0.05
MOST_S = 1.0
"""Of processor time. Where something was copied for each repeat, these places took a second to minutes."""
REPEATS = 4
"""Where the law does not hold at the first look."""


@pytest.fixture(autouse=True)
def logs_again() -> Iterator[None]:
    """The gateways of the generator switch logging off."""
    yield
    logging.disable(logging.NOTSET)


def processor_s(made: Made, num: int) -> float:
    """Of the whole process, so that no thread hides it. Without collections, which grow by what else is alive."""
    with made(num) as work:
        gc.collect()
        gc.disable()
        try:
            begun = time.process_time()
            work()
            return time.process_time() - begun
        finally:
            gc.enable()


@pytest.mark.parametrize("place", PLACES)
def test_twice_as_much_takes_about_twice_the_time(place: str) -> None:
    num, made = PLACES[place]
    once = twice = float("inf")
    for _ in range(REPEATS):
        once, twice = min(once, processor_s(made, num // 2)), min(twice, processor_s(made, num))
        if twice > MOST_S or twice <= MOST_TIMES * once + SLACK_S:
            break
    assert twice <= MOST_TIMES * once + SLACK_S, f"{num // 2}: {once:.3f} s, {num}: {twice:.3f} s"
    assert twice <= MOST_S
