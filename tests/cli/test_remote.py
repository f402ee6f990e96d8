"""Laws of asking a running gateway from the command line."""

from __future__ import annotations

from typing import cast

import pytest

from gateway.cli.remote import NoPage, base_of, page
from gateway.core.transport import Upstream


@pytest.mark.parametrize(
    "written", ["127.0.0.1:8080", "http://127.0.0.1:8080", "http://127.0.0.1:8080/", "http://127.0.0.1:8080/v1"]
)
def test_a_gateway_is_found_however_its_address_is_written(written: str) -> None:
    assert base_of(written) == "http://127.0.0.1:8080"


class Refusing:
    """A gateway that accepts no key."""

    status = 401

    async def call(self, *_request: object) -> Refusing:
        return self

    async def read(self, _max_bytes: int) -> bytes:
        return b"{}"


@pytest.mark.parametrize(("key", "said"), [("", "asks for a key: --key"), ("wrong", "does not accept this key")])
async def test_a_wrong_key_is_told_from_a_missing_one(key: str, said: str) -> None:
    with pytest.raises(NoPage, match=said):
        await page(cast(Upstream, Refusing()), "127.0.0.1:8080", "/v1/turngate/live", key, 1.0)
