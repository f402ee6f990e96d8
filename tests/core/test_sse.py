"""Laws of cutting and reading server-sent events."""

from __future__ import annotations

import itertools
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.sse import DONE, EventSplitter, EventTooLong, data_of, event

LINES = st.sampled_from(
    [b"data: {}", b"data:x", b"data", b": ping", b"event: error", b"", b"id: 1", "data: é".encode()]
)
ENDS = st.sampled_from([b"\n", b"\r", b"\r\n"])
STREAMS = st.lists(st.tuples(LINES, ENDS), max_size=12).map(lambda parts: b"".join(a + b for a, b in parts))


def cut(stream: bytes, at: list[int]) -> list[bytes]:
    bounds = [0, *sorted(at), len(stream)]
    return [stream[a:b] for a, b in itertools.pairwise(bounds)]


def events_of(chunks: list[bytes]) -> tuple[list[bytes], bytes]:
    splitter = EventSplitter()
    return [event for chunk in chunks for event in splitter.feed(chunk)], splitter.rest()


@given(STREAMS, st.lists(st.integers(0, 60), max_size=8))
def test_how_a_stream_is_cut_into_chunks_makes_no_difference(stream: bytes, at: list[int]) -> None:
    whole = events_of([stream])
    assert events_of(cut(stream, at)) == whole
    assert events_of([stream[i : i + 1] for i in range(len(stream))]) == whole


@given(STREAMS, st.lists(st.integers(0, 60), max_size=8))
def test_no_byte_is_lost_or_changed(stream: bytes, at: list[int]) -> None:
    events, rest = events_of(cut(stream, at))
    assert b"".join(events) + rest == stream


def lines_by_the_standard(stream: bytes) -> list[bytes]:
    return stream.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")


@given(STREAMS)
def test_events_carry_the_data_that_the_standard_says(stream: bytes) -> None:
    expected: list[bytes] = []
    data: list[bytes] = []
    for line in lines_by_the_standard(stream + b"\n\n")[:-1]:
        if not line and data:
            expected.append(b"\n".join(data))
            data = []
        elif line == b"data" or line.startswith(b"data:"):
            data.append(line[5:].removeprefix(b" "))
    events, rest = events_of([stream + b"\n\n"])
    assert [got for got in map(data_of, events) if got is not None] == expected
    assert data_of(rest) is None


def test_a_chunk_that_is_one_event_is_passed_on_as_the_same_object() -> None:
    chunk = b'data: {"choices":[]}\n\n'
    assert EventSplitter().feed(chunk)[0] is chunk


@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n", b"\n\r\n", b"\r\n\n"])
def test_an_event_is_complete_with_its_last_byte_unless_that_is_a_lone_cr(end: bytes) -> None:
    assert EventSplitter().feed(b"data: x" + end) == [b"data: x" + end]


def test_a_final_cr_waits_because_it_may_be_half_of_a_crlf() -> None:
    splitter = EventSplitter()
    assert splitter.feed(b"data: x\r\r") == []
    assert splitter.feed(b"\ndata: y\n\n") == [b"data: x\r\r\n", b"data: y\n\n"]


def test_an_endless_event_is_refused() -> None:
    splitter = EventSplitter(limit_bytes=100)
    assert splitter.feed(b"data: " + b"x" * 90) == []
    with pytest.raises(EventTooLong, match="longer than 100 bytes"):
        splitter.feed(b"x" * 10)


def test_a_long_event_in_many_chunks_is_scanned_once() -> None:
    splitter = EventSplitter()
    chunk = b"x" * 4096
    started = time.process_time()
    for _ in range(2000):
        splitter.feed(chunk)
    # Scanning all of it again for each chunk would take minutes.
    assert time.process_time() - started < 5
    assert len(splitter.feed(b"\n\n")[0]) == 2000 * 4096 + 2


def test_written_events_are_read_back() -> None:
    assert data_of(event(b"{}")) == b"{}"
    assert event(b"{}", "ping") == b"event: ping\ndata: {}\n\n"
    assert data_of(event(b"{}", "ping")) == b"{}"
    assert data_of(DONE) == b"[DONE]"
    assert data_of(b": ping\n\n") is None
