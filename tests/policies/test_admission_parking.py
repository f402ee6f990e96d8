from __future__ import annotations

from dataclasses import replace

import pytest

from policies.admission import token_turns
from policies.types import Dispatch, Family
from tests.policies.test_scheduler import Fleet, ids
from tests.policies.turns_of import done, turn


def test_token_turns_add_up_what_a_session_holds_over_its_turns() -> None:
    family = Family("f", private_chars=400.0, append_tokens=10.0, output_tokens=5.0)
    assert token_turns(family, 1, 0) == 105
    assert token_turns(family, 3, 2) == (100 + 20 + 5) + (100 + 30 + 5) + (100 + 40 + 5)


@pytest.mark.parametrize(
    ("resident", "waits", "is_parked"),
    [
        pytest.param(40, 0, True, id="much longer to go"),
        pytest.param(1, 0, False, id="its own tokens cost more than the room is worth"),
        pytest.param(40, 40, False, id="no longer to go than the waiting one"),
        pytest.param(None, 0, False, id="the length of the resident is not declared"),
        pytest.param(40, None, False, id="the length of the waiting one is not declared"),
    ],
)
def test_an_idle_session_is_parked_where_both_are_known_and_it_has_much_longer_to_go(
    resident: int | None, waits: int | None, is_parked: bool
) -> None:
    fleet = Fleet(blocks=400)
    fleet.arrive(turn("a", ("a", 240), remaining=resident))
    fleet.tell(done("a"), 1.0)
    assert bool(fleet.arrive(turn("b", ("b", 240), at=1.1, remaining=waits))) == is_parked


def test_nobody_is_parked_for_another_tenant_or_a_lower_class() -> None:
    fleet = Fleet()
    fleet.arrive(turn("a", ("a", 60), remaining=40, priority_class=1))
    fleet.tell(done("a"), 1.0)
    assert not fleet.arrive(turn("lower", ("lower", 60), at=1.1, remaining=0))
    other = turn("other", ("other", 60), at=1.2, remaining=0, priority_class=1)
    assert not fleet.arrive(replace(other, tenant="other"))


def test_a_sub_agent_is_not_parked() -> None:
    fleet = Fleet()
    fleet.arrive(replace(turn("child", ("child", 60), remaining=40), parent_id="parent"))
    fleet.tell(done("child"), 1.0)
    assert not fleet.arrive(turn("b", ("b", 60), at=1.1, remaining=0))


def test_a_parked_session_goes_after_new_ones_and_once_resident_again_like_any_other() -> None:
    fleet = Fleet()
    fleet.arrive(turn("a1", ("a", 60), session="a", remaining=40))
    fleet.tell(done("a1"), 1.0)
    fleet.arrive(turn("b", ("b", 60), at=1.1, remaining=0))
    assert not fleet.arrive(turn("a2", ("a", 60), session="a", at=1.2, remaining=39))
    assert not fleet.arrive(turn("c", ("c", 60), at=1.3, remaining=0))
    assert ids(fleet.tell(done("b"), 2.0)) == ["c"]
    assert ids(fleet.tell(done("c"), 3.0)) == ["a2"]
    fleet.tell(done("a2"), 4.0)
    [again] = fleet.arrive(turn("a3", ("a", 60), session="a", at=4.1, remaining=38))
    assert isinstance(again, Dispatch)
