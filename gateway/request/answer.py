"""The loop of one turn: take a place, ask its replica, relay the answer; on a failure before that, another
replica.

Meanwhile the connection of a streaming client is kept: silence at first, then status 200 and keep-alive events.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from gateway.config.settings import Stream
from gateway.core.errors import ANSWERED, STATUS, Failure, Outcome, Refused
from gateway.core.transport import HeaderList, Responder
from gateway.exchange import AnswerRounds, Exchange, Payload
from gateway.request.engine_errors import Attempts, EngineFailed
from gateway.request.gate import TURNED_AWAY_S, Gate, Rejected, Ticket, TurnedAway, stopping
from gateway.request.model_call import Forward, ModelCall
from gateway.request.stored_responses import Home, Homes
from gateway.request.upstream_response import UpstreamResponse
from gateway.telemetry.observer import Observer
from policies.types import COMPLETE, Dispatch, Ending, Refusal, ReplicaId, Turn

T = TypeVar("T")

SSE_HEADERS = (("Content-Type", "text/event-stream; charset=utf-8"), ("Cache-Control", "no-cache"))


class Waiting:
    """One client that waits. Keep-alives are events with data, since comments reset neither Codex's nor
    langchain's timer (facts, clients 5). They go out before the engine's first byte, or between two model calls
    of one answer, and never into an event stream that an engine has begun."""

    def __init__(
        self,
        exchange: Exchange,
        responder: Responder,
        settings: Stream,
        clock: Callable[[], float],
        headers: Callable[[Exchange], HeaderList],
    ) -> None:
        self._exchange = exchange
        self._responder = responder
        self._settings = settings
        self._clock = clock
        self._headers = headers
        self._silent_until = exchange.timings.received_at + settings.silent_queue_s

    @property
    def is_silent(self) -> bool:
        """Whether nothing has been sent, so that a refusal can still be an HTTP status."""
        return not self._responder.has_started

    @property
    def patience_s(self) -> float:
        """How long the client may still stay without an event."""
        return max(0.0, self._silent_until - self._clock())

    def note_output(self) -> None:
        """Count the time from now on: the client was sent another event just now."""
        if self._responder.has_started:
            self._silent_until = self._clock() + self._settings.keep_alive_s

    async def speak(self) -> None:
        """Send one keep-alive event, after status 200 if it is the first."""
        event = self._keep_alive()  # made before the first await, so that all events of the engine come behind it
        if not self._responder.has_started:
            await self._responder.open_stream(200, [*SSE_HEADERS, *self._headers(self._exchange)])
        await self._responder.write(event)
        self._silent_until = self._clock() + self._settings.keep_alive_s

    def _keep_alive(self) -> bytes:
        exchange, loop = self._exchange, self._exchange.loop
        named = exchange.give_id(), exchange.payload.engine_model, int(time.time())
        if loop is not None:
            return loop.answer.keep_alive(*named, loop.client_body)
        if exchange.opening is None:
            exchange.opening = exchange.dialect.opening(*named, exchange.payload.body)
        return exchange.opening.keep_alive()

    async def until(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of `work`; send keep-alives while it runs. The end of the caller ends it."""
        task = asyncio.create_task(work)
        try:
            while not (await asyncio.wait((task,), timeout=self.patience_s))[0]:
                await self.speak()
            return task.result()
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait((task,))
            if not task.cancelled():
                task.exception()  # read, since the event loop logs errors that stay unread
            del task  # it holds its error, whose traceback holds this frame


def error_event(exchange: Exchange, failure: Failure) -> bytes:
    """Return an event that fails a stream that has begun."""
    if exchange.loop is not None:
        return exchange.loop.answer.error_event(failure)
    return (exchange.opening or exchange.dialect).error_event(failure)


# ---- the loop of one turn

KEPT_PLACE = 2.0
"""A refused session keeps its place for this many times the wait in its `Retry-After`."""

_OUTCOME = {
    Refusal.TOO_LONG: Outcome.REJECTED_WAIT,
    Refusal.DEADLINE: Outcome.REJECTED_DEADLINE,
    Refusal.NO_REPLICA: Outcome.REJECTED_NO_ENGINE,
    Refusal.QUEUE_FULL: Outcome.REJECTED_QUEUE_FULL,
}
_WHY = {
    Refusal.TOO_LONG: "The engines' cache is full of other sessions, and the wait would be too long.",
    Refusal.DEADLINE: "It cannot be answered before its deadline.",
    Refusal.NO_REPLICA: "No healthy engine serves this model now.",
    Refusal.QUEUE_FULL: "The queue is full.",
}


class Deadline:
    """Fails the block with TimeoutError when its time is over. It is `asyncio.timeout` in half of its CPU time,
    since it is never moved."""

    __slots__ = ("_is_over", "_num_cancels", "_task", "_timer")

    def __init__(self, within_s: float) -> None:
        self._is_over = False
        self._task = cast("asyncio.Task[Any]", asyncio.current_task())
        self._num_cancels = self._task.cancelling()
        self._timer = asyncio.get_running_loop().call_later(max(0.0, within_s), self._end)

    def _end(self) -> None:
        self._is_over = True
        self._task.cancel()

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _traceback: object) -> None:
        self._timer.cancel()
        if self._is_over and self._task.uncancel() <= self._num_cancels and kind is asyncio.CancelledError:
            raise TimeoutError from error


