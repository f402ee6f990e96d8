"""Laws of values that others chose: typed accessors, excerpts of text, and bytes that are kept."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core import fields
from gateway.core.fields import MAX_CHARS, UNSEEN, excerpt, trimmed

TEXTS = st.text(st.characters() | st.sampled_from("\0\n\x1b\x9f\u2028\u202e\udc80"), max_size=600)
WRONG = [None, True, 1, 1.0, "x", ["x"], {"x": 1}]


@pytest.mark.parametrize(
    ("read", "right", "absent"),
    [
        (fields.text, ["x"], None),
        (fields.integer, [1], None),
        (fields.flag, [True], False),
        (fields.items, [["x"]], []),
        (fields.obj, [{"x": 1}], {}),
    ],
)
def test_only_values_of_the_right_type_are_read(read: Callable[..., Any], right: list[Any], absent: Any) -> None:
    for value in WRONG:
        # Compared with type, as True == 1 and 1 == 1.0.
        is_right = any(value == good and type(value) is type(good) for good in right)
        assert read({"k": value}, "k") == (value if is_right else absent)
    assert read({}, "k") == absent


@pytest.mark.parametrize(
    ("value", "count"),
    [
        (48, 48),
        (-1, -1),
        (48.0, 48),
        ("48", 48),
        (" 48 ", 48),
        ("48.0", 48),
        (10**40, 10**40),
        (True, None),
        ("many", None),
        ("9" * 400, None),
        ("inf", None),
        ("nan", None),
        (None, None),
        ([48], None),
    ],
)
def test_a_count_is_read_as_lax_engines_read_it(value: Any, count: int | None) -> None:
    assert fields.count({"k": value}, "k") == count


@given(TEXTS)
def test_an_excerpt_is_one_short_visible_line_that_can_be_written_as_json(text: str) -> None:
    shown = excerpt(text)
    assert len(shown) <= MAX_CHARS
    assert not UNSEEN.search(shown)
    orjson.dumps(shown)


@given(st.text(st.characters(categories=["L", "N", "P"]), max_size=MAX_CHARS))
def test_a_short_plain_text_is_its_own_excerpt(text: str) -> None:
    assert excerpt(text) == text


def test_the_excerpt_of_a_long_text_is_its_start() -> None:
    assert excerpt("a" * 300) == "a" * 253 + "..."
    assert excerpt("a\x1bb" + "c" * 300, 10) == "a\\u001b..."


def test_text_that_is_kept_takes_no_more_memory_than_it_has_bytes() -> None:
    reserved = orjson.dumps({"id": "x" * 700, "numbers": list(range(50))})
    text = trimmed(reserved)
    assert text == reserved
    assert sys.getsizeof(text) == sys.getsizeof(b"") + len(text)
