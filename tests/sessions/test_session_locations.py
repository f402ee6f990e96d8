"""Every member reads the same origin from a request, and from every later turn of its session."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.transport import by_name
from gateway.sessions.session_locations import Origin, origin_of

SYSTEM = "You are an engineer. " * 30


def chat(*said: str, system: str = SYSTEM) -> dict[str, Any]:
    """Of user and model in turns."""
    roles = ("user", "assistant")
    messages = [{"role": roles[n % 2], "content": text} for n, text in enumerate(said)]
    return {"messages": [{"role": "system", "content": system}, *messages]}


def origin(body: Any, tenant: str = "t", **headers: str) -> Origin:
    return origin_of(tenant, by_name([(name.replace("_", "-"), value) for name, value in headers.items()]), body)


def test_a_session_keeps_its_origin_while_it_grows() -> None:
    first, later = origin(chat("Task 1")), origin(chat("Task 1", "Done?", "Go on", "Yes"))
    assert (first.family, first.root) == (later.family, later.root)
    assert (first.has_history, later.has_history) == (False, True)


def test_siblings_are_one_family_with_roots_of_their_own() -> None:
    one, other = origin(chat("Task 1")), origin(chat("Task 2", system=f"{SYSTEM}Today is Monday."))
    assert one.family == other.family
    assert one.root != other.root


def test_tenants_have_nothing_in_common() -> None:
    one, other = origin(chat("Task 1")), origin(chat("Task 1"), tenant="u")
    assert one.family != other.family
    assert one.root != other.root


def test_a_sub_agent_that_names_its_parent_is_at_home_there() -> None:
    parent = origin(chat("Task 1"), X_Turngate_Session="p")
    child = origin(chat("Part of it", system="Other."), X_Turngate_Session="c", X_Turngate_Parent="p")
    assert child.root == parent.root


def test_a_name_is_not_what_somebody_else_said() -> None:
    named = origin(chat(), X_Turngate_Session="[[],null]")
    assert named.root != origin(chat()).root


def test_volatile_text_does_not_part_a_family() -> None:
    at = [re.compile(r"at \d+")]
    one, other = (origin_of("t", by_name(()), chat("x", system=f"You work at {n}. "), at) for n in (1, 2))
    assert one.family == other.family


@pytest.mark.parametrize("key", ["instructions", "system"])
def test_a_system_text_is_found_wherever_a_format_puts_it(key: str) -> None:
    body = {"input" if key == "instructions" else "messages": [{"role": "user", "content": "x"}]}
    one, same = origin(body | {key: "A"}), origin(body | {key: "A"})
    assert one == same
    assert one.family != origin(body | {key: "B"}).family


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["role", "content", "text", "type"]), inner, max_size=3)
    ),
    max_leaves=12,
)
KEYS = st.sampled_from(["messages", "input", "prompt", "system", "instructions"])


@given(st.dictionaries(KEYS, JSON, max_size=4))
def test_whatever_a_body_holds_it_has_one_origin(body: dict[str, Any]) -> None:
    assert origin(body) == origin(body)
