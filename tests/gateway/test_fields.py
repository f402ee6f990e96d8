"""Laws of the typed accessors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gateway.core import fields

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
