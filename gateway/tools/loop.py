"""The rounds of one answer: which calls are ours, running them, what the engine is asked next, what is kept."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from types import TracebackType
from typing import Protocol, TypeAlias

import orjson

from gateway.core.fields import Json
from gateway.core.json_edit import Edit
from gateway.core.reply import TextBuffer, ToolCall, ToolCalls
from gateway.dialects.base import Script
from gateway.dialects.rounds import End, Round, RoundCall, ToolFormat
from gateway.exchange import Exchange, Payload
from gateway.sessions.claims import lost_s, read_claim, says_retry
from gateway.tools.hidden import Hidden, follow
from policies.types import Blocks, Turn, TurnKind
from tool_runtime.attempts import Attempt
from tool_runtime.types import Call, Context, Effect, Result, Tool

PATIENT_S = 3600.0
"""A session in mid-answer is not refused for a wait: its client is kept alive, and its tools have run."""


Residency: TypeAlias = Callable[[Exchange, Script], tuple[Blocks, int]]
"""Chain and length of the prompt that an engine gets."""


class Runs(Protocol):
    """What the loop needs of a ToolRuntime."""

    def attempt(self, answer: bytes, is_retry: bool, lost_s: float | None) -> Attempt: ...

    async def run(self, call: Call, context: Context, *, attempt: Attempt | None = None) -> Result: ...

    def expected_s(self, name: str) -> float | None: ...


@dataclass(frozen=True, slots=True)
class RoundLimits:
    """Bounds of one answer."""

    max_rounds: int
    max_calls: int


@dataclass(frozen=True, slots=True)
class Means:
    """What all loops of a gateway share."""

    runtime: Runs
    hidden: Hidden
    rules: RoundLimits
    residency: Residency
    refused: Callable[[Call, Context, float], Result]
    """The result of a call that its request may not make, and its audit."""
    clock: Callable[[], float]


class ToolLoop:
    """One answer's. Owns the calls that it runs: leave it, and they are no longer waited for."""

    def __init__(
        self,
        means: Means,
        exchange: Exchange,
        payload: Payload,
        format_: ToolFormat,
        ours: Sequence[Tool],
        declared: Collection[str],
    ) -> None:
        assert exchange.recognition is not None
        self._means = means
        self._exchange = exchange
        self._format = format_
        self._ours: Mapping[str, Tool] = {tool.name: tool for tool in ours}
        self._clients = frozenset(declared) - self._ours.keys()
        self._session = exchange.recognition.session_id
        self.client_body = exchange.payload.body
        """What the client sent, and sends again if it loses the answer."""
        self.payload = payload
        """What the next model call is sent."""
        self._attempt: Attempt | None = None
        self._chain = b""
        self._said: list[Json] = []
        """What the client does not see of this answer, as history."""
        self._running: dict[RoundCall, asyncio.Task[Result]] = {}
        self._number = 1
        self._is_readable = True
        self.answer = format_.new_answer(self._is_hidden, self._completed)
        self._round: Round | None = None

    async def __aenter__(self) -> ToolLoop:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stop()

    def prepare(self, turn: Turn, offered: Sequence[Tool]) -> Turn:
        """Put back what the client's history hides, offer our tools, and make the turn one of that prompt."""
        exchange, who, format_ = self._exchange, self._exchange.recognition, self._format
        assert who is not None
        edits, self._chain = self._means.hidden.restore(
            exchange.caller.tenant,
            who.session_id,
            who.parent_id,
            format_,
            exchange.dialect.history(self.payload.body),
            self._means.clock(),
        )
        self.payload = self.payload.with_items(exchange.dialect.history_key, edits)
        stored_id = exchange.dialect.stateful_id(self.client_body)
        stored = self._means.hidden.stored(exchange.caller.tenant, stored_id) if stored_id is not None else None
        if stored is not None:
            self.payload = self.payload.with_keys(previous_response_id=stored[0])
            self._insert(0, stored[1])
        if offered:
            num_tools = len(self.payload.body.get("tools") or ())
            tools = [Edit(num_tools, num_tools, [format_.definition(tool) for tool in offered])]
            self.payload = self.payload.with_items("tools", tools)
            exchange.note(f"tools offered: {len(offered)}")
        if edits:
            exchange.note(f"answers put back in full: {len(edits)}")
        kind = TurnKind.AGENT if offered and turn.kind is TurnKind.SINGLE else turn.kind
        return replace(self._measured(turn), kind=kind) if edits or offered else turn

    def round(self) -> Round:
        """The model call that is about to be asked, or asked once more of another replica."""
        must_end = self._number > self._means.rules.max_rounds
        self._round = self.answer.round(self._number, must_end)
        return self._round

    def tool_s(self) -> float | None:
        """Once a model call is over: how long its session will stay away for our tools. None: not known."""
        round_ = self._round
        if round_ is None or round_.end is not End.INNER:
            return None
        times = [self._means.runtime.expected_s(call.name) for call in round_.calls.hidden]
        known = [seconds for seconds in times if seconds is not None]
        return max(known) if len(known) == len(times) else None

    async def goes_on(self) -> bool:
        """Call it when a model call is over and its slot given back. Waits for our tools; True: ask again."""
        round_ = self._round
        assert round_ is not None, "no model call was asked"
        if round_.end is None:  # nobody can read what the engine sent
            self._is_readable = False
            round_.ended(is_cut_short=True)
        ours = [] if round_.end is End.FINAL else round_.calls.hidden
        tasks = [self._started(spoken) for spoken in ours]
        results = [await task for task in tasks]
        await self._stop()
        self.answer.close_round(round_)
        self._tell(round_, results)
        said = [*round_.said(), *self._format.results(results)]
        self._said += said
        if round_.end is not End.INNER:
            if ours or self._number > 1:
                self._keep(self._format.results(results))
            reply = self._exchange.reply
            reply.written = TextBuffer(self.answer.text)
            reply.tool_calls = ToolCalls(ToolCall, self.answer.calls)
            return False
        self._append(said)
        self._number += 1
        return True

    def next_turn(self, turn: Turn) -> Turn:
        """The next model call of the same session."""
        now = self._means.clock()
        turn = replace(
            turn,
            id=f"{self._exchange.id}/{self._number}",
            arrived_at=now,
            is_retry=False,
            excluded=frozenset(),
            max_wait_s=PATIENT_S,
        )
        return self._measured(turn)

    def body(self, last: bytes) -> bytes:
        """The body for the client, of the engine's last one."""
        is_one = self._number == 1 and self._round is not None and not self._round.calls.hidden
        is_as_it_came = is_one and not self._format.echoes_tools
        return last if is_as_it_came or not self._is_readable else self.answer.body(last)

    def answered(self, is_whole: bool) -> None:
        """The client has the whole answer, or has lost it and may ask again."""
        if self._attempt is not None:
            self._attempt.ended(is_whole)

    def _is_hidden(self, name: str) -> bool:
        return name not in self._clients

    def _completed(self, spoken: RoundCall) -> None:
        """Its arguments are complete, in mid-stream. What changes the world waits until the model has said all: a
        stream that breaks off is asked for again."""
        assert self._round is not None
        tool = self._ours.get(spoken.name)
        may_begin = tool is not None and tool.effect is not Effect.DESTRUCTIVE
        if may_begin and self._number <= self._means.rules.max_rounds:
            self._started(spoken)

    def _started(self, spoken: RoundCall) -> asyncio.Task[Result]:
        task = self._running.get(spoken)
        if task is None:
            is_too_many = len(self._running) >= self._means.rules.max_calls
            task = self._running[spoken] = asyncio.create_task(self._run(spoken, is_too_many))
        return task

    async def _run(self, spoken: RoundCall, is_too_many: bool) -> Result:
        call = Call(spoken.id, spoken.name, spoken.arguments)
        tool = self._ours.get(spoken.name)
        exchange = self._exchange
        history = None
        if tool is not None and tool.is_stateful:
            history = self._format.earlier_calls(exchange.dialect.history(self.payload.body), tool.name)
        turn_id = f"{exchange.id}/{self._number}"
        context = Context(
            exchange.caller.tenant, self._session, turn_id, exchange.caller.id, history, exchange.caller.weight
        )
        if tool is None or is_too_many:
            return self._means.refused(call, context, self._means.clock())
        running = self._means.runtime.run(call, context, attempt=self._attempted(tool))
        return await (running if exchange.trace is None else exchange.trace.run_tool(call, running))

    def _attempted(self, tool: Tool) -> Attempt | None:
        """Of a call that changes the world: known by what the client asked, so that it is found again when the
        client asks again."""
        if self._attempt is None and tool.effect is Effect.DESTRUCTIVE:
            exchange, session = self._exchange, read_claim(self._exchange.request.headers).session
            asked = [self.client_body.get(key) for key in (exchange.dialect.history_key, "previous_response_id")]
            told = orjson.dumps(
                [exchange.caller.tenant, exchange.payload.requested_model, session, asked],
                option=orjson.OPT_SORT_KEYS,
            )
            headers = exchange.request.headers
            answer = sha256(told).digest()
            self._attempt = self._means.runtime.attempt(answer, says_retry(headers), lost_s(headers))
        return self._attempt

    async def _stop(self) -> None:
        running, self._running = self._running, {}
        for task in running.values():
            task.cancel()
        if running:
            await asyncio.wait(running.values())

    def _append(self, said: Sequence[Json]) -> None:
        """The same request, longer."""
        exchange = self._exchange
        self._insert(len(exchange.dialect.history(self.payload.body)), said)
        changes, choice = self._format.choice(self.payload.body, self._is_hidden)
        if self._number == self._means.rules.max_rounds:
            changes, choice = True, self._format.no_choice()
            exchange.note(f"tools: no more calls after {self._number} rounds (tools.max_rounds)")
        if changes:
            self.payload = self.payload.with_keys(tool_choice=choice)

    def _insert(self, at: int, items: Sequence[Json]) -> None:
        """Into the history; one that is a text becomes a list."""
        exchange = self._exchange
        key = exchange.dialect.history_key
        edit = Edit(at, at, items)
        if not isinstance(self.payload.body.get(key), list):
            history = exchange.dialect.history(self.payload.body)
            edit = Edit(0, 0, [*history[:at], *items, *history[at:]])
        self.payload = self.payload.with_items(key, [edit])

    def _measured(self, turn: Turn) -> Turn:
        exchange = self._exchange
        blocks, chars = self._means.residency(exchange, exchange.dialect.script(self.payload.body))
        return replace(turn, blocks=blocks, chars=chars)

    def _tell(self, round_: Round, results: Sequence[Result]) -> None:
        """One row of the receipt."""
        reply, dispatch = self._exchange.reply, self._exchange.dispatch
        tools = [
            {
                "name": result.call.name if result.call.name in self._ours else "unknown",
                "status": result.status,
                "origin": result.origin,
                "ms": round(result.seconds * 1000, 1),
            }
            for result in results
        ]
        row: Json = {
            "replica": dispatch.replica_id if dispatch else None,
            "prompt_tokens": reply.usage.prompt_tokens,
            "cached_tokens": reply.usage.cached_tokens,
            "output_tokens": reply.usage.output_tokens,
            "tools": tools,
        }
        self._exchange.rounds.append(row)

    def _keep(self, results: Sequence[Json]) -> None:
        """The public answer is complete: what the client has not seen of it is kept before it gets the end.
        `results`: of the last round, which the engine has not seen yet."""
        exchange, hidden, now = self._exchange, self._means.hidden, self._means.clock()
        hidden.put(exchange.caller.tenant, self._session, follow(self._chain, self.answer.mark), self._said, now)
        if exchange.dialect.stores_answers and exchange.reply.id:
            hidden.put_stored(exchange.caller.tenant, self.answer.id, exchange.reply.id, results, now)
