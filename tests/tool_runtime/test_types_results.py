from __future__ import annotations

from dataclasses import dataclass
from datetime import date

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tool_runtime.types import ToolError, capped, text_of


@dataclass
class Row:
    day: date
    tags: set[str]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("as it is \n", "as it is \n"),
        (None, "null"),
        ({"é": [1, 2.5, True]}, '{"é":[1,2.5,true]}'),
        (Row(date(2026, 1, 31), {"a"}), '{"day":"2026-01-31","tags":["a"]}'),
        (float("inf"), '"Infinity"'),
    ],
    ids=str,
)
def test_a_value_becomes_text(value: object, text: str) -> None:
    assert text_of(value) == text


def test_a_value_that_is_not_json_is_a_clear_error() -> None:
    endless: list[object] = []
    endless.append(endless)
    for value in (object(), {"a": object()}, endless):
        with pytest.raises(ToolError, match=f"returned a {type(value).__name__} that is not JSON"):
            text_of(value)


@given(st.text(st.characters(), max_size=60), st.integers(0, 80))
def test_a_cut_is_at_the_last_character_that_fits_and_marked(text: str, max_bytes: int) -> None:
    whole = text.encode("utf-8", "replace").decode()
    told, is_cut = capped(text, max_bytes)
    kept, mark, _ = told.partition("\n[truncated: ")
    assert is_cut == bool(mark) == (len(whole.encode()) > max_bytes)
    if is_cut:
        assert whole.startswith(kept)
        assert len(kept.encode()) <= max_bytes < len(whole[: len(kept) + 1].encode())
    else:
        assert told == whole


def test_half_a_surrogate_pair_does_not_get_out() -> None:
    assert capped("a\ud800b", 10) == ("a?b", False)
