"""Laws of a replica's slots."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from policies.types import Replica

STEPS = st.lists(
    st.tuples(st.sampled_from(["begin", "prefilled", "end"]), st.sampled_from("abc"), st.integers(0, 9))
)


@given(STEPS)
def test_the_queued_prefill_is_the_sum_over_those_who_run(steps: list[tuple[str, str, int]]) -> None:
    replica = Replica("r", slots=2)
    for action, turn_id, tokens in steps:
        if action == "begin":
            replica.occupy_slot(turn_id, tokens)
        elif action == "end":
            replica.free_slot(turn_id)
        elif turn_id in replica.running:
            replica.end_prefill(turn_id)
        assert replica.queued_prefill_tokens == sum(replica.running.values())
        assert replica.free_slots == max(0, 2 - len(replica.running))
