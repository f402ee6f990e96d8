"""Receipts: why one request went as it did, without any of its content; kept for a while, per tenant.

The values of a receipt are taken from its exchange at the end. Its JSON is written only when it is read.
"""

from __future__ import annotations

from collections import OrderedDict
from operator import attrgetter, itemgetter
from sys import getsizeof
from typing import Any, TypeAlias

from gateway.core.fields import Json, excerpt
from gateway.exchange import Exchange, Timings
from policies.types import Waited

Values: TypeAlias = tuple[Any, ...]


class ReceiptPart:
    """Values of an exchange that a receipt holds, by their names in it."""

    def __init__(self, **attributes: str) -> None:
        self.names = tuple(attributes)
        self.of = attrgetter(*attributes.values())
        self.nothing = (None,) * len(attributes)


# Members of enumerations by their plain text: the garbage collector passes over a tuple of nothing but that.
_ASKED = ReceiptPart(
    id="id",
    outcome="end.outcome._value_",
    path="dialect.name",
    tenant="caller.tenant",
    key="caller.id",
    model="logged_model",
    engine_model="payload.engine_model",
)
_SPENT = ReceiptPart(
    is_stream="payload.wants_stream",
    waited="spent.waited",
    gate="spent.gate_s",
    engine_queue="spent.queue_s",
    prefill="spent.prefill_s",
    beside="spent.beside_s",
    queue_beside="spent.queue_beside_s",
    queue_unclear="spent.queue_unclear_s",
    decode="spent.decode_s",
    failed="spent.failed_s",
    tools="spent.tools_s",
)
PARTS = _SPENT.names[2:]
"""Parts of the time of a request, by their names in its receipt; the rest is the gateway's own. `beside` is a
part of `prefill`, `queue_beside` of `engine_queue`; `queue_unclear` is by how much `engine_queue` may be wrong."""
_FAILED = ReceiptPart(status="status", code="code", param="param")
_RECOGNISED = ReceiptPart(
    session="recognition.session_id",
    family="recognition.family_id",
    parent="recognition.parent_id",
    kind="recognition.kind._value_",
    turn="recognition.turn_index",
    source="recognition.source",
    confidence="recognition.confidence",
    is_retry="recognition.is_retry",
    agent="recognition.agent",
    client_session="recognition.client_session",
    client_hash="recognition.client_hash",
)
_DISPATCHED = ReceiptPart(
    engine="attempt.engine_kind",
    replica="attempt.dispatch.replica_id",
    reason="attempt.dispatch.reason._value_",
    attempts="attempt.number",
    expected_cached_tokens="attempt.dispatch.expected_cached_tokens",
)
_TIMES = attrgetter(*Timings.__slots__)
_NAMES = (
    *(*_ASKED.names, *_FAILED.names, *_RECOGNISED.names, *_DISPATCHED.names, *_SPENT.names),
    *("called", "recomputed_tokens", "cached_tokens", "prompt_tokens", "output_tokens", "finish_reason"),
    *("request_id", "trace", "rounds", "notes"),
)
MOST_CALLED = 8
"""Tools of an answer that its receipt names."""
_OWN_BYTES = 1_000
"""Of a receipt without what follows, and of the table that holds it."""
_OF_ANY_LENGTH = itemgetter(
    *map(
        _NAMES.index,
        (
            "model",
            "engine_model",
            "request_id",
            "agent",
            "client_session",
            "client_hash",
            "rounds",
            "notes",
            "status",
            "called",
        ),
    )
)
_OF_FAILURES = itemgetter(*map(_NAMES.index, ("code", "param")))
FEWEST_ID_CHARS = 6
"""Beginning of a session's id that names it."""
_SESSION = _NAMES.index("session")
_ALIASES = itemgetter(*map(_NAMES.index, ("client_session", "client_hash", "agent")))
_TENANT, _FINISHED_AT = _NAMES.index("tenant"), len(_NAMES) + Timings.__slots__.index("finished_at")


