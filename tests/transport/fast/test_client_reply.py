"""What a sink takes of an engine's answer and what a reader gets are together all of it, in order."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st

from gateway.transport.fast.client import FastReply
from tests.deadline import DEADLINE_S

PARTS = st.lists(st.binary(min_size=1, max_size=3), min_size=1, max_size=3)
READS = st.lists(st.tuples(PARTS, st.integers(0, 3), st.booleans()), max_size=20)
"""Chunks that come at once, how many of them the sink takes at most, and whether the reader runs after them."""


class Connection:
    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()

    def resume(self) -> None: ...

    def abort(self) -> None: ...


@given(READS)
def test_a_sink_and_a_reader_share_an_answer_without_loss_or_reordering(
    reads: list[tuple[list[bytes], int, bool]],
) -> None:
    async def answer() -> bytes:
        reply = FastReply(cast(Any, Connection()))
        got = bytearray()
        takes = 0

        def sink(parts: list[bytes]) -> int:
            taken = parts[:takes]
            got.extend(b"".join(taken))
            return len(taken)

        async def read() -> None:
            while True:
                reply.push(sink)
                chunk = await anext(reply, None)
                if chunk is None:
                    return
                got.extend(chunk)

        async with asyncio.timeout(DEADLINE_S), asyncio.TaskGroup() as tasks:
            tasks.create_task(read())
            for parts, most, runs in reads:
                takes = most
                reply.take(parts, len(b"".join(parts)))
                if runs:
                    await asyncio.sleep(0)
                    await asyncio.sleep(0)
            reply.finish()
        return bytes(got)

    assert asyncio.run(answer()) == b"".join(part for parts, _, _ in reads for part in parts)
