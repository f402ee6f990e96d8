"""Laws of limits: all or nothing, an estimate before and the truth after."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import pytest

from gateway.access.keys import Caller
from gateway.access.limits import (
    CHARS_PER_TOKEN,
    Allowance,
    CallerLimits,
    Limiter,
    LocalCounters,
    Quantity,
    report,
)
from gateway.config.settings import KeyLimits, Price, RequestLimits
from gateway.core.errors import Outcome, Refused
from gateway.dialects import BY_PATH
from gateway.exchange import EngineAttempt, Exchange, Payload, RequestEnd, Timings
from gateway.request.inprocess import InProcessRequest
from gateway.request.payload import too_many
from policies.types import Usage

NOT_SAID = Usage()


@dataclass
class Desk:
    """A limiter with a clock that the test moves, and one key."""

    limits: dict[str, Any]
    prices: dict[str, Price] = field(default_factory=dict)
    now: float = 1_000_000.0

    def __post_init__(self) -> None:
        self.refused: list[str] = []
        self.limiter = Limiter(LocalCounters(), self.prices, lambda: self.now, self.refused.append)
        caller_limits = CallerLimits.of("key", KeyLimits(**self.limits))
        assert caller_limits is not None
        self.caller_limits = caller_limits

    def enter(self) -> Allowance:
        allowance = self.limiter.allowance(self.caller_limits)
        assert allowance is not None
        allowance.enter()
        return allowance

    def left(self, quantity: str) -> float:
        rows = report(self.limiter, [self.caller_limits])
        return next(float(row["of"] - row["used"]) for row in rows if row["limit"] == quantity)


def request_of(tokens: int = 100, max_tokens: int | None = None, model: str = "m") -> Exchange:
    request = InProcessRequest("/v1/chat/completions", [], b"")
    body = {} if max_tokens is None else {"max_tokens": max_tokens}
    raw = b"x" * (tokens * CHARS_PER_TOKEN)
    payload = Payload(raw, body, engine_model=model)
    return Exchange(
        "id", request, BY_PATH[request.path], Timings(0), payload=payload, caller=Caller("a", may_prioritise=False)
    )


def reserve(allowance: Allowance, exchange: Exchange) -> None:
    payload = exchange.payload
    allowance.reserve(payload.engine_model, len(payload.raw), exchange.max_output_tokens)


def ended(exchange: Exchange, outcome: Outcome, usage: Usage = NOT_SAID, *, has_attempt: bool = True) -> Exchange:
    exchange.end, exchange.reply.usage = RequestEnd(outcome), usage
    exchange.reply.is_complete = outcome is Outcome.ANSWERED
    exchange.attempt = EngineAttempt("vllm", 1) if has_attempt else None
    return exchange


def settle(allowance: Allowance, exchange: Exchange) -> None:
    allowance.settle(exchange.payload.engine_model, exchange.charged, exchange.has_engine_worked)


def refusal(allowance: Allowance | None, desk: Desk, exchange: Exchange | None = None) -> Any:
    with pytest.raises(Refused) as caught:
        desk.enter() if allowance is None else reserve(allowance, exchange or request_of())
    assert (caught.value.outcome, caught.value.failure.status) == (Outcome.REJECTED_LIMIT, 429)
    return caught.value.failure


def test_requests_are_counted_and_come_back_as_the_window_slides() -> None:
    desk = Desk({"requests": 3})
    for _ in range(3):
        desk.enter()
    failure = refusal(None, desk)
    assert "limits.requests" in failure.message
    assert failure.code == "rate_limit_exceeded"
    desk.now += failure.retry_after_s - 0.5
    refusal(None, desk)
    desk.now += 0.5
    desk.enter()
    assert desk.refused == ["requests", "requests"]


def test_a_place_is_free_again_when_its_request_is_over() -> None:
    desk = Desk({"concurrency": 2})
    first, _ = desk.enter(), desk.enter()
    assert refusal(None, desk).retry_after_s >= 1
    assert desk.refused == ["concurrency"]
    settle(first, request_of())
    settle(first, request_of())
    desk.enter()
    refusal(None, desk)


def test_who_waits_for_a_place_is_told_how_long_such_requests_take() -> None:
    desk = Desk({"concurrency": 1})
    for _ in range(30):
        allowance = desk.enter()
        desk.now += 40
        settle(allowance, request_of())
    desk.enter()
    assert refusal(None, desk).retry_after_s == pytest.approx(40, rel=0.02)


def test_tokens_are_reserved_by_an_estimate_and_settled_by_what_was_used() -> None:
    desk = Desk({"tokens": 10_000})
    allowance, exchange = desk.enter(), request_of(4_000, max_tokens=500)
    reserve(allowance, exchange)
    assert desk.left("tokens") == 10_000 - 4_500
    settle(allowance, ended(exchange, Outcome.ANSWERED, Usage(3_000, 0, 200)))
    assert desk.left("tokens") == 10_000 - 3_200


def test_what_a_long_answer_used_beyond_its_estimate_counts_although_its_window_is_over() -> None:
    desk = Desk({"tokens": 10_000})
    allowance, exchange = desk.enter(), request_of(100, max_tokens=100)
    reserve(allowance, exchange)
    desk.now += 600
    settle(allowance, ended(exchange, Outcome.ANSWERED, Usage(100, 0, 9_100)))
    assert desk.left("tokens") == 1_000


def test_what_a_client_asks_for_is_not_taken_for_what_it_will_use() -> None:
    desk = Desk({"tokens": 10_000})
    reserve(desk.enter(), request_of(100, max_tokens=32_000))
    assert desk.left("tokens") > 8_000


@pytest.mark.parametrize(
    ("outcome", "has_attempt", "costs"),
    [
        (Outcome.ANSWERED, True, True),
        (Outcome.CLIENT_GONE, True, True),
        (Outcome.CLIENT_GONE, False, False),
        (Outcome.ENGINE_REFUSED, True, False),
        (Outcome.ENGINE_FAILED, True, False),
        (Outcome.BAD_REQUEST, True, False),
        (Outcome.REJECTED_WAIT, False, False),
        (Outcome.NOT_FOUND, False, False),
    ],
)
def test_without_a_word_from_the_engine_the_estimate_stands_only_if_it_has_worked(
    outcome: Outcome, has_attempt: bool, costs: bool
) -> None:
    desk = Desk({"tokens": 10_000})
    allowance, exchange = desk.enter(), request_of(1_000)
    reserve(allowance, exchange)
    settle(allowance, ended(exchange, outcome, has_attempt=has_attempt))
    assert (desk.left("tokens") < 10_000) is costs


def test_an_answer_that_was_cut_costs_its_estimate() -> None:
    desk = Desk({"tokens": 10_000})
    allowance, exchange = desk.enter(), request_of(1_000)
    reserve(allowance, exchange)
    exchange.timings.first_byte_at = 1.0
    settle(allowance, ended(exchange, Outcome.ENGINE_CUT))
    assert desk.left("tokens") == 8_000


def test_all_rounds_of_an_answer_with_tools_are_paid() -> None:
    desk = Desk({"tokens": 10_000})
    allowance, exchange = desk.enter(), request_of(100)
    reserve(allowance, exchange)
    exchange.charges = [Usage(1_000, 0, 100)]
    settle(allowance, ended(exchange, Outcome.ANSWERED, Usage(1_000, 0, 100)))
    assert desk.left("tokens") == 10_000 - 2_200


def test_a_refused_request_takes_nothing_of_any_limit() -> None:
    desk = Desk({"tokens": 1_000, "budget_tokens": 100_000})
    first = desk.enter()
    reserve(first, request_of(500, max_tokens=100))
    refusal(desk.enter(), desk, request_of(500, max_tokens=100))
    assert (desk.left("tokens"), desk.left("budget_tokens")) == (400, 99_400)


def test_a_request_larger_than_its_limit_goes_when_the_window_is_empty() -> None:
    desk = Desk({"tokens": 1_000})
    reserve(desk.enter(), request_of(5_000))
    failure = refusal(None, desk)
    assert math.isfinite(failure.retry_after_s)
    desk.now += 2 * 60 * 6
    reserve(desk.enter(), request_of(5_000))


def test_when_tokens_are_used_up_nothing_is_read_any_more() -> None:
    desk = Desk({"tokens": 1_000, "concurrency": 9})
    allowance, exchange = desk.enter(), request_of(100)
    reserve(allowance, exchange)
    settle(allowance, ended(exchange, Outcome.ANSWERED, Usage(2_000, 0, 0)))
    failure = refusal(None, desk)
    assert "limits.tokens" in failure.message
    desk.now += failure.retry_after_s
    desk.enter()


def test_a_budget_counts_money_by_the_first_price_that_matches() -> None:
    prices = {"big*": Price(prompt=10, cached=1, output=30), "*": Price(prompt=1, output=2)}
    desk = Desk({"budget_cost": 1.0}, prices)
    for model, cost in (("big-1", 0.9 * 10e-3 + 0.1e-3 + 3e-3), ("other", 1e-3 + 0.2e-3)):
        before = desk.left("budget_cost")
        allowance, exchange = desk.enter(), request_of(10, model=model)
        reserve(allowance, exchange)
        settle(allowance, ended(exchange, Outcome.ANSWERED, Usage(1_000, 100, 100)))
        assert before - desk.left("budget_cost") == pytest.approx(cost)


def test_a_spent_budget_says_so_in_the_word_that_makes_agents_stop() -> None:
    desk = Desk({"budget_tokens": 1_000})
    allowance, exchange = desk.enter(), request_of(100)
    reserve(allowance, exchange)
    settle(allowance, ended(exchange, Outcome.ANSWERED, Usage(1_000, 0, 0)))
    failure = refusal(None, desk)
    assert (failure.code, failure.retry_after_s > 3_600) == ("insufficient_quota", True)


def test_the_headers_say_limit_rest_and_reset_of_each_quantity() -> None:
    desk = Desk({"requests": 10, "tokens": 5_000, "budget_cost": 2.0}, {"*": Price(prompt=1)})
    headers = dict(desk.enter().headers())
    assert headers["x-ratelimit-limit-requests"] == "10"
    assert headers["x-ratelimit-remaining-requests"] == "9"
    assert headers["x-ratelimit-remaining-tokens"] == "5000"
    assert headers["x-ratelimit-remaining-budget-cost"] == "2"
    assert all(value.endswith("s") for name, value in headers.items() if "-reset-" in name)


def test_nothing_is_kept_for_a_key_without_limits() -> None:
    assert CallerLimits.of("key", KeyLimits()) is None


def test_lines_of_batches_are_held_by_budgets_and_not_by_rates() -> None:
    limits = CallerLimits.of("key", KeyLimits(requests=1, tokens=1, concurrency=1, budget_tokens=10))
    assert limits is not None
    budgets = limits.budgets()
    assert budgets is not None
    assert [meter.quantity for meter in budgets.meters] == [Quantity.BUDGET_TOKENS]
    assert budgets.concurrency is None


def test_a_body_with_too_many_messages_or_tools_is_named_by_its_field() -> None:
    limits = RequestLimits(messages=2, tools=1)
    assert too_many({"messages": [{}] * 2, "tools": [{}], "input": "x" * 99}, limits) is None
    assert too_many({"prompt": [1] * 70_000}, limits) is None, "they are the tokens of one"
    for body, field_name in (
        ({"messages": [{}] * 3}, "messages"),
        ({"input": [0] * 3}, "input"),
        ({"tools": [0] * 2}, "tools"),
        ({"functions": [0] * 2}, "functions"),
        ({"prompt": [""] * 65_537}, "prompt"),
    ):
        failure = too_many(body, limits)
        assert failure is not None
        assert (failure.status, failure.param) == (400, field_name)
