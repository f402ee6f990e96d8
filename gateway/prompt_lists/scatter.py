"""Scatters a list of prompts over the fleet: cuts it into parts, and sends each part until it has its answer."""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import merge

import orjson

from gateway.access.keys import Caller
from gateway.core import fields, sse
from gateway.core.errors import Failure, Outcome, Refused
from gateway.core.fields import Json
from gateway.core.json_edit import members_of, splice
from gateway.core.slices import Slices, Steps
from gateway.core.transport import Handler, HeaderList, Responder
from gateway.dialects.base import Prompt
from gateway.dialects.completions import CHARS_PER_TOKEN, common_prefix, num_chars
from gateway.exchange import Exchange, Payload
from gateway.prompt_lists.gather import (
    PartFailed,
    PartRequest,
    PromptPart,
    Sink,
    StreamedAnswer,
    Template,
    WholeAnswer,
)
from gateway.request.answer import SSE_HEADERS
from gateway.request.inprocess import OVERLOADED, Continuation, again_in_s
from policies.fleet import FleetView

APART = ("x-turngate-prompt-errors", "separate")
"""With this header a prompt without an answer fails alone. Without it the request fails, as in OpenAI's API."""
ATTEMPTS = 8
"""Attempts of one part. Each tries as many replicas as `limits.attempts` says."""
SLOTS_PER_PROMPT = 16
"""A part has one prompt for so many slots of a replica. Small parts keep replicas equally busy up to the end, but
each costs about two milliseconds here."""
MOST_PROMPTS = 64
"""Prompts of one part."""
CAPACITY_SHARE = 8
"""A part fills at most one CAPACITY_SHARE-th of the smallest KV pool."""
SENT_PER_SLOT = 2
"""Prompts in flight for each slot. Some prompts of a part end long before its last one."""
HELD_BACK = 1 / 3
"""Share of a list that is not sent at first, so that the engine that is done sooner gets more of it."""
MOST_BESIDE_BYTES = 2**18
"""Bytes of a body beside its prompts, which each part repeats. A list with more goes to one engine, whole."""
JSON_TYPE = ("Content-Type", "application/json")
_OWN = ("x-turngate-session", "x-turngate-parent", "x-turngate-final", "x-turngate-remaining-turns")
_ONE_CALL = (("x-turngate-final", "1"), ("x-turngate-remaining-turns", "0"))
_NOT_SENT_ON = frozenset((*_OWN, "x-request-id", "content-length"))
_CAN_BE_ONE_PROMPT = range(400, 429)
"""Statuses of a part whose cause may be one prompt in it."""


