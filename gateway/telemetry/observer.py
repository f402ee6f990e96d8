"""The end of every request: metrics, one log line, one receipt; and traces and the log of facts on the way."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from gateway.config.settings import TracingSettings as Section
from gateway.core.errors import ConfigError, EngineFault, Outcome
from gateway.core.fields import Json
from gateway.exchange import Exchange, Recognition, Trace
from gateway.telemetry.factlog import FactLog
from gateway.telemetry.metrics import Metrics
from gateway.telemetry.receipts import Receipts, overhead_s, queued_s, receipt, values_of
from policies.types import SIDE, Decision, Dispatch, Fact, ReplicaId


class Tracing(Protocol):
    """The traces of one gateway. Without it every call site is one comparison with None."""

    def trace(self, exchange: Exchange) -> Trace | None:
        """Return the trace of a request that begins. None: it is not traced."""
        ...

    def close(self) -> None:
        """Send the remaining spans. May block for some seconds."""
        ...


def tracing_of(section: Section, clock: Callable[[], float]) -> Tracing | None:
    """Return the configured tracing. None: traces are off. Raises ConfigError when the extra is not installed."""
    if section.endpoint is None:
        return None
    try:
        from gateway.telemetry.tracing_otel import OtelTracing, exporting
    except ImportError:
        raise ConfigError("tracing.endpoint needs OpenTelemetry: pip install 'turngate[otel]'") from None
    return OtelTracing(exporting(section.endpoint, section.service_name, section.share), clock)


LOG = logging.getLogger("turngate.request")

MAX_SESSIONS = 100_000
BLOCK_ROUNDING_TOKENS = 64
"""Engines cache whole blocks: a shortfall below the largest common block size is not a recomputation."""

TROUBLE = {Outcome.ENGINE_FAILED, Outcome.ENGINE_CUT, Outcome.GATEWAY_ERROR}


class Observer:
    """One per gateway; every call is synchronous and does not fail the request that it is about.

    `clock` is the monotonic clock of the exchanges.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        receipts: Receipts,
        facts: FactLog | None = None,
        tracing: Tracing | None = None,
    ) -> None:
        self.metrics = Metrics()
        self._clock = clock
        self._receipts = receipts
        self._facts = facts
        self._tracing = tracing
        self._recomputation = Recomputation()

    @property
    def receipt_bytes(self) -> int:
        """About the memory of all receipts."""
        return self._receipts.num_bytes

    def trace(self, exchange: Exchange) -> Trace | None:
        """Return the trace of an exchange that begins. None: it is not traced."""
        return self._tracing.trace(exchange) if self._tracing is not None else None

    def finished(self, exchange: Exchange) -> None:
        """Record an exchange that has ended. Call it exactly once per exchange."""
        assert exchange.end is not None
        outcome = exchange.end.outcome
        self._count(exchange, outcome)
        if exchange.trace is not None:
            exchange.trace.finished(exchange)
        values = values_of(exchange)
        if self._leaves_receipt(exchange):
            self._receipts.put(exchange.id, values)
        level = logging.WARNING if outcome in TROUBLE else logging.INFO
        if LOG.isEnabledFor(level):
            LOG.log(level, "request", extra={"fields": receipt(values)})

    def round_ended(self, exchange: Exchange) -> None:
        """Count a model call of an answer that goes on; `finished` counts the last."""
        recognition, dispatch = exchange.recognition, exchange.dispatch
        self._count_tokens(exchange)
        if recognition is not None and dispatch is not None:
            self.metrics.turns.add(1, recognition.kind, dispatch.reason)
            self._count_cache(exchange, recognition, dispatch)

    def record_decisions(self, fact: Fact, decisions: Sequence[Decision], now: float, took_s: float) -> None:
        """A `gate.Listener`: the Scheduler got a fact at `now` and took `took_s` to decide."""
        self.metrics.policy.observe(took_s)
        if self._facts is not None:
            self._facts.record(now, fact, decisions)

    def hinted(self, engine: str, hints: Iterable[str], result: str) -> None:
        """Count hints that were `sent`, `refused` by the engine, or `dropped` because the client may not give
        them."""
        for hint in hints:
            self.metrics.hints.add(1, engine, hint, result)

    def faulted(self, engine: str, fault: EngineFault) -> None:
        """Count a fault of an engine, whether or not a client noticed it."""
        self.metrics.faults.add(1, engine, fault)

    def retried(self, cause: str) -> None:
        """Count a repeated model call; `cause` is one word of a small set."""
        self.metrics.retries.add(1, cause)

    def limited(self, limit: str) -> None:
        """Count a refusal by this limit of a key."""
        self.metrics.limited.add(1, limit)

    def evicted(self, replica_id: ReplicaId, num_blocks: int, horizon_s: float | None) -> None:
        """Count blocks that an engine evicted; nine in ten had been idle for at least `horizon_s`."""
        self.metrics.kv_evicted_blocks.add(num_blocks, replica_id)
        if horizon_s is not None:
            self.metrics.kv_horizon(replica_id).set(horizon_s)

    def receipt(self, receipt_id: str, tenant: str | None) -> Json | None:
        """Return a receipt; None when this tenant has none. Tenant None: of any."""
        return self._receipts.get(receipt_id, tenant, self._clock())

    def receipts(self, wanted: str, tenant: str | None, most: int) -> list[Json]:
        """Return the last receipts of a session, an agent, or the session of a receipt; see `Receipts.of`."""
        return self._receipts.of(wanted, tenant, self._clock(), most)

    def receipt_headers(self, exchange: Exchange) -> list[tuple[str, str]]:
        """Return the headers that describe a request at the time when they go out."""
        headers = [("X-Turngate-Receipt", exchange.id)] if self._leaves_receipt(exchange) else []
        headers.append(("X-Request-Id", exchange.request_id or exchange.id))
        if (recognition := exchange.recognition) is not None:
            headers += [
                ("X-Turngate-Session", recognition.session_id),
                ("X-Turngate-Family", recognition.family_id),
            ]
        if (dispatch := exchange.dispatch) is not None:
            headers += [("X-Turngate-Engine", dispatch.replica_id), ("X-Turngate-Reason", dispatch.reason._value_)]
            queued = queued_s(exchange.timings)
            headers += [("X-Turngate-Queue-Ms", str(round((queued or 0.0) * 1000)))]
        if exchange.allowance is not None:
            headers += exchange.allowance.headers()
        return headers

    def forget_session(self, _tenant: str, session_id: str) -> None:
        self._recomputation.forget_session(session_id)

    def close(self) -> None:
        if self._tracing is not None:
            self._tracing.close()
        if self._facts is not None:
            self._facts.close()

    @staticmethod
    def _leaves_receipt(exchange: Exchange) -> bool:
        """Return whether the caller is known: without one, no tenant could read the receipt."""
        return bool(exchange.caller.tenant)

    def _count(self, exchange: Exchange, outcome: Outcome) -> None:
        metrics, times = self.metrics, exchange.timings
        metrics.outcomes.add(1, outcome, exchange.dialect.name)
        recognition, dispatch = exchange.recognition, exchange.dispatch
        self._count_tokens(exchange)
        if (overhead := overhead_s(times)) is not None:
            metrics.overhead.observe(overhead if overhead > 0.0 else 0.0)
        if recognition is None or dispatch is None:
            return
        metrics.turns.add(1, recognition.kind, dispatch.reason)
        waited_s = queued_s(times) or 0.0
        metrics.wait.observe(waited_s, dispatch.reason)
        metrics.tenant_wait.add(waited_s, exchange.caller.tenant)
        if times.first_byte_at is not None and exchange.payload.wants_stream:
            turn = "side" if recognition.kind is SIDE else "later" if recognition.turn_index else "first"
            metrics.ttft.observe(times.first_byte_at - times.received_at, turn)
        self._count_cache(exchange, recognition, dispatch)
        metrics.time.add(exchange.spent, _recomputed_share(exchange) if exchange.recomputed_tokens else 0.0)

    def _count_tokens(self, exchange: Exchange) -> None:
        """Count the tokens of a reply by words of the operator: the engine's name of the model, and the tenant."""
        metrics, usage = self.metrics, exchange.reply.usage
        labels = exchange.payload.engine_model, exchange.caller.tenant
        if usage.prompt_tokens:
            metrics.prompt_tokens.add(usage.prompt_tokens, *labels)
        if usage.output_tokens:
            metrics.output_tokens.add(usage.output_tokens, *labels)

    def _count_cache(self, exchange: Exchange, recognition: Recognition, dispatch: Dispatch) -> None:
        """Count expected and actual cached tokens of a reply that reports both token counts."""
        usage, replica = exchange.reply.usage, dispatch.replica_id
        if usage.prompt_tokens is None or usage.cached_tokens is None:
            return
        self.metrics.cached_tokens.add(dispatch.expected_cached_tokens, replica, "expected")
        self.metrics.cached_tokens.add(usage.cached_tokens, replica, "actual")
        if recognition.kind is not SIDE:
            again = self._recomputation.of(
                recognition.session_id, replica, usage.prompt_tokens, usage.cached_tokens
            )
            self.metrics.recomputed_tokens.add(again, replica)
            exchange.recomputed_tokens += again


