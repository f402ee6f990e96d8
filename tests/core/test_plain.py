"""The plain copy of a JSON text has its values, or its shape."""

from __future__ import annotations

import re
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core import plain
from gateway.core.plain import without_escapes, without_spaces
from gateway.core.slices import finished
from tests.core.test_json_edit import JSON

SPACES = st.text(st.sampled_from(" \t\r\n"), max_size=20).map(str.encode)


@pytest.fixture(autouse=True, scope="module")
def small_pieces() -> Any:
    """So that texts of some bytes have many, and each is copied."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plain, "PIECE_BYTES", 7)
        patch.setattr(plain, "FEW_ESCAPES", 0)
        patch.setattr(plain, "MUCH_SPACE", -1)
        yield


@given(st.binary(max_size=80) | st.text(st.sampled_from('ab"\\\\[]{},:'), max_size=80).map(str.encode))
def test_a_text_without_escapes_has_the_same_length_and_nothing_else_of_it_changes(raw: bytes) -> None:
    found = finished(without_escapes(raw))
    assert len(found) == len(raw)
    escapes = {at for match in re.finditer(rb"\\.?", raw, re.DOTALL) for at in range(*match.span())}
    for at, (was, now) in enumerate(zip(raw, found, strict=True)):
        assert now == was or (now == ord("_") and at in escapes)
    assert found is raw or b"\\" not in found


@given(JSON, st.lists(SPACES, min_size=1, max_size=5))
def test_a_text_without_spaces_has_the_same_value(value: Any, spaces: list[bytes]) -> None:
    raw = orjson.dumps(value, option=orjson.OPT_INDENT_2)
    parts = re.split(rb'("(?:[^"\\]|\\.)*")', raw)
    parts[::2] = [part.replace(b" ", spaces[at % len(spaces)] or b" ") for at, part in enumerate(parts[::2])]
    text = finished(without_spaces(b"".join(parts)))
    assert orjson.loads(text) == value
    assert len(text) <= sum(map(len, parts))


def test_a_run_of_space_is_short_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain, "PIECE_BYTES", 5_000)
    raw = b"[" + b" \n\t" * 3_000 + b'1, "' + b" " * 100 + b'"]'
    assert len(finished(without_spaces(raw))) < 130


@given(st.text(st.sampled_from('1 \n\t,"\\[]tru'), max_size=60).map(str.encode))
def test_what_is_no_json_is_none_without_spaces(raw: bytes) -> None:
    try:
        value = orjson.loads(raw)
    except orjson.JSONDecodeError:
        with pytest.raises(orjson.JSONDecodeError):
            orjson.loads(finished(without_spaces(raw)))
    else:
        assert orjson.loads(finished(without_spaces(raw))) == value
