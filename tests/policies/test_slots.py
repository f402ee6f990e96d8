from __future__ import annotations

import pytest

from policies.admission_queue import AdmissionQueue
from policies.fleet import Fleet, Pool
from policies.forecast import forecast
from policies.slots import Slots
from policies.types import Ending, Left, ReplicaReported, Usage
from tests.policies.turns_of import TOKENS_PER_CHAR, turn

BASE_S, TOKEN_S, OUTPUT_TOKEN_S = 0.04, 0.000_5, 0.02


class Engine:
    """A pool whose turns run one after the other."""

    def __init__(self) -> None:
        self.fleet = Fleet(forecast, 1_000)
        self.fleet.reported(ReplicaReported("r", None, 100_000, 8, 0, TOKENS_PER_CHAR), 0.0)
        self.slots = Slots(self.fleet, lambda _model: AdmissionQueue(lambda _turn, _bucket: 0.0))
        self.now = 0.0

    @property
    def pool(self) -> Pool:
        return self.fleet.pool("r")

    def ran(
        self, name: str, believed: tuple[float, float], computed: int, output: int, is_streamed: bool = True
    ) -> None:
        """Run a turn. `believed`: the tokens that its cache should miss, and those of them that were evicted."""
        made = turn(name)
        self.fleet.session(made, self.fleet.family(made)).num_running += 1
        self.slots.occupy(made, self.pool, *believed, self.now)
        prefill_s, decode_s = BASE_S + TOKEN_S * computed, OUTPUT_TOKEN_S * output
        self.now += prefill_s + (0.0 if is_streamed else decode_s)
        self.slots.first_byte(name, self.now)
        self.now += decode_s if is_streamed else 0.0
        usage = Usage(10_000, 10_000 - computed, output)
        self.slots.free(Left(name, Ending.COMPLETE, usage), self.now)
        self.now += 1.0


def test_the_tokens_that_the_engine_computed_count_not_those_that_were_expected() -> None:
    engine = Engine()
    for number, computed in enumerate([300, 500, 900, 2_500] * 4):
        engine.ran(f"t{number}", (400.0, 0.0), computed, 100)
    assert engine.pool.pace.prefill_token_s == pytest.approx(TOKEN_S, rel=0.02)


def test_an_answer_that_comes_whole_does_not_count_as_a_slow_prefill() -> None:
    engine = Engine()
    for number, computed in enumerate([300, 500, 900, 2_500] * 4):
        engine.ran(f"t{number}", (float(computed), 0.0), computed, 100)
    before_s = engine.pool.pace.prefill_token_s
    for number in range(20):
        engine.ran(f"w{number}", (500.0, 0.0), 500, 100, is_streamed=False)
    assert engine.pool.pace.prefill_token_s == before_s
    assert engine.fleet.sessions["w19"].decode_s == pytest.approx(100 * OUTPUT_TOKEN_S, rel=0.05)


def test_a_return_to_an_evicted_prefix_shows_what_a_miss_costs_and_not_the_speed_of_prefill() -> None:
    engine = Engine()
    for number, computed in enumerate([300, 500, 900, 2_500] * 4):
        engine.ran(f"t{number}", (float(computed), 0.0), computed, 100)
    before_s = engine.pool.pace.prefill_token_s
    for number in range(40):
        engine.ran(f"e{number}", (2_400.0, 2_000.0), 400, 100)
    assert engine.pool.pace.prefill_token_s == before_s
    assert engine.pool.pace.miss_token_s < 0.3 * before_s


@pytest.mark.parametrize("first_byte_s", [5.0, 0.2], ids=["before its first byte", "while it decodes"])
def test_a_call_behind_a_neighbour_s_long_prompt_is_beside_it_for_the_time_that_it_really_took(
    first_byte_s: float,
) -> None:
    """The engine is slower than learned; the long prompt may end a moment after the short call."""
    engine = Engine()
    for name, tokens, now in (("long", 16_000.0, 0.0), ("short", 50.0, 0.1)):
        made = turn(name)
        engine.fleet.session(made, engine.fleet.family(made)).num_running += 1
        engine.slots.occupy(made, engine.pool, tokens, 0.0, now)
    engine.slots.first_byte("short", first_byte_s)
    spent = engine.slots.engine_time("short", Usage(50, 0, 4), False, 5.0)
    assert spent is not None
    assert spent.beside_s + spent.queue_beside_s == pytest.approx(4.9, abs=0.2)
    assert spent.queue_s + spent.prefill_s + spent.decode_s == pytest.approx(4.9)
