from __future__ import annotations

from time import process_time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tool_runtime.web import page_text

BOMBS = [
    *("<" * 1_000_000, "<a " * 300_000, "<!--" * 250_000, "<![" * 300_000, "</" * 500_000, "<div>" * 200_000),
    *('<a b="' * 150_000, "<script>" * 100_000, "&" * 1_000_000, "&#" * 500_000, " \n" * 500_000),
]


def test_a_page_is_its_title_headings_paragraphs_and_items() -> None:
    page = """<!doctype html><head><title>A &amp; B</title><style>p {}</style><body><h2>One</h2>
        <p>two <b>three</b>
        four<ul><li>five<li>six &lt; 7</ul><!-- <p>hidden --><script>if (1<2) write("<p>no</p>")</script>
        <table><tr><td>8<td>9</table>"""
    assert page_text(page).split("\n") == [
        "Title: A & B",
        "## One",
        "two three four",
        "- five",
        "- six < 7",
        "8 9",
    ]


@given(st.text(alphabet='<>/!-"= abscript&;\n'))
def test_any_text_is_a_page(text: str) -> None:
    page_text(text)


@pytest.mark.parametrize("bomb", BOMBS, ids=lambda bomb: bomb[:8].strip())
def test_a_page_that_is_made_to_be_slow_is_not(bomb: str) -> None:
    began = process_time()
    page_text(bomb)
    assert process_time() - began < 5.0
