"""Whoever waits is kept company, and what becomes of the work is never lost or left behind."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest

from gateway.config.settings import Stream
from gateway.dialects import BY_PATH
from gateway.exchange import Exchange, Timings
from gateway.request.answer import Waiting
from gateway.request.inprocess import InProcessRequest, InProcessResponder

PATH = "/v1/chat/completions"


class Gone(InProcessResponder):
    """Its client leaves when it is first spoken to; the work goes on a little while that is found out."""

    def __init__(self) -> None:
        super().__init__()
        self.is_asked = asyncio.Event()
        self.may_tell = asyncio.Event()

    async def open_stream(self, *_: Any) -> None:
        self.is_asked.set()
        await self.may_tell.wait()
        raise ConnectionResetError


def waiting(responder: InProcessResponder) -> Waiting:
    """Of a client that is spoken to at once."""
    request = InProcessRequest(PATH, [], b"{}")
    exchange = Exchange("1", request, BY_PATH[PATH], Timings(0.0))
    rules = Stream(silent_queue_s=0, keep_alive_s=0.001)
    return Waiting(exchange, responder, rules, lambda: 0.0, lambda _: [])


async def test_the_failure_of_work_whose_client_has_gone_is_no_surprise_in_the_log() -> None:
    unheard: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unheard.append(context))
    responder, has_failed = Gone(), asyncio.Event()

    async def work() -> None:
        await responder.is_asked.wait()
        has_failed.set()
        raise RuntimeError("the engine broke off")

    async def leaves() -> None:
        await has_failed.wait()
        responder.may_tell.set()

    leaving = asyncio.create_task(leaves())
    with pytest.raises(ConnectionResetError):
        await waiting(responder).until(work())
    await leaving
    gc.collect()
    assert unheard == []


async def test_the_failure_of_work_is_its_callers() -> None:
    async def work() -> None:
        raise RuntimeError("the engine broke off")

    with pytest.raises(RuntimeError, match="broke off"):
        await waiting(InProcessResponder()).until(work())


async def test_work_ends_with_whoever_waits_for_it() -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    caller = asyncio.create_task(waiting(InProcessResponder()).until(work()))
    await begun.wait()
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert ended.is_set()
