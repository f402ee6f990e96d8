"""However much of a stream comes at once, others wait for a small part of it only."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from itertools import pairwise
from unittest.mock import patch

import orjson
import pytest

from benchmarks.fuzz.targets import FuzzedGateway
from gateway.request.inprocess import InProcessResponder
from gateway.request.stream_relay import StreamRelay
from gateway.request.upstream_response import STEP_BYTES, in_steps
from tests.fuzz.shapes import CHAT, NAMES, SHORT, SPOKEN, raw_of

USELESS = (b": " + b"wait " * 16 + b"\n\n") * 3_000


@pytest.fixture(autouse=True)
def logs_again() -> Iterator[None]:
    """The gateway of the fuzzer switches logging off."""
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("path", NAMES)
@pytest.mark.parametrize("is_first", [True, False])
def test_a_large_chunk_is_read_in_steps_and_none_of_it_is_lost(path: str, is_first: bool) -> None:
    spoken = SPOKEN[path](["Hello", "you"])
    *begun, end = spoken if not is_first else [b"", b"".join(spoken)]
    fed: list[int] = []
    written: list[bytes] = []
    feed = StreamRelay.feed

    def noted(relay: StreamRelay, chunk: bytes) -> bytes:
        fed.append(len(chunk))
        return feed(relay, chunk)

    async def write(responder: InProcessResponder, data: bytes) -> None:
        written.append(data)

    gateway = FuzzedGateway({"tools": {}})
    chunks = [*begun, USELESS + end]
    with patch.object(StreamRelay, "feed", noted), patch.object(InProcessResponder, "write", write):
        gateway.ask(path, raw_of(SHORT[path], stream=True), [b"\3\1" + b"\1".join(chunks)])
    gateway.close()
    assert max(fed) <= STEP_BYTES
    assert b"".join(written) == b"".join(chunks)


@pytest.mark.parametrize("num", [1, 40_000])
def test_an_answer_reads_the_same_whether_it_is_parsed_in_slices(num: int) -> None:
    choices = [{"index": n, "message": {"content": f"text {n}"}, "finish_reason": "stop"} for n in range(num)]
    whole = orjson.dumps({"id": "c", "object": "chat.completion", "choices": choices})
    gateway = FuzzedGateway({"tools": {}})
    answer = gateway.ask(CHAT, raw_of(SHORT[CHAT]), [b"\2\1" + whole])
    broken = gateway.ask(CHAT, raw_of(SHORT[CHAT]), [b"\2\1" + whole[:-1]] * 3)
    gateway.close()
    assert (answer.status, answer.body) == (200, whole)
    assert broken.status == 502


async def test_the_event_loop_goes_round_between_two_steps() -> None:
    num_rounds = 0

    async def other() -> None:
        nonlocal num_rounds
        while True:
            num_rounds += 1
            await asyncio.sleep(0)

    beside = asyncio.create_task(other())
    seen = [(part, num_rounds) async for part in in_steps(USELESS)]
    beside.cancel()
    assert b"".join(part for part, _ in seen) == USELESS
    assert all(later > before for (_, before), (_, later) in pairwise(seen))
