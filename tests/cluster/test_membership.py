"""The home of a session: the same at all members, for all its turns, and spread as families and cores need it."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gateway.cluster.membership import Member, by_preference
from gateway.sessions.session_locations import Origin, origin_of

MEMBERS = [Member(gateway, worker, "") for gateway in ("a:1", "b:1", "c:1") for worker in range(3)]
JSON: Any = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


def said(system: str, task: str, *later: str) -> dict[str, Any]:
    roles = ("assistant", "user")
    turns = [{"role": roles[n % 2], "content": text} for n, text in enumerate(later)]
    return {"messages": [{"role": "system", "content": system}, {"role": "user", "content": task}, *turns]}


def origins(*bodies: dict[str, Any], **headers: str) -> list[Origin]:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return [origin_of("a", named, body) for body in bodies]


def test_all_turns_of_a_session_have_one_origin() -> None:
    first, later = origins(said("You help.", "Do it"), said("You help.", "Do it", "Done", "Again"))
    assert (first.family, first.root) == (later.family, later.root)
    assert [first.has_history, later.has_history] == [False, True]


def test_siblings_share_their_family_and_not_their_root() -> None:
    one, other = origins(
        said("You help. " * 60 + "/home/a", "Do it"), said("You help. " * 60 + "/home/b", "Do that")
    )
    assert one.family == other.family
    assert one.root != other.root


def test_a_sub_agent_has_the_root_of_its_parent_and_tenants_have_nothing_in_common() -> None:
    (parent,) = origins(said("A", "a"), x_turngate_session="p")
    (child,) = origins(said("B", "b"), x_turngate_session="c", x_turngate_parent="p")
    assert parent.root == child.root
    body = said("A", "a")
    assert {origin_of("a", {}, body).root, origin_of("a", {}, body).family}.isdisjoint(
        {origin_of("b", {}, body).root, origin_of("b", {}, body).family}
    )


def test_text_that_changes_between_requests_is_left_out_of_the_family() -> None:
    volatile = [re.compile(r"^x-anthropic-[^\n]*\n?", re.MULTILINE)]
    bodies = [{"system": [{"text": f"x-anthropic-billing: {n}\n"}, {"text": "You help."}]} for n in range(2)]
    assert len({origin_of("a", {}, body | {"messages": []}, volatile).family for body in bodies}) == 1


def test_a_family_lives_at_one_gateway_on_all_of_its_workers() -> None:
    homes = [by_preference(MEMBERS, Origin("f", f"r{n}", False))[0] for n in range(300)]
    assert len({home.gateway for home in homes}) == 1
    assert min(Counter(home.worker for home in homes).values()) > 60


def test_families_are_spread_over_gateways() -> None:
    homes = Counter(by_preference(MEMBERS, Origin(f"f{n}", "r", False))[0].gateway for n in range(300))
    assert min(homes.values()) > 60


def test_who_leaves_moves_only_what_was_its_own() -> None:
    left = [member for member in MEMBERS if member.gateway != "b:1"]
    for n in range(200):
        origin = Origin(f"f{n}", f"r{n}", False)
        before, after = by_preference(MEMBERS, origin), by_preference(left, origin)
        assert after[0] == next(member for member in before if member in left)


@given(st.dictionaries(st.sampled_from(["messages", "input", "system", "instructions", "prompt"]), JSON))
def test_any_body_has_an_origin(body: dict[str, Any]) -> None:
    assert origin_of("a", {}, body) == origin_of("a", {}, body)