def values_of(exchange: Exchange) -> Values:
    """Return the values of a receipt, with its times last. No value changes any more, and none keeps a prompt."""
    rounds, usage = exchange.rounds, exchange.usage
    failure = exchange.end.failure if exchange.end is not None else None
    return (
        *_ASKED.of(exchange),
        *(map(_bounded, _FAILED.of(failure)) if failure is not None else _FAILED.nothing),
        *(_RECOGNISED.of(exchange) if exchange.recognition is not None else _RECOGNISED.nothing),
        *(_DISPATCHED.of(exchange) if exchange.dispatch is not None else _DISPATCHED.nothing),
        *_SPENT.of(exchange),
        _called(exchange),
        exchange.recomputed_tokens,
        usage.cached_tokens,
        usage.prompt_tokens,
        usage.output_tokens,
        excerpt(exchange.reply.finish_reason) if exchange.reply.finish_reason is not None else None,
        exchange.request_id,
        exchange.trace.id if exchange.trace is not None else None,
        rounds if len(rounds) > 1 or (rounds and rounds[0]["tools"]) else None,
        tuple(map(excerpt, exchange.notes)) if exchange.notes else (),
        *_TIMES(exchange.timings),
    )


def _is_of(values: Values, wanted: str) -> bool:
    """Whether a receipt is of that session or agent."""
    session = values[_SESSION]
    if session is None:
        return False
    begins = len(wanted) >= FEWEST_ID_CHARS and session.startswith(wanted)
    return not wanted or begins or session == wanted or wanted in _ALIASES(values)


def _called(exchange: Exchange) -> tuple[str, ...]:
    """Return the tools of the client that the answer called, some by name."""
    calls = exchange.reply.tool_calls
    if len(calls) == 1:
        return (excerpt(calls[0].name),)
    return tuple(dict.fromkeys(excerpt(call.name) for call in calls[:MOST_CALLED])) if calls else ()


def _bounded(value: Any) -> Any:
    """Return a text that may quote a client, as an excerpt."""
    return excerpt(value) if isinstance(value, str) else value


def size_bytes(values: Values) -> int:
    """Return about the memory of a receipt. Texts that several share count in each."""
    *texts, rounds, notes, status, called = _OF_ANY_LENGTH(values)
    size = sum(map(getsizeof, called), sum(map(getsizeof, texts), _OWN_BYTES))
    if notes or rounds or status is not None:
        size += sum(map(_deep_size_bytes, (notes, rounds, _OF_FAILURES(values))))
    return size


