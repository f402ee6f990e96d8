"""Receipts: why one request went as it did, without any of its content; kept for a while, per tenant."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import orjson

from gateway.exchange import Exchange, Json, Timings
from gateway.trimmed import trimmed
from policies.types import Usage


def receipt(exchange: Exchange) -> Json:
    """A flat object of what was decided and measured; keys without a value are left out."""
    times = exchange.timings
    told: Json = {
        "id": exchange.id,
        "request_id": exchange.request.headers.get("x-request-id"),
        "trace": exchange.trace.id if exchange.trace is not None else None,
        "outcome": exchange.outcome,
        "path": exchange.dialect.name,
        "tenant": exchange.tenant,
        "model": exchange.asked_model,
        "engine_model": exchange.engine_model,
        **_recognised(exchange),
        **_dispatched(exchange),
        **_answered(exchange),
        "queue_ms": _ms(queued_s(times)),
        "ttft_ms": _ms(ttft_s(times)),
        "total_ms": _ms(total_s(times)),
        "notes": exchange.notes,
    }
    return {key: value for key, value in told.items() if value or value == 0}


def _recognised(exchange: Exchange) -> Json:
    if (who := exchange.recognition) is None:
        return {}
    return {
        "session": who.session_id,
        "family": who.family_id,
        "parent": who.parent_id,
        "kind": who.kind,
        "turn": who.turn_index,
        "source": who.source,
        "confidence": who.confidence,
        "is_retry": who.is_retry or None,
    }


def _dispatched(exchange: Exchange) -> Json:
    if (dispatch := exchange.dispatch) is None:
        return {}
    return {
        "engine": exchange.engine_kind,
        "replica": dispatch.replica_id,
        "reason": dispatch.reason,
        "attempts": exchange.num_attempts,
        "expected_cached_tokens": dispatch.expected_cached_tokens,
    }


def _answered(exchange: Exchange) -> Json:
    """Token counts of an answer of several model calls are sums; the calls stand beside them."""
    reply, usage, rounds = exchange.reply, whole_usage(exchange), exchange.rounds
    return {
        "cached_tokens": usage.cached_tokens,
        "prompt_tokens": usage.prompt_tokens,
        "output_tokens": usage.output_tokens,
        "finish_reason": reply.finish_reason,
        "rounds": rounds if len(rounds) > 1 or any(row["tools"] for row in rounds) else None,
    }


def whole_usage(exchange: Exchange) -> Usage:
    """Of all model calls of an answer; those of the last alone while nothing of ours was called."""
    if len(exchange.rounds) <= 1:
        return exchange.reply.usage
    return Usage(*(_sum(exchange.rounds, key) for key in ("prompt_tokens", "cached_tokens", "output_tokens")))


def _sum(rounds: Sequence[Json], key: str) -> int | None:
    known = [row[key] for row in rounds if row[key] is not None]
    return sum(known) if known else None


def queued_s(times: Timings) -> float | None:
    """From recognised to slot, or to the end for a turn that never got one. None: it never queued."""
    end = times.leased_at if times.leased_at is not None else times.finished_at
    return None if times.recognised_at is None or end is None else end - times.recognised_at


def ttft_s(times: Timings) -> float | None:
    return None if times.first_byte_at is None else times.first_byte_at - times.received_at


def total_s(times: Timings) -> float | None:
    return None if times.finished_at is None else times.finished_at - times.received_at


def overhead_s(times: Timings) -> float | None:
    """What the gateway itself took: all but queue and engine. None: no engine was asked."""
    total, queued = total_s(times), queued_s(times)
    if total is None or times.engine_asked_at is None or times.finished_at is None:
        return None
    return total - (queued or 0.0) - (times.finished_at - times.engine_asked_at)


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 1)


class Receipts:
    """The last receipts, oldest first; the oldest goes when it is too old or one too many.

    Kept as JSON text, about 1 KB each: many small objects would weigh three times as much.
    """

    def __init__(self, keep_s: float, max_kept: int) -> None:
        self._keep_s = keep_s
        self._max_kept = max_kept
        self._kept: OrderedDict[str, tuple[float, str, bytes]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def put(self, told: Json, tenant: str, now: float) -> None:
        if self._keep_s > 0:
            self._kept[told["id"]] = (now + self._keep_s, tenant, trimmed(orjson.dumps(told)))
        while self._kept and (len(self._kept) > self._max_kept or self._oldest_until() <= now):
            self._kept.popitem(last=False)

    def get(self, receipt_id: str, tenant: str | None, now: float) -> Json | None:
        """None when it is unknown, too old, or another tenant's; these are not told apart. Tenant None: of any."""
        until, owner, text = self._kept.get(receipt_id, (0.0, "", b""))
        if tenant not in (None, owner) or until <= now:
            return None
        told: Json = orjson.loads(text)
        return told

    def _oldest_until(self) -> float:
        return next(iter(self._kept.values()))[0]
