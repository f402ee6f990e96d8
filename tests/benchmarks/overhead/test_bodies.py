"""What the clients of the overhead benchmark send."""

from __future__ import annotations

from itertools import pairwise

import orjson
import pytest

from benchmarks.overhead.bodies import CALL_ID, ID, conversation, first_turn
from benchmarks.overhead.cells import FIRST_TURN_BYTES, HERE, SIZES


@pytest.mark.parametrize("size_bytes", SIZES.values())
def test_conversations_grow_only_at_their_end_and_have_their_size(size_bytes: int) -> None:
    bodies = conversation(size_bytes)
    assert sum(map(len, bodies)) / len(bodies) == pytest.approx(size_bytes, rel=0.15)
    parsed = [orjson.loads(body) for body in bodies]
    for earlier, later in pairwise(parsed):
        assert later["messages"][: len(earlier["messages"])] == earlier["messages"]
    assert all(body.count(ID.encode()) == 1 for body in bodies)


def test_a_history_carries_the_calls_that_the_engine_answered() -> None:
    assert f'\\"{CALL_ID}\\"' in (HERE / "upstream.c").read_text(encoding="utf-8")
    for message in orjson.loads(conversation(SIZES["b"])[-1])["messages"]:
        assert all(call["id"] == CALL_ID for call in message.get("tool_calls", ()))


def test_a_first_turn_has_its_size_and_a_number_of_its_own() -> None:
    (body,) = first_turn(FIRST_TURN_BYTES)
    assert len(body) == pytest.approx(FIRST_TURN_BYTES, rel=0.05)
    assert body.count(ID.encode()) == 1
