from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from tool_runtime.loading import read_options


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """All the types that there are."""

    name: str
    hosts: tuple[str, ...] = ()
    places: Mapping[str, str] = field(default_factory=dict)
    size: int = 1
    seconds: float = 1.0
    is_on: bool = False
    place: str | None = None

    def __post_init__(self) -> None:
        if self.size < 0:
            raise ValueError("size is negative")


def test_values_are_read_by_the_types_of_the_fields() -> None:
    given = {
        "name": "n",
        "hosts": ["a"],
        "places": {"a": "b"},
        "size": 2,
        "seconds": 3,
        "is_on": True,
        "place": None,
    }
    assert read_options(Options, given, "x") == Options(
        name="n", hosts=("a",), places={"a": "b"}, size=2, seconds=3.0, is_on=True
    )


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({}, "x: name is missing"),
        ({"name": "n", "host": []}, "x: no such key 'host' (did you mean hosts?)"),
        ({"name": "n", "wrong": 1}, "x: no such key 'wrong' (known: name, hosts"),
        ({"name": 1}, "x: name has to be text, not 1"),
        ({"name": "n", "hosts": "a"}, "x: hosts has to be a list of text, not 'a'"),
        ({"name": "n", "places": {"a": 1}}, "x: places has to be a mapping of text to text"),
        ({"name": "n", "size": True}, "x: size has to be a whole number, not True"),
        ({"name": "n", "size": 1.5}, "x: size has to be a whole number, not 1.5"),
        ({"name": "n", "seconds": "1"}, "x: seconds has to be a number, not '1'"),
        ({"name": "n", "is_on": 1}, "x: is_on has to be true or false, not 1"),
        ({"name": "n", "place": 1}, "x: place has to be text, not 1"),
        ({"name": "n", "size": -1}, "x: size is negative"),
    ],
)
def test_a_fault_is_told_with_its_place_and_what_belongs_there(given: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match="x: ") as error:
        read_options(Options, given, "x")
    assert str(error.value).startswith(told)


def test_all_faults_are_told_together() -> None:
    with pytest.raises(ValueError, match=r"no such key 'a'.*\n.*name is missing.*\n.*size has to be"):
        read_options(Options, {"a": 1, "size": "b"}, "x")
