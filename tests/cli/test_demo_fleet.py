"""Laws of the demo's table and of the sentences under it."""

from __future__ import annotations

from gateway.cli.demo_fleet import Arm, SessionRecord, TurnRecord, conclusions, table


def arm(name: str, pool_tokens: int, mean_s: float, cached_tokens: int) -> Arm:
    turns = [
        TurnRecord(0, 0.0, 0.1, 0.2, mean_s, 1_000, cached_tokens),
        TurnRecord(1, 0.0, 0.1, 0.2, mean_s, 1_000),
    ]
    return Arm(name, pool_tokens, [SessionRecord("s", 0.0, turns)], 100)


def test_a_sentence_per_pair_says_what_the_gateway_changed_and_where_it_changed_nothing() -> None:
    pairs = [
        arm("straight", 500, 30.0, 0),
        arm("gateway", 500, 20.0, 900),
        arm("straight", 0, 10.0, 900),
        arm("gateway", 0, 10.1, 900),
    ]
    crowded, roomy = conclusions(pairs)
    assert crowded == (
        "With a KV pool of 500 tokens the mean session takes 20.0 s through the gateway, and 30.0 s without it;"
        " 1,000 tokens are computed again, and 1,900."
    )
    assert roomy == "On this engine the gateway changes nothing: the mean session takes 10.1 s either way."
    assert "0.67x" in table(pairs)
