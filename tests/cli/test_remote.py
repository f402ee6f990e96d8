"""Laws of asking a running gateway from the command line."""

from __future__ import annotations

import pytest

from gateway.cli.remote import base_of


@pytest.mark.parametrize(
    "written", ["127.0.0.1:8080", "http://127.0.0.1:8080", "http://127.0.0.1:8080/", "http://127.0.0.1:8080/v1"]
)
def test_a_gateway_is_found_however_its_address_is_written(written: str) -> None:
    assert base_of(written) == "http://127.0.0.1:8080"
