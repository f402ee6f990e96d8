from __future__ import annotations

import orjson
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.excerpt import MAX_CHARS, UNSEEN, excerpt

TEXTS = st.text(st.characters() | st.sampled_from("\0\n\x1b\x9f\u2028\u202e\udc80"), max_size=600)


@given(TEXTS)
def test_an_excerpt_is_one_short_visible_line_that_can_be_written_as_json(text: str) -> None:
    told = excerpt(text)
    assert len(told) <= MAX_CHARS
    assert not UNSEEN.search(told)
    orjson.dumps(told)


@given(st.text(st.characters(categories=["L", "N", "P"]), max_size=MAX_CHARS))
def test_a_short_plain_text_is_told_as_it_is(text: str) -> None:
    assert excerpt(text) == text


def test_of_a_long_text_the_start_is_told() -> None:
    assert excerpt("a" * 300) == "a" * 253 + "..."
    assert excerpt("a\x1bb" + "c" * 300, 10) == "a\\u001b..."
