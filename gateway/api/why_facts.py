"""Rows as of receipts, made from a log of facts: why a fleet was slow, after the fact and without its gateway."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gateway.core.fields import Json
from gateway.telemetry.factlog import Header
from gateway.telemetry.receipts import FEWEST_ID_CHARS, wait_of
from policies.engine_queue import EngineCall, EngineQueue
from policies.fleet import FleetView, ReplicaView
from policies.learning import Pace
from policies.types import (
    Arrived,
    Decision,
    Dispatch,
    Ending,
    Fact,
    FirstByte,
    Left,
    ReplicaLost,
    ReplicaReported,
    Turn,
    TurnId,
)

AT_ONCE_S = 0.001
"""A first byte that came no earlier before the end shows an answer that came whole."""


@dataclass(slots=True)
class _LoggedCall:
    turn: Turn
    arrived_at: float
    number: int
    """Of its session, from 1."""
    dispatch: Dispatch | None = None
    engine_call: EngineCall | None = None


class _LoggedEngine:
    """A replica, as far as the log shows it."""

    def __init__(self) -> None:
        self.is_up = True
        self.slots: int | None = None
        self.num_running = 0
        self.queue = EngineQueue()


class FactRows:
    """The rows of one log. Times are of the gateway's last start in it: each start has its own clock."""

    def __init__(self, log: Iterable[Header | tuple[float, Fact, list[Decision]]]) -> None:
        self._start()
        for line in log:
            if isinstance(line, Header):
                self._start()
            else:
                self._saw(*line)

    def _start(self) -> None:
        self._calls: dict[TurnId, _LoggedCall] = {}
        self._engines: dict[str, _LoggedEngine] = defaultdict(_LoggedEngine)
        self._num_turns: dict[str, int] = defaultdict(int)
        self._ended: list[tuple[float, Json]] = []
        self._now = 0.0
        self._pace = Pace()

    def of(self, wanted: str) -> list[Json]:
        """Return the rows of a session, by its id or the beginning of it, or by a turn's id; of all for an empty
        text."""
        session = next((row["session"] for _, row in self._ended if row["id"] == wanted), wanted)
        is_begun = len(session) >= FEWEST_ID_CHARS
        return [
            row | {"ended_ago_s": self._now - ended_at}
            for ended_at, row in self._ended
            if not wanted or row["session"] == session or (is_begun and row["session"].startswith(session))
        ]

    def fleet(self) -> FleetView:
        """Return the replicas at the end of the log."""
        return FleetView(
            replicas=[
                ReplicaView(id_, one.is_up, one.slots, 0, 0, None, None, engine_slots=one.queue.slots)
                for id_, one in self._engines.items()
            ]
        )

    def _saw(self, now: float, fact: Fact, decisions: Sequence[Decision]) -> None:
        self._now = now
        match fact:
            case Arrived(turn):
                self._num_turns[turn.session_id] += 1
                self._calls[turn.id] = _LoggedCall(turn, now, self._num_turns[turn.session_id])
            case FirstByte(turn_id) if turn_id in self._calls:
                self._first_byte(self._calls[turn_id], now)
            case Left() if fact.turn_id in self._calls:
                self._left(self._calls.pop(fact.turn_id), fact, now)
            case ReplicaReported(replica_id):
                self._reported(self._engines[replica_id], fact, now)
            case ReplicaLost(replica_id):
                self._engines[replica_id].is_up = False
        for decision in decisions:
            if isinstance(decision, Dispatch) and decision.turn_id in self._calls:
                self._dispatched(self._calls[decision.turn_id], decision, now)

    def _reported(self, engine: _LoggedEngine, fact: ReplicaReported, now: float) -> None:
        engine.is_up, engine.slots = True, fact.slots or engine.slots
        if fact.running is not None and fact.waiting is not None:
            engine.queue.saw(fact.running, fact.waiting, engine.num_running, now)

    def _dispatched(self, call: _LoggedCall, dispatch: Dispatch, now: float) -> None:
        engine = self._engines[dispatch.replica_id]
        call.dispatch, call.engine_call = dispatch, engine.queue.send(engine.num_running, now)
        engine.num_running += 1

    def _first_byte(self, call: _LoggedCall, now: float) -> None:
        if call.dispatch is not None and call.engine_call is not None:
            self._engines[call.dispatch.replica_id].queue.first_byte(call.engine_call, 0.0, now)

    def _left(self, call: _LoggedCall, fact: Left, now: float) -> None:
        """Make the row of a call that ended."""
        turn, dispatch, usage = call.turn, call.dispatch, fact.usage
        outcome = "answered" if fact.ending is Ending.COMPLETE else fact.ending.value
        row: Json = {"id": turn.id, "session": turn.session_id, "tenant": turn.tenant, "turn": call.number}
        row |= {"outcome": outcome, "kind": turn.kind.value, "total_ms": 1000 * (now - turn.arrived_at)}
        row["called"] = list(dict.fromkeys(fact.tool_names))
        for name in ("prompt_tokens", "cached_tokens", "output_tokens"):
            if (tokens := getattr(usage, name)) is not None:
                row[name] = tokens
        if dispatch is None or call.engine_call is None:
            row["time_ms"] = {"gate": 1000 * (now - call.arrived_at)}
        else:
            row |= {"replica": dispatch.replica_id, **wait_of(dispatch.waited, None)}
            row["time_ms"] = self._time_ms(call, call.engine_call, dispatch, fact, now)
        self._ended.append((now, row))

    def _time_ms(
        self, call: _LoggedCall, sent: EngineCall, dispatch: Dispatch, fact: Left, now: float
    ) -> dict[str, float]:
        engine, usage = self._engines[dispatch.replica_id], fact.usage
        engine.num_running -= 1
        engine.queue.ended(now)
        gate_ms, at = 1000 * (sent.sent_at - call.arrived_at), sent.first_byte_at
        if at is None and fact.ending is not Ending.COMPLETE:
            return {"gate": gate_ms, "failed": 1000 * (now - sent.sent_at)}
        is_whole = at is None or now - at < AT_ONCE_S
        computed_tokens = (usage.prompt_tokens or 0) - (usage.cached_tokens or 0)
        spent = engine.queue.split(sent, self._pace, is_whole, now, computed_tokens, 0.0)
        parts = {"engine_queue": spent.queue_s, "prefill": spent.prefill_s, "decode": spent.decode_s}
        parts["queue_unclear"] = spent.unclear_s
        return {"gate": gate_ms, **{name: 1000 * seconds for name, seconds in parts.items()}}
