"""Laws of model names."""

from __future__ import annotations

import pytest

from gateway.config.settings import Models
from gateway.request.payload import MAX_NAME_CHARS, engine_model

ALIASES = {"gpt-5": "large", "gpt-*": "small", "own": "own"}


@pytest.mark.parametrize(
    ("asked", "served", "name"),
    [
        ("gpt-5", {"large", "small"}, "large"),
        ("gpt-5.4-nano", {"large", "small"}, "small"),
        ("small", {"large", "small"}, "small"),
        ("unknown", {"large", "small"}, None),
        ("unknown", {"large"}, "large"),
        ("", {"large"}, "large"),
        ("unknown", set(), "unknown"),
    ],
)
def test_an_alias_wins_then_a_served_name_then_the_only_model(
    asked: str, served: set[str], name: str | None
) -> None:
    assert engine_model(asked, Models(aliases=ALIASES), served) == name


def test_a_single_model_answers_to_its_own_name_alone_where_that_is_configured() -> None:
    assert engine_model("unknown", Models(answer_any_model=False), {"large"}) is None


def test_while_nothing_is_served_only_what_can_be_a_name_goes_through() -> None:
    assert engine_model("m" * MAX_NAME_CHARS, Models(), ()) == "m" * MAX_NAME_CHARS
    assert engine_model("m" * (MAX_NAME_CHARS + 1), Models(), ()) is None
