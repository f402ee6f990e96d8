"""The event loop goes round while a large body is read, and what it means does not depend on that."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from typing import Any

import orjson
import pytest

from benchmarks.fuzz.targets import FuzzedGateway
from gateway.core.fields import Json
from gateway.core.pieces import PIECE_BYTES
from gateway.core.slices import is_large
from gateway.request.inprocess import InProcessRequest, InProcessResponder

CHAT, MESSAGES, RESPONSES, COMPLETIONS = "/v1/chat/completions", "/v1/messages", "/v1/responses", "/v1/completions"
TEXT = "A text of an agent. " * 50


@pytest.fixture
def gateway() -> Iterator[FuzzedGateway]:
    """Each look at the clock of its slices is a slice later, so that each step is a slice of its own."""
    gateway = FuzzedGateway({"tools": {}})
    looks = iter(range(10**9))
    gateway._app.parts.handler.slices._clock = lambda: float(next(looks))
    yield gateway
    gateway.close()
    logging.disable(logging.NOTSET)


def messages(num: int) -> list[Json]:
    return [{"role": ("user", "assistant")[at % 2], "content": f"{at} {TEXT}"} for at in range(num)]


def parts(num: int) -> list[Json]:
    return [{"role": "user", "content": [{"type": "text", "text": f"{at} {TEXT}"} for at in range(num)]}]


def tools(num: int) -> list[Json]:
    return [
        {"type": "function", "function": {"name": f"f{at}", "description": TEXT, "parameters": {"type": "object"}}}
        for at in range(num)
    ]


BODIES: dict[str, tuple[str, Json]] = {
    "chat: messages": (CHAT, {"messages": messages(2_000)}),
    "chat: parts": (CHAT, {"messages": parts(2_000)}),
    "chat: tools": (CHAT, {"messages": messages(400), "tools": tools(1_000)}),
    "messages: messages": (MESSAGES, {"max_tokens": 9, "messages": messages(2_000)}),
    "responses: items": (RESPONSES, {"input": messages(2_000)}),
    "completions: a prompt": (COMPLETIONS, {"prompt": "".join(f"<|im_start|>user\n{TEXT}" for _ in range(2_000))}),
    "completions: tokens": (COMPLETIONS, {"prompt": list(range(300_000))}),
}


async def rounds_of(gateway: FuzzedGateway, path: str, raw: bytes) -> int:
    """Return how often the loop goes round while a request is answered."""
    responder, rounds = InProcessResponder(), 0
    asking = asyncio.ensure_future(
        gateway._app.parts.handler.handle(InProcessRequest(path, [("Host", "h")], raw), responder)
    )
    while not asking.done():
        await asyncio.sleep(0)
        rounds += 1
    asking.result()
    assert responder.status == 200, responder.body
    return rounds


@pytest.mark.parametrize("name", BODIES)
def test_the_loop_goes_round_for_each_piece_of_a_large_body(gateway: FuzzedGateway, name: str) -> None:
    path, body = BODIES[name]
    raw = orjson.dumps({"model": "m"} | body)
    assert is_large(raw)
    small = orjson.dumps({"model": "m", "max_tokens": 9, "messages": messages(1), "input": "a", "prompt": "a"})
    run: Any = gateway._loop.run_until_complete
    run(rounds_of(gateway, path, small))  # the first one waits for what the gateway begins with
    base = run(rounds_of(gateway, path, small))
    assert run(rounds_of(gateway, path, raw)) > max(base + 4, len(raw) / PIECE_BYTES)
    assert gateway._app.parts.handler.slices.names == {}


@pytest.mark.parametrize("at", range(0, 60, 7))
def test_a_large_body_that_is_cancelled_while_it_is_read_leaves_nothing(gateway: FuzzedGateway, at: int) -> None:
    parts_ = gateway._app.parts
    raw = orjson.dumps({"model": "m", "messages": messages(2_000)})
    headers = [("Host", "h"), ("X-Session-Id", "ses_1")]

    async def cancelled() -> None:
        asking = asyncio.ensure_future(
            parts_.handler.handle(InProcessRequest(CHAT, headers, raw), InProcessResponder())
        )
        for _ in range(at):
            await asyncio.sleep(0)
        asking.cancel()
        await asyncio.wait((asking,))

    gateway._loop.run_until_complete(cancelled())
    slices = parts_.handler.slices
    assert slices.names == {}
    assert not slices._turnstile.locked()
    assert not sum(replica.slots_used for replica in parts_.gate.replica_view().replicas)
    assert gateway.ask(CHAT, raw, []).status == 200


def test_turns_of_one_session_are_recognised_in_the_order_of_their_arrival(
    gateway: FuzzedGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A small one that comes while a large one of its session is read waits; another session's does not."""
    handler, order = gateway._app.parts.handler, list[str]()
    recognise = handler.turns.identity.recognise

    def recorded(exchange: Any, *more: Any) -> Any:
        order.append(f"{exchange.request.headers.get('x-session-id')}: {len(exchange.payload.body['messages'])}")
        return recognise(exchange, *more)

    monkeypatch.setattr(handler.turns.identity, "recognise", recorded)

    def ask(session: str, num: int) -> Any:
        raw = orjson.dumps({"model": "m", "messages": messages(num)})
        request = InProcessRequest(CHAT, [("Host", "h"), ("X-Session-Id", session)], raw)
        return handler.handle(request, InProcessResponder())

    async def all_at_once() -> None:
        await asyncio.gather(ask("ses_a", 2_000), ask("ses_a", 3), ask("ses_b", 2), ask("ses_a", 2_002))

    gateway._loop.run_until_complete(all_at_once())
    assert order == ["ses_b: 2", "ses_a: 2000", "ses_a: 3", "ses_a: 2002"]
