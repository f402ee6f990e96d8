"""What a body takes in memory while it comes."""

from __future__ import annotations

import sys
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.transport.fast.request import FastRequest


class Source:
    remote = ""

    def pause_body(self) -> None: ...
    def resume_body(self) -> None: ...
    def send_continue(self) -> None: ...


def request() -> FastRequest:
    return FastRequest(Source(), "POST", "/", "1.1", [], {}, True)


@pytest.mark.parametrize("size", [1, 2, 100, 5_000])
def test_a_body_in_tiny_chunks_is_held_in_little_more_than_its_size(size: int) -> None:
    held, num = request(), 2_000_000 // size
    for at in range(num):
        held.feed(at.to_bytes(4, "big") * (size // 4) if size >= 4 else bytes([at % 251]) * size)
    parts = cast(Any, held)._parts
    assert sum(map(sys.getsizeof, parts)) + sys.getsizeof(parts) < 1.5 * num * size


@given(st.lists(st.sampled_from([b"a", b"bc", b"d" * 1_024, b"e" * 3_000]), max_size=12))
async def test_the_pieces_of_a_body_are_one_in_their_order(pieces: list[bytes]) -> None:
    held = request()
    for piece in pieces:
        held.feed(piece)
    held.finish()
    body = await held.read(2**20)
    assert type(body) is bytes
    assert body == b"".join(pieces)