def _recomputed_share(exchange: Exchange) -> float:
    """Return which part of the computed prompt tokens the engine had computed before."""
    usage = exchange.usage
    return min(1.0, exchange.recomputed_tokens / max(1, (usage.prompt_tokens or 0) - (usage.cached_tokens or 0)))


class Recomputation:
    """How much of a session's earlier prompt was prefilled again, since it was no longer cached.

    A replica counts from its first reported hit on, as some engines report 0 always. Bounded: the least
    recently seen session is forgotten first.
    """

    def __init__(self, max_sessions: int = MAX_SESSIONS) -> None:
        self._max_sessions = max_sessions
        self._prompt_tokens: OrderedDict[str, int] = OrderedDict()
        self._reporting: set[str] = set()

    def forget_session(self, session_id: str) -> None:
        self._prompt_tokens.pop(session_id, None)

    def of(self, session_id: str, replica_id: str, prompt_tokens: int, cached_tokens: int) -> int:
        """Return the tokens that this turn recomputed. The turn becomes the session's latest."""
        earlier = self._prompt_tokens.pop(session_id, 0)
        self._prompt_tokens[session_id] = prompt_tokens
        if len(self._prompt_tokens) > self._max_sessions:
            self._prompt_tokens.popitem(last=False)
        if cached_tokens > 0:
            self._reporting.add(replica_id)
        missing = min(earlier, prompt_tokens) - cached_tokens
        return missing if replica_id in self._reporting and missing >= BLOCK_ROUNDING_TOKENS else 0
