"""Laws of reading metrics pages."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.engines.pages import samples, total
from tests.engines.recorded import pages

PAGE = """# HELP x_total Help with x_total 1
# TYPE x_total counter
x_total{a="1",b="two \\"quoted\\", } and {braces}"} 3.0
x_total{a="2"} 4
x_created{a="1"} 1.7e9
x_total_count 5
x 6 1795239011
y many
y NaN
y +Inf
"""


def test_a_name_matches_only_itself() -> None:
    assert [s.value for s in samples(PAGE, {"x_total"})] == [3.0, 4.0]
    assert [s.value for s in samples(PAGE, {"x"})] == [6.0]


def test_labels_may_hold_anything() -> None:
    assert samples(PAGE, {"x_total"})[0].labels == {"a": "1", "b": 'two \\"quoted\\", } and {braces}'}


def test_a_value_that_is_no_number_is_left_out() -> None:
    assert samples(PAGE, {"y"}) == []


def test_a_total_is_none_without_the_metric() -> None:
    found = samples(PAGE, {"x_total", "z"})
    assert total(found, "x_total") == 7.0
    assert total(found, "z") is None


def test_the_time_a_counter_was_created_is_no_count() -> None:
    found = samples(pages("vllm-0.32")["/metrics"], {"vllm:prefix_cache_queries_total"})
    assert [s.value for s in found] == [313228.0]


@given(st.text())
def test_no_page_raises(page: str) -> None:
    samples(page, {"x", "{", ""})
