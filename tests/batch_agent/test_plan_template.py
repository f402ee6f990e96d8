from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batch_agent.plan import fill

VALUES = {"item": "x", "n": 3, "row": {"id": 7}}


@pytest.mark.parametrize(
    ("template", "filled"),
    [
        ("plain", "plain"),
        ("{item} of {n}", "x of 3"),
        ("{n:03d} {item!r} {row[id]}", "003 'x' 7"),
        ('{{"a": "{item}"}}', '{"a": "x"}'),
        ('Answer as {"a": 1}: {item}', 'Answer as {"a": 1}: x'),
        ('{"outer": {"inner": "{item}"}}', '{"outer": {"inner": "x"}}'),
        ("set {} and {item}", "set {} and x"),
        ("a { b } {item}", "a { b } x"),
        ("only { one brace {n}", "only { one brace 3"),
    ],
)
def test_fields_are_filled_and_braces_that_can_be_none_stay(template: str, filled: str) -> None:
    assert fill(template, VALUES) == filled


@pytest.mark.parametrize("template", ["{other}", '{"a": {other}}', "{row[none]}", "{item.none}"])
def test_a_field_that_an_input_lacks_is_an_error(template: str) -> None:
    with pytest.raises(ValueError, match="template"):
        fill(template, VALUES)


@given(st.text())
def test_what_is_filled_in_is_never_read_as_a_template(value: str) -> None:
    assert fill("<{item}>", {"item": value}) == f"<{value}>"
    assert fill('{"a": "{item}"}', {"item": value}) == f'{{"a": "{value}"}}'
