"""What is joined in steps is what a join makes, and no step copies much."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core import joining
from gateway.core.joining import encoded, joined_bytes, joined_str
from gateway.core.slices import finished

TEXTS = st.lists(
    st.text(st.sampled_from("a\x7f\x80\xff\u0100\uffff\U00010000\U0010ffff"), max_size=12), max_size=8
)


@pytest.fixture(autouse=True, scope="module")
def short_steps() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(joining, "STEP_CHARS", 5)
        yield


@given(TEXTS)
def test_texts_joined_in_steps_are_their_join_in_as_much_memory(texts: list[str]) -> None:
    text = "".join(texts)
    joined = finished(joined_str(texts))
    assert joined == text
    assert hash(joined) == hash(text)
    assert sys.getsizeof(joined) == sys.getsizeof(text), "it has the kind of its widest character"


@given(TEXTS)
def test_bytes_joined_in_steps_are_their_join(texts: list[str]) -> None:
    parts = [text.encode() for text in texts]
    assert finished(joined_bytes(parts)) == b"".join(parts)
    assert finished(encoded("".join(texts))) == b"".join(parts)


def test_a_step_copies_no_more_than_its_bound() -> None:
    assert len(list(joined_str(["a" * 20, "b" * 20]))) >= 2 * 40 / 5
    assert len(list(joined_bytes([b"abcd"] * 10))) >= 40 / 8
    assert len(list(encoded("a" * 40))) >= 2 * 40 / 5