@dataclass(frozen=True, slots=True)
class Answering:
    """Answers turns. It holds no state between two turns."""

    gate: Gate
    forward: Forward
    observer: Observer
    clock: Callable[[], float]
    homes: Homes

    async def answer(self, turn: Turn, exchange: Exchange, responder: Responder) -> Outcome:
        """Answer a turn, however long that takes. Return how the answer went.

        Raises Refused when no answer has begun; `responder.has_started` then says whether the client already
        has status 200 and keep-alives.
        """
        answer = TurnAnswer(self, exchange, responder)
        if exchange.payload.wants_stream:
            return await answer.give(turn)
        deadline_s = exchange.settings.plain_deadline_s
        try:
            with Deadline(deadline_s - (self.clock() - exchange.timings.received_at)):
                return await answer.give(turn)
        except TimeoutError:
            if exchange.timings.leased_at is None:
                raise _refused(Refusal.TOO_LONG, turn.max_wait_s) from None
            text = f"No answer within {deadline_s:.0f} s; ask for a stream, which is kept alive."
            raise Refused(Outcome.ENGINE_FAILED, Failure(504, "server_error", text)) from None


class TurnAnswer:
    """The answer of one turn to its client: one model call, or rounds of them where tools of the gateway are
    called."""

    __slots__ = ("_answering", "_clock", "_exchange", "_headers", "_is_stream", "_responder", "_waiting")

    def __init__(self, answering: Answering, exchange: Exchange, responder: Responder) -> None:
        self._answering, self._exchange, self._responder = answering, exchange, responder
        self._clock, self._headers = answering.clock, answering.observer.receipt_headers
        self._is_stream = exchange.payload.wants_stream
        self._waiting = Waiting(exchange, responder, exchange.settings.stream, self._clock, self._headers)

    async def give(self, turn: Turn) -> Outcome:
        """Answer the turn. Raises Refused."""
        loop = self._exchange.loop
        if loop is None:
            answer = await self._model_call(turn, self._exchange.payload)
        else:
            answer = await self._rounds(turn, loop)
        await answer.finish(self._responder, self._headers)
        assert answer.outcome is not None, "the answer was relayed"
        return answer.outcome

    async def _rounds(self, turn: Turn, loop: AnswerRounds) -> UpstreamResponse:
        """Repeat model calls until one calls no tool of the gateway. Return the last answer. The slot is free
        while tools run."""
        exchange = self._exchange
        async with loop:
            while True:
                answer = await self._model_call(turn, loop.payload)
                if answer.outcome is not ANSWERED:
                    return answer
                self._waiting.note_output()
                exchange.tools_at.append(self._clock())
                goes_on = await self._kept_alive(loop.goes_on())
                exchange.tools_at.append(self._clock())
                exchange.spent.saw_tools(exchange.tools_at[-1] - exchange.tools_at[-2])
                if not goes_on:
                    return answer
                self._answering.observer.round_ended(exchange)
                turn = loop.next_turn(turn)

    async def _model_call(self, turn: Turn, payload: Payload) -> UpstreamResponse:
        """Return the answer of one model call, relayed to its end, after as many attempts as it takes."""
        exchange = self._exchange
        attempts = Attempts(turn, exchange.settings.limits.attempts, random.random)
        while True:
            failed: Refused
            try:
                return await self._attempt(attempts, payload)
            except TurnedAway:
                raise stopping(TURNED_AWAY_S) from None
            except Rejected as rejected:
                failed = attempts.failed or _refused(rejected.refusal, rejected.retry_after_s)
                may_wait = rejected.refusal is not Refusal.DEADLINE
            except EngineFailed as error:
                if not error.try_another:
                    raise
                if attempts.elsewhere(self._failed(error), error, self._clock()):
                    continue
                failed, may_wait = error, True
            is_committed = not self._waiting.is_silent or bool(exchange.rounds)
            if not may_wait or not attempts.later(self._clock(), is_committed):
                try:
                    raise failed from None
                finally:  # its traceback holds this frame
                    del failed, attempts
            exchange.note("no engine was left for now: it went back to the queue")

    async def _attempt(self, attempts: Attempts, payload: Payload) -> UpstreamResponse:
        """Ask one replica. The slot is given back when the engine has finished, which may be before the client has
        read all. Raises Rejected, TurnedAway, EngineFailed."""
        answering, exchange, turn = self._answering, self._exchange, attempts.turn
        entered_at = self._clock()
        with answering.gate.ticket(turn, has_begun=bool(exchange.rounds)) as ticket:
            dispatch = await self._granted(turn, ticket, entered_at)
            leased_at = self._clock()
            if exchange.timings.leased_at is None:
                exchange.timings.leased_at = leased_at
            with ModelCall(answering.forward, exchange, payload, dispatch, attempts.count()) as call:
                answer = await self._begun(ticket, call, leased_at)
                ticket.first_byte()
                self._remember(dispatch)
                if exchange.timings.first_byte_at is None:
                    exchange.timings.first_byte_at = self._clock()
                try:
                    await answer.relay(self._responder, self._headers)
                except (asyncio.CancelledError, ConnectionError):
                    if exchange.is_delivered:
                        _leave(ticket, exchange, COMPLETE)
                    raise
                finally:
                    if (spent := ticket.engine_time(exchange.reply.usage, not self._is_stream)) is not None:
                        exchange.spent.saw_engine(spent)
            self._remember(dispatch)
            is_answered = answer.outcome is ANSWERED
            _leave(ticket, exchange, COMPLETE if is_answered else Ending.FAILED)
            return answer

    async def _begun(self, ticket: Ticket, call: ModelCall, leased_at: float) -> UpstreamResponse:
        """Return the answer of a call, begun. Raises EngineFailed."""
        exchange = self._exchange
        try:
            return await self._kept_alive(call.begin())
        except EngineFailed as error:
            exchange.spent.saw_failure(self._clock() - leased_at)
            ticket.leave_as(error.ending, exchange.reply.usage)
            raise
        except (asyncio.CancelledError, ConnectionError):
            exchange.spent.saw_failure(self._clock() - leased_at)
            raise

    def _kept_alive(self, work: Coroutine[Any, Any, T]) -> Coroutine[Any, Any, T]:
        """Return `work`, with keep-alives for a client that wants a stream."""
        return self._waiting.until(work) if self._is_stream else work

    def _remember(self, dispatch: Dispatch) -> None:
        """Keep where a stored answer is, before its client can ask for it. Most engines send its id first of
        all."""
        exchange = self._exchange
        if exchange.dialect.stores_answers and exchange.reply.id:
            home = Home(dispatch.replica_id, exchange.reply.id)
            self._answering.homes.remember(exchange.caller.tenant, exchange.answer_id, home)

    async def _granted(self, turn: Turn, ticket: Ticket, entered_at: float) -> Dispatch:
        """Return the replica, and count the wait for it, however it ends. Raises Rejected, TurnedAway, Refused."""
        dispatch: Dispatch | None = None
        try:
            dispatch = ticket.granted() or await self._waited(turn, ticket)
            return dispatch
        finally:
            waited = dispatch.waited if dispatch is not None else None
            until = self._clock() if ticket.decided_at is None else ticket.decided_at
            self._exchange.spent.saw_gate(until - entered_at, waited)

    async def _waited(self, turn: Turn, ticket: Ticket) -> Dispatch:
        """Wait for a replica, with keep-alives. Raises Rejected, TurnedAway, Refused."""
        waiting = self._waiting
        await ticket.decision(waiting.patience_s)
        if ticket.granted() is None and waiting.is_silent:
            self._refuse_if_hopeless(turn, ticket)
        while (dispatch := ticket.granted()) is None:
            if self._is_stream:
                await waiting.speak()
            await ticket.decision(waiting.patience_s if self._is_stream else None)
        return dispatch

    def _refuse_if_hopeless(self, turn: Turn, ticket: Ticket) -> None:
        """Estimate the wait for the second and last time, since a later refusal cannot be an HTTP status. Raises
        Refused."""
        more_s = ticket.expected_wait_s()
        if self._clock() - self._exchange.timings.received_at + more_s > turn.max_wait_s:
            ticket.give_up(KEPT_PLACE * more_s)
            raise _refused(Refusal.TOO_LONG, more_s)

    def _failed(self, error: EngineFailed) -> ReplicaId:
        """Return the replica that failed the call, and count the failure."""
        dispatch = self._exchange.dispatch
        assert dispatch is not None
        self._answering.observer.retried(error.outcome.value)
        self._exchange.note(f"{dispatch.replica_id} failed before its first byte: {error.failure.status}")
        return dispatch.replica_id


def _leave(ticket: Ticket, exchange: Exchange, ending: Ending) -> None:
    reply = exchange.reply
    if reply.served_by is not None:
        exchange.note(f"served by {reply.served_by}")
    tool_s = exchange.loop.tool_s() if exchange.loop is not None else None
    ticket.leave_as(ending, reply.usage, tuple(tool.name for tool in reply.tool_calls), tool_s)


def _refused(refusal: Refusal, retry_after_s: float) -> Refused:
    outcome = _OUTCOME[refusal]
    status = STATUS[outcome]
    kind = "rate_limit_error" if status == 429 else "server_error"
    text = f"{_WHY[refusal]} Try again in {math.ceil(retry_after_s)} s." if retry_after_s > 0 else _WHY[refusal]
    return Refused(outcome, Failure(status, kind, text, code=refusal.value, retry_after_s=retry_after_s))