@dataclass(frozen=True, slots=True)
class ListShape:
    """The size and the number of the parts of a list."""

    max_prompts: int
    """Prompts of one part."""
    max_chars: int
    parts_at_once: int

    @staticmethod
    def of(view: FleetView, n: int) -> ListShape:
        """Choose the shape for a fleet. `n`: answers to each prompt."""
        replicas = [replica for replica in view.replicas if replica.is_healthy]
        slots = [replica.assumed_slots for replica in replicas] or [1]
        tokens = min((r.capacity_tokens for r in replicas if r.capacity_tokens is not None), default=2**20)
        max_prompts = max(1, min(MOST_PROMPTS, min(slots) // SLOTS_PER_PROMPT // n))
        parts_at_once = math.ceil(SENT_PER_SLOT * sum(slots) / (max_prompts * n))
        return ListShape(
            max_prompts, CHARS_PER_TOKEN * tokens // CAPACITY_SHARE, max(2 * len(slots), parts_at_once)
        )


_STEP_PROMPTS, _STEP_CHARS = 1_024, 256 * 1024
"""Prompts, and characters of them, that are sorted or compared in one step."""


def cut(prompts: Sequence[Prompt], max_prompts: int, max_chars: int) -> Steps[list[PromptPart]]:
    """Return parts of the prompts, in the order that puts common prefixes side by side. A part has at most
    `max_prompts`, and at most `max_chars`, where common prefixes of neighbours count once; always one prompt."""
    runs: list[list[int]] = []
    for run in _spans(prompts, range(len(prompts))):
        runs.append(sorted(run, key=prompts.__getitem__))
        yield
    parts: list[PromptPart] = []
    part: list[int] = []
    chars = 0
    for span in _spans(prompts, merge(*runs, key=prompts.__getitem__)):
        for index in span:
            prompt = prompts[index]
            own_chars = num_chars(prompt) - (num_chars(common_prefix(prompts[part[-1]], prompt)) if part else 0)
            if part and (len(part) == max_prompts or chars + own_chars > max_chars):
                parts.append(_part(prompts, part))
                part, chars, own_chars = [], 0, num_chars(prompt)
            part.append(index)
            chars += own_chars
        yield
    if part:
        parts.append(_part(prompts, part))
    return parts


def _spans(prompts: Sequence[Prompt], indexes: Iterable[int]) -> Iterator[list[int]]:
    """Yield the indexes in lists that are short enough for one step."""
    span: list[int] = []
    chars = 0
    for index in indexes:
        span.append(index)
        chars += num_chars(prompts[index])
        if len(span) == _STEP_PROMPTS or chars >= _STEP_CHARS:
            yield span
            span, chars = [], 0
    if span:
        yield span


def _part(prompts: Sequence[Prompt], indexes: list[int]) -> PromptPart:
    return PromptPart(tuple(indexes), tuple(prompts[index] for index in indexes))


@dataclass(frozen=True, slots=True)
class PromptListHandler:
    """Answers requests with a list of prompts. It keeps nothing between two requests."""

    view: Callable[[], FleetView]
    headers: Callable[[Exchange], HeaderList]
    """Returns the headers of an answer for its client."""
    slices: Slices

    def takes(self, exchange: Exchange) -> bool:
        """Whether a request is a list to cut. One prompt, and a list that makes one part, pass untouched."""
        if (
            isinstance(exchange.request, PartRequest)
            or (prompts := exchange.dialect.prompts(exchange.payload.body)) is None
        ):
            return False
        shape = ListShape.of(self.view(), _n(exchange.payload.body))
        is_cut = len(prompts) > shape.max_prompts or _fails_apart(exchange)
        return is_cut and _beside_bytes(exchange.payload) <= MOST_BESIDE_BYTES

    async def answer(self, exchange: Exchange, responder: Responder, handle: Handler, caller: Caller) -> None:
        """Answer a list. `handle` answers a part. Raises Refused."""
        prompts, n = exchange.dialect.prompts(exchange.payload.body), _n(exchange.payload.body)
        assert prompts is not None
        shape = ListShape.of(self.view(), n)
        parts = await self.slices.run(cut(prompts, shape.max_prompts, shape.max_chars))
        exchange.note(f"{len(prompts)} prompts in {len(parts)} parts")
        frame: Json = {"id": f"cmpl-{exchange.id}", "object": "text_completion", "created": int(time.time())}
        if exchange.payload.wants_stream:
            await self._stream(exchange, responder, handle, caller, parts, shape, frame)
            return
        sink = WholeAnswer(handle, n)
        await _send_all(exchange, sink, caller, parts, shape)
        frame["model"] = sink.choices.frame.get("model", exchange.payload.engine_model)
        await responder.reply(200, [JSON_TYPE, *self.headers(exchange)], sink.choices.body(frame))

    async def _stream(
        self,
        exchange: Exchange,
        responder: Responder,
        handle: Handler,
        caller: Caller,
        parts: list[PromptPart],
        shape: ListShape,
        frame: Json,
    ) -> None:
        starting = asyncio.Lock()

        async def write(data: bytes) -> None:
            async with starting:
                if not responder.has_started:
                    await responder.open_stream(200, [*SSE_HEADERS, *self.headers(exchange)])
            await responder.write(data)

        sink = StreamedAnswer(
            handle, _n(exchange.payload.body), frame | {"model": exchange.payload.engine_model}, write
        )
        await _send_all(exchange, sink, caller, parts, shape)
        if exchange.payload.wants_usage:
            await write(sse.event(orjson.dumps({**sink.frame, "choices": [], "usage": sink.usage})))
        exchange.mark_delivered()
        await write(sse.DONE)
        await responder.end()


async def _send_all(
    exchange: Exchange, sink: Sink, caller: Caller, parts: list[PromptPart], shape: ListShape
) -> None:
    """Send all parts. Raises Refused with the first failure that ends the request."""
    sender = _PartSender(_template(exchange, caller), sink, _fails_apart(exchange))
    room = asyncio.Semaphore(min(shape.parts_at_once, math.ceil((1 - HELD_BACK) * len(parts))))

    async def ask(part: PromptPart) -> None:
        try:
            await sender.answer(part)
        finally:
            room.release()

    async def ask_all() -> None:
        async with asyncio.TaskGroup() as group:
            for part in parts:
                await room.acquire()
                group.create_task(ask(part))
                await asyncio.sleep(0)  # hundreds that begin in one round of the loop would hold it

    # The frames of a group hold the errors whose tracebacks hold them.
    failed: Exception
    try:
        await ask_all()
        return
    except asyncio.CancelledError as error:
        raise error.with_traceback(None) from None
    except ExceptionGroup as errors:
        failed = errors.with_traceback(None).exceptions[0]
    try:
        raise failed.with_traceback(None)
    finally:
        del failed


class _PartSender:
    """Sends each part of one list until it has its answer."""

    def __init__(self, template: Template, sink: Sink, fails_apart: bool) -> None:
        self._template = template
        self._sink = sink
        self._fails_apart = fails_apart
        self._num_requests = 0

    async def answer(self, part: PromptPart) -> None:
        """Raises Refused, unless prompts fail apart."""
        num_failures = 0
        while True:
            self._num_requests += 1
            try:
                await self._sink.ask(part, self._template.request(part, self._num_requests))
                return
            except PartFailed as error:
                failed, part = error.with_traceback(None), error.left  # its frames hold it in turn
            num_failures += 1
            wait_s = self._again_in_s(failed, num_failures)
            if wait_s is None:
                break
            await asyncio.sleep(wait_s)
        if not self._fails_apart:
            raise Refused(_outcome(failed.failure), failed.failure)
        if len(part.indexes) > 1 and failed.failure.status in _CAN_BE_ONE_PROMPT:
            for half in part.halves():
                await self.answer(half)
            return
        for index in part.indexes:
            await self._sink.fail(index, failed.failure)

    def _again_in_s(self, failed: PartFailed, num_failures: int) -> float | None:
        if num_failures >= ATTEMPTS or failed.failure.code == "answer_changed":
            return None
        return again_in_s(failed.failure.status, failed.headers, num_failures, ATTEMPTS, random.random())  # noqa: S311


def _template(exchange: Exchange, caller: Caller) -> Template:
    request = exchange.request
    kept = [(name, value) for name, value in request.header_list if name.lower() not in _NOT_SENT_ON]
    payload = exchange.payload
    others = splice(payload.raw, payload.body, {}, ("prompt",), payload.places)
    comma = b"," if len(payload.body) > 1 else b""
    opening = others[: others.rindex(b"}")] + comma + b'"prompt":'
    return Template(exchange.id, [*_ONE_CALL, *kept], opening, Continuation(exchange.settings, caller))


def _outcome(failure: Failure) -> Outcome:
    if failure.status in OVERLOADED:
        return Outcome.ENGINE_REFUSED
    return Outcome.BAD_REQUEST if failure.status < 500 else Outcome.ENGINE_FAILED


def _beside_bytes(payload: Payload) -> int:
    """Return the size of a body without its prompts. For a small body, an upper bound."""
    raw = payload.raw
    if len(raw) <= MOST_BESIDE_BYTES:
        return len(raw)
    places = payload.places or members_of(raw)
    return len(raw) - sum(end - start for key, _, start, end in places if key == "prompt")


def _n(body: Json) -> int:
    return max(1, fields.count(body, "n") or 1)


def _fails_apart(exchange: Exchange) -> bool:
    name, value = APART
    return exchange.request.headers.get(name, "").strip().lower() == value
