"""Requests from bytes, however the bytes are cut, and what a body takes in memory while it comes."""

from __future__ import annotations

import sys
import tracemalloc
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.transport.fast.request import COUNTED_BYTES, FastRequest, Place, RequestReader


class Source:
    remote = ""

    def pause_body(self) -> None: ...
    def resume_body(self) -> None: ...
    def send_continue(self) -> None: ...

    def fill(self, place: Place) -> None: ...

    def end_filling(self) -> None: ...


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


class Sink(Source):
    """Records what a reader finds."""

    def __init__(self) -> None:
        self.found: list[tuple[str, bytes, bool]] = []
        self.faults: list[str] = []

    def head_received(self, request: FastRequest) -> None: ...

    def request_received(self, request: FastRequest) -> None:
        body = b"".join(cast(Any, request)._parts)
        self.found.append((request.path, body, request.is_kept_alive))

    def read_failed(self, fault: str, request: FastRequest | None) -> None:
        self.faults.append(fault)


@st.composite
def on_the_wire(draw: st.DrawFn) -> bytes:
    """A request with a body around the length from which it is counted, or none, in each framing."""
    size = draw(st.sampled_from([0, 5, COUNTED_BYTES - 1, COUNTED_BYTES, COUNTED_BYTES + 1, 3 * COUNTED_BYTES]))
    body = bytes([draw(st.integers(97, 122))]) * size
    extra = draw(st.sampled_from(["", "", "", "Connection: close\r\n", "Connection: Upgrade\r\nUpgrade: h2c\r\n"]))
    head = f"POST /{size} HTTP/1.1\r\nHost: a\r\n{extra}"
    if draw(st.booleans()):
        return f"{head}Content-Length: {size}\r\n\r\n".encode() + body
    chunk = b"%x\r\n%b\r\n" % (size, body) if size else b""
    return f"{head}Transfer-Encoding: chunked\r\n\r\n".encode() + chunk + b"0\r\n\r\n"


@given(st.lists(on_the_wire(), min_size=1, max_size=4), st.lists(st.integers(0, 10**6), max_size=6))
def test_requests_are_the_same_however_their_bytes_are_cut(requests: list[bytes], cuts: list[int]) -> None:
    sent = b"".join(requests)
    at = sorted({cut % len(sent) for cut in cuts} | {0})
    whole, pieces = Sink(), Sink()
    RequestReader(whole).feed(sent)
    reader = RequestReader(pieces)
    for start, end in zip(at, [*at[1:], len(sent)], strict=True):
        reader.feed(sent[start:end])
    assert pieces.found == whole.found
    assert pieces.faults == whole.faults
    assert len(whole.found) >= 1


def test_what_follows_a_counted_body_is_read_as_the_next_request() -> None:
    sink = Sink()
    reader = RequestReader(sink)
    head = b"POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % COUNTED_BYTES
    reader.feed(head)
    reader.feed(b"x" * COUNTED_BYTES + b"no request\r\n\r\n")
    assert [len(body) for _, body, _ in sink.found] == [COUNTED_BYTES]
    assert len(sink.faults) == 1


@pytest.mark.parametrize("connection", ["close", "keep-alive"])
def test_a_body_of_known_length_is_counted_also_of_a_last_request(connection: str) -> None:
    sink = Sink()
    reader = RequestReader(sink)
    about = f"Host: a\r\nConnection: {connection}\r\nContent-Length: {COUNTED_BYTES}"
    reader.feed(f"POST /a HTTP/1.1\r\n{about}\r\n\r\n".encode())
    assert reader._incoming is not None
    assert reader._incoming.left_bytes == COUNTED_BYTES
    reader.feed(b"x" * COUNTED_BYTES)
    assert [(len(body), is_kept) for _, body, is_kept in sink.found] == [(COUNTED_BYTES, connection != "close")]
    reader.feed(b"POST /b HTTP/1.1\r\nHost: a\r\n\r\n")
    assert (len(sink.found), len(sink.faults)) == ((1, 1) if connection == "close" else (2, 0))


def test_the_memory_of_a_told_length_is_taken_once_and_with_the_first_byte() -> None:
    length = 4 * 2**20
    tracemalloc.start()
    try:
        place = Place(length, [b"first"])
        assert tracemalloc.get_traced_memory()[1] < 0.1 * length
        while place.rest:
            num_bytes = min(len(place.rest), 2**20)
            place.rest[:num_bytes] = bytes(num_bytes)
            place.advance(num_bytes)
        body = place.whole()
        assert tracemalloc.get_traced_memory()[1] < 1.5 * length
    finally:
        tracemalloc.stop()
    assert type(body) is bytes
    assert body == b"first".ljust(length, b"\0")


def test_what_is_wrong_after_an_upgrade_is_said() -> None:
    sink = Sink()
    upgrade = b"POST /a HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: h2c\r\nContent-Length: 0\r\n\r\n"
    RequestReader(sink).feed(upgrade + b"POST /b HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n" + b"more")
    assert len(sink.found) == 2
    assert not sink.faults[0].isdigit(), sink.faults
