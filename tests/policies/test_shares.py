from __future__ import annotations

import pytest

from policies.shares import HALF_LIFE_S, Shares


def test_what_a_tenant_got_counts_half_after_a_half_life() -> None:
    shares = Shares()
    shares.served("a", 1_000, 0.0)
    assert shares.attained("a", HALF_LIFE_S) == pytest.approx(500)
    shares.served("a", 100, HALF_LIFE_S)
    assert shares.attained("a", HALF_LIFE_S) == pytest.approx(600)


def test_silence_earns_no_credit() -> None:
    shares = Shares()
    shares.served("a", 1_000, 0.0)
    shares.served("b", 3_000, 0.0)
    shares.joined("new", ["a", "b"], 0.0)
    assert shares.attained("new", 0.0) == 1_000


def test_joining_an_empty_line_changes_nothing() -> None:
    shares = Shares()
    shares.served("a", 1_000, 0.0)
    shares.joined("a", [], 0.0)
    assert shares.attained("a", 0.0) == 1_000
