from __future__ import annotations

from policies.trial import FEWEST, OFTEN, Trial


def seen(found_asked: float, found_else: float) -> Trial:
    trial = Trial()
    for _ in range(FEWEST):
        trial.saw(True, found_asked)
        trial.saw(False, found_else)
    return trial


def share_asked(trial: Trial) -> float:
    return sum(trial.asks() for _ in range(10 * OFTEN)) / (10 * OFTEN)


def test_both_ways_are_tried_until_they_can_be_compared() -> None:
    assert share_asked(Trial()) == 0.5


def test_what_finds_the_answer_cached_only_when_asked_is_asked_for() -> None:
    assert share_asked(seen(1.0, 0.0)) == 1 - 1 / OFTEN


def test_an_engine_that_caches_its_answers_or_ignores_the_wish_is_hardly_asked() -> None:
    assert share_asked(seen(1.0, 1.0)) == share_asked(seen(0.0, 0.0)) == 1 / OFTEN
