"""What a sink takes of an engine's answer and what a reader gets are together all of it, in order."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.transports.fast.reply import FastReply

CHUNKS = st.lists(st.tuples(st.binary(min_size=1, max_size=3), st.booleans(), st.booleans()), max_size=20)
"""Each chunk, whether the sink takes what is offered then, and whether the reader runs behind it."""


class Connection:
    def resume(self) -> None: ...

    def abort(self) -> None: ...


@settings(deadline=None)
@given(CHUNKS)
def test_a_sink_and_a_reader_share_an_answer_without_loss_or_reordering(
    chunks: list[tuple[bytes, bool, bool]],
) -> None:
    async def answer() -> bytes:
        reply = FastReply(cast(Any, Connection()))
        got = bytearray()
        takes = True

        def sink(data: bytes) -> bool:
            if takes:
                got.extend(data)
            return takes

        async def read() -> None:
            while True:
                reply.push(sink)
                chunk = await anext(reply, None)
                if chunk is None:
                    return
                got.extend(chunk)

        async with asyncio.timeout(5), asyncio.TaskGroup() as tasks:
            tasks.create_task(read())
            for data, taken, runs in chunks:
                takes = taken
                reply.parts.append(data)
                reply.come()
                if runs:
                    await asyncio.sleep(0)
                    await asyncio.sleep(0)
            reply.finish()
        return bytes(got)

    assert asyncio.run(answer()) == b"".join(data for data, _, _ in chunks)
