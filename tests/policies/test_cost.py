"""What a session costs and what holding it costs, in one pool."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from policies import forecast
from policies.cost import is_cheap, turn_value_tokens
from policies.fleet import Pool
from policies.types import Family, Replica, Session, TurnKind


def busy_pool() -> Pool:
    """It computes 10,000 tokens per second; its sessions take a turn in about 3 s."""
    pool = Pool(Replica("r"), forecast.Reserve(forecast.forecast))
    for tokens in range(500, 1_300, 25):
        pool.pace.saw_prefill(tokens, 0.05 + tokens / 10_000)
        pool.pace.saw_cycle(1.0, 2.0)
    for number in range(9):
        pool.replica.occupy_slot(str(number), 0)
    return pool


@pytest.mark.parametrize(
    ("kind", "continued", "cheap"),
    [
        pytest.param(TurnKind.SINGLE, [], True, id="a chat: nothing says that it goes on"),
        pytest.param(TurnKind.AGENT, [], False, id="it offers tools, and goes on for some turns"),
        pytest.param(TurnKind.SINGLE, [1], False, id="the sessions of its family go on"),
    ],
)
def test_a_short_question_is_cheap_until_its_family_goes_on(
    kind: TurnKind, continued: Sequence[int], cheap: bool
) -> None:
    pool = busy_pool()
    family = Family("f", ended=[0] * len(continued), continued=list(continued), first_chars=400)
    session = Session("s", "f", "t", None, kind=kind, num_begun=1)
    assert 500 < turn_value_tokens(pool) < 4_000
    assert is_cheap(pool, session, family, 100.0) == cheap
    assert not is_cheap(pool, session, family, 20_000.0)
