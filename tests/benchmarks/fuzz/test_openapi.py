"""A slice of `python -m benchmarks.fuzz.openapi`: every operation of the description."""

from __future__ import annotations

from benchmarks.fuzz.openapi import fuzz, gateway

NUM_EXAMPLES = 5
"""Of each operation, on top of those that its schema makes certain."""


def test_no_request_breaks_the_description_or_the_gateway() -> None:
    with gateway() as url:
        found = fuzz(url, NUM_EXAMPLES, seed=1)
    assert found.is_fine, found.output
    assert found.num_cases > 500