def _deep_size_bytes(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return getsizeof(value) + sum(map(_deep_size_bytes, inner))


def receipt(values: Values, names_session: bool = False) -> Json:
    """Return a flat object without keys that have no value. Turns count from 1. Token counts are sums over the
    model calls of an answer, which stand beside them. `names_session`: it is for the client's own tenant, which
    may see its id of the session; for others it is hashed."""
    row: Json = dict(zip(_NAMES, values, strict=False))
    hashed = row.pop("client_hash")
    if not names_session:
        row["client_session"] = hashed
    row["turn"] = None if row["turn"] is None else row["turn"] + 1
    times, is_stream = Timings(*values[len(_NAMES) :]), row.pop("is_stream")
    row["ttft_ms"] = _ms(ttft_s(times)) if is_stream else None  # the first byte of a plain answer is its last
    row |= {"queue_ms": _ms(queued_s(times)), "total_ms": _ms(total_s(times))}
    row["notes"], row["called"] = list(row.pop("notes")), list(row.pop("called"))
    row |= wait_of(row.pop("waited"), row["tenant"] if names_session else None)
    spent = {name: _ms(row.pop(name)) for name in PARTS}
    row["time_ms"] = {name: ms for name, ms in spent.items() if ms}
    return {name: value for name, value in row.items() if value or (value == 0 and value is not False)}


def wait_of(waited: Waited | None, tenant: str | None) -> Json:
    """Return what a turn waited for at the gate. `tenant`: the only one whose sessions are named; None: any."""
    if waited is None:
        return {}
    behind = [session for session, of in waited.behind if tenant is None or of == tenant]
    return {
        "waited_for": waited.cause.value,
        "waited_behind": behind,
        "waited_behind_others": len(waited.behind) - len(behind),
        "waited_before": waited.num_before,
        "wait_estimate_ms": _ms(waited.estimate_s),
    }


def queued_s(times: Timings) -> float | None:
    """Return the time from recognition to a slot, or to the end of a turn without one. None: it never queued."""
    end = times.leased_at if times.leased_at is not None else times.finished_at
    return None if times.recognised_at is None or end is None else end - times.recognised_at


def ttft_s(times: Timings) -> float | None:
    return None if times.first_byte_at is None else times.first_byte_at - times.received_at


def total_s(times: Timings) -> float | None:
    return None if times.finished_at is None else times.finished_at - times.received_at


def overhead_s(times: Timings) -> float | None:
    """Return the gateway's own time: all but queue and engine. None: no engine was asked."""
    if times.engine_asked_at is None:
        return None
    return times.engine_asked_at - times.received_at - (queued_s(times) or 0.0)


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 1)


class Receipts:
    """The last receipts, oldest first; the oldest goes when it is too old, or there are too many or too large
    ones."""

    def __init__(self, keep_s: float, max_kept: int, max_bytes: int) -> None:
        self._keep_s = keep_s
        self._max_kept = max_kept
        self._max_bytes = max_bytes
        self._kept: OrderedDict[str, tuple[Values, int]] = OrderedDict()
        """Each with its size."""
        self.num_bytes = 0

    def __len__(self) -> int:
        return len(self._kept)

    def put(self, receipt_id: str, values: Values) -> None:
        """Keep the `values` of an exchange that has just ended."""
        kept, now = self._kept, values[_FINISHED_AT]
        if self._keep_s > 0:
            size = size_bytes(values)
            kept[receipt_id] = values, size
            self.num_bytes += size
        while kept and (
            len(kept) > self._max_kept
            or self.num_bytes > self._max_bytes
            or self._is_old(next(iter(kept.values()))[0], now)
        ):
            _, (_, size) = kept.popitem(last=False)
            self.num_bytes -= size

    def get(self, receipt_id: str, tenant: str | None, now: float) -> Json | None:
        """Return a receipt. None: it is unknown, too old, or another tenant's. Tenant None: of any."""
        values, _ = self._kept.get(receipt_id, (None, 0))
        if values is None or tenant not in (None, values[_TENANT]) or self._is_old(values, now):
            return None
        return receipt(values, names_session=tenant is not None)

    def of(self, wanted: str, tenant: str | None, now: float, most: int) -> list[Json]:
        """Return the last receipts of a session, by its id, the first characters of it or its client's own id, of
        the session of a receipt, or of an agent; of all for an empty text. Oldest first, at most `most`, each with
        the seconds since its end. Tenant None: of any."""
        if (one := self._kept.get(wanted)) is not None and one[0][_SESSION]:
            wanted = one[0][_SESSION]
        found: list[Json] = []
        for receipt_id, (values, _) in reversed(self._kept.items()):
            if len(found) == most or self._is_old(values, now):
                break
            if tenant in (None, values[_TENANT]) and (receipt_id == wanted or _is_of(values, wanted)):
                ago_s = round(now - values[_FINISHED_AT], 6)
                found.append(receipt(values, names_session=tenant is not None) | {"ended_ago_s": ago_s})
        return found[::-1]

    def _is_old(self, values: Values, now: float) -> bool:
        ended_at: float = values[_FINISHED_AT]
        return ended_at + self._keep_s <= now
