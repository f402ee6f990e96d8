from __future__ import annotations

from typing import Any
from unittest.mock import patch

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core import values
from gateway.core.values import OF_A_CONTAINER, counted, is_sparse, may_be_more

JSON = st.recursive(
    st.none() | st.integers(0, 9) | st.text(alphabet='a\\",[]{}:\n', max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text('a\\",{[', max_size=4), inner, max_size=4),
    max_leaves=30,
)


def num_values(given: Any) -> int:
    """One less for each list and object: its first value has no comma before it."""
    if not isinstance(given, list | dict):
        return 0
    inner = list(given.values()) if isinstance(given, dict) else given
    return OF_A_CONTAINER + max(0, len(inner) - 1) + sum(map(num_values, inner))


@given(given=JSON, step=st.integers(1, 40))
def test_values_outside_strings_are_counted_wherever_the_text_is_cut(given: Any, step: int) -> None:
    with patch.object(values, "STEP_BYTES", step):
        assert [0, *counted(orjson.dumps(given))][-1] == num_values(given)


@pytest.mark.parametrize("unit", [b"[],", b"{},", b"1,", b'"",', b"[[[[]]]],"])
def test_a_text_that_cannot_have_too_many_is_not_counted(unit: bytes) -> None:
    most = 600
    raw = b"[" + unit * (2 * most // OF_A_CONTAINER // len(unit) - 1) + b"]"
    assert may_be_more(raw, most) or list(counted(raw))[-1] <= most


def test_the_count_ends_where_there_are_too_many() -> None:
    raw = b"[" + b"[]," * 10**7
    counts = counted(raw)
    assert next(counts) > 10**5


@pytest.mark.parametrize("spaces", ["", " ", "\n  "])
@pytest.mark.parametrize("num", [20, 30_000])
@pytest.mark.parametrize("value", ["[]", "{}", "1", '""', '{"a":1}', '{"role":"user","content":"hi"}'])
def test_a_text_of_many_small_values_is_not_sparse(value: str, num: int, spaces: str) -> None:
    assert not is_sparse(f"[{','.join([spaces + value.replace('{', '{' + spaces)] * num)}]".encode())


@pytest.mark.parametrize(
    "text",
    [
        "Read the file, then say what it does.\n",
        "def f(self, names):\n    found = {name: self.at[name] for name in names}\n",
    ],
)
def test_a_history_of_long_texts_is_sparse(text: str) -> None:
    assert is_sparse(orjson.dumps({"messages": [{"role": "tool", "content": text * 60}] * 300}))
