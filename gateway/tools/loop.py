"""The rounds of one answer: which calls run here, what the engine is asked next, what the client does not see."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from types import TracebackType
from typing import TypeAlias
from weakref import proxy

import orjson

from gateway.core.fields import Json, written
from gateway.core.json_edit import Edit
from gateway.core.reply import TextBuffer, ToolCall, ToolCalls
from gateway.dialects.base import Script
from gateway.dialects.rounds import End, Round, RoundCall, ToolFormat
from gateway.exchange import Exchange, Payload, Recognition
from gateway.sessions.claims import lost_s, read_claim, says_retry
from gateway.tools.hidden import HiddenHistory, follow
from policies.types import Blocks, Turn, TurnKind
from tool_runtime.attempts import Attempt
from tool_runtime.runtime import ToolRuntime
from tool_runtime.types import Call, Context, Effect, Result, Tool

PATIENT_S = 3600.0
"""A session in mid-answer is not refused for a wait: its client is kept alive, and its tools have run."""
_NOT_HERE = "this tool cannot be called here, or not again now."

Residency: TypeAlias = Callable[[Exchange, Script], tuple[Blocks, int]]
"""Chain and length of the prompt that an engine gets."""


@dataclass(frozen=True, slots=True)
class ToolContext:
    """What all loops of a gateway share."""

    runtime: ToolRuntime
    hidden: HiddenHistory
    max_rounds: int
    """Model calls of one answer that may call tools."""
    max_calls: int
    """Calls of one model call that may run."""
    residency: Residency
    clock: Callable[[], float]


class ToolLoop:
    """The rounds of one answer, for the body of an `async with`. Leaving that ends the calls that run."""

    def __init__(
        self,
        context: ToolContext,
        exchange: Exchange,
        recognition: Recognition,
        payload: Payload,
        format_: ToolFormat,
        tools: Sequence[Tool],
        declared: Collection[str],
    ) -> None:
        """`payload`: what the engine would be sent without tools; `tools` may be called here; `declared`: names of
        the client's tools."""
        self._context = context
        self._exchange = exchange
        self._recognition = recognition
        self._format = format_
        self._tools: Mapping[str, Tool] = {tool.name: tool for tool in tools}
        self._client_names = frozenset(declared) - self._tools.keys()
        self.client_body = exchange.payload.body
        """The client's own body, which it sends again if it loses the answer."""
        self.payload = payload
        """The payload of the next model call."""
        self._attempt: Attempt | None = None
        self._chain = b""
        self._said: list[Json] = []
        """This answer in full, as history."""
        self._running: dict[RoundCall, asyncio.Task[Result]] = {}
        self._number = 1
        self._is_readable = True
        # The answer must not hold the loop that holds it.
        loop = proxy(self)
        self.answer = format_.new_answer(lambda name: loop._is_hidden(name), lambda call: loop._completed(call))
        self._round: Round | None = None

    async def __aenter__(self) -> ToolLoop:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stop()

    def prepare(self, turn: Turn, offered: Sequence[Tool]) -> Turn:
        """Put back what the client's history hides, offer tools of the gateway, and return the turn of that
        prompt."""
        exchange, format_, hidden = self._exchange, self._format, self._context.hidden
        edits, self._chain = hidden.restore(
            exchange.caller.tenant,
            self._recognition.session_id,
            self._recognition.parent_id,
            format_,
            exchange.dialect.history(self.payload.body),
            self._context.clock(),
        )
        self.payload = self.payload.with_items(exchange.dialect.history_key, edits)
        stored_id = exchange.dialect.stateful_id(self.client_body)
        stored = hidden.stored(exchange.caller.tenant, stored_id) if stored_id is not None else None
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
        """Begin the next model call, or the same once more on another replica."""
        must_end = self._number > self._context.max_rounds
        self._round = self.answer.round(self._number, must_end)
        return self._round

    def tool_s(self) -> float | None:
        """Return how long the called tools are expected to take, once a model call is over. None: not known."""
        round_ = self._round
        if round_ is None or round_.end is not End.INNER:
            return None
        times = [self._context.runtime.expected_s(call.name) for call in round_.calls.hidden]
        known = [seconds for seconds in times if seconds is not None]
        return max(known) if len(known) == len(times) else None

    async def goes_on(self) -> bool:
        """Run what the model call has called, once it is over and its slot given back. Return whether the model is
        asked again."""
        round_ = self._round
        assert round_ is not None, "no model call was asked"
        if round_.end is None:  # what the engine sent cannot be read
            self._is_readable = False
            round_.ended(is_cut_short=True)
        calls = [] if round_.end is End.FINAL else round_.calls.hidden
        tasks = [self._running_task(call) for call in calls]
        results = [await task for task in tasks]
        await self._stop()
        self.answer.close_round(round_)
        self._note_round(results)
        said = [*round_.said(), *self._format.results(results)]
        self._said += said
        if round_.end is not End.INNER:
            if calls or self._number > 1:
                self._store_hidden(self._format.results(results))
            reply = self._exchange.reply
            reply.written = TextBuffer(self.answer.text)
            reply.tool_calls = ToolCalls(ToolCall, self.answer.calls)
            return False
        self._append(said)
        self._number += 1
        return True

    def next_turn(self, turn: Turn) -> Turn:
        """Return the turn of the next model call, of the same session."""
        turn = replace(
            turn,
            id=f"{self._exchange.id}/{self._number}",
            arrived_at=self._context.clock(),
            is_retry=False,
            excluded=frozenset(),
            max_wait_s=PATIENT_S,
        )
        return self._measured(turn)

    def body(self, last: bytes) -> bytes:
        """Return the body for the client, of the engine's last one."""
        is_one = self._number == 1 and self._round is not None and not self._round.calls.hidden
        is_as_it_came = is_one and not self._format.echoes_tools
        return last if is_as_it_came or not self._is_readable else self.answer.body(last)

    def answered(self, is_whole: bool) -> None:
        """End the answer: the client has all of it, or has lost it and may ask again."""
        if self._attempt is not None:
            self._attempt.ended(is_whole)

    def _is_hidden(self, name: str) -> bool:
        return name not in self._client_names

    def _completed(self, call: RoundCall) -> None:
        """Begin a call in mid-stream, as its arguments are complete. What changes the world waits until the model
        has said all: a stream that breaks off is asked for again."""
        tool = self._tools.get(call.name)
        may_begin = tool is not None and tool.effect is not Effect.DESTRUCTIVE
        if may_begin and self._number <= self._context.max_rounds:
            self._running_task(call)

    def _running_task(self, call: RoundCall) -> asyncio.Task[Result]:
        task = self._running.get(call)
        if task is None:
            is_too_many = len(self._running) >= self._context.max_calls
            whole = Call(call.id, call.name, call.arguments)
            task = self._running[call] = asyncio.create_task(self._run(whole, is_too_many))
        return task

    async def _run(self, call: Call, is_too_many: bool) -> Result:
        exchange, runtime, tool = self._exchange, self._context.runtime, self._tools.get(call.name)
        history = None
        if tool is not None and tool.is_stateful:
            history = self._format.earlier_calls(exchange.dialect.history(self.payload.body), tool.name)
        caller, turn_id = exchange.caller, f"{exchange.id}/{self._number}"
        context = Context(caller.tenant, self._recognition.session_id, turn_id, caller.id, history, caller.weight)
        if tool is None or is_too_many:
            return runtime.refuse(call, context, _NOT_HERE)
        running = runtime.run(call, context, attempt=self._attempt_of(tool))
        return await (running if exchange.trace is None else exchange.trace.run_tool(call, running))

    def _attempt_of(self, tool: Tool) -> Attempt | None:
        """Return the attempt for a call that changes the world. Its key is the client's request, so that
        the client's next try finds it."""
        if self._attempt is None and tool.effect is Effect.DESTRUCTIVE:
            exchange, headers = self._exchange, self._exchange.request.headers
            request = [self.client_body.get(key) for key in (exchange.dialect.history_key, "previous_response_id")]
            model, session = exchange.payload.requested_model, read_claim(headers).session
            key = written([exchange.caller.tenant, model, session, request], option=orjson.OPT_SORT_KEYS)
            answer = sha256(key).digest()
            self._attempt = self._context.runtime.attempt(answer, says_retry(headers), lost_s(headers))
        return self._attempt

    async def _stop(self) -> None:
        running, self._running = self._running, {}
        for task in running.values():
            task.cancel()
        if running:
            await asyncio.wait(running.values())

    def _append(self, said: Sequence[Json]) -> None:
        """Make the next request: the same one, longer."""
        exchange = self._exchange
        self._insert(len(exchange.dialect.history(self.payload.body)), said)
        changes, choice = self._format.choice(self.payload.body, self._is_hidden)
        if self._number == self._context.max_rounds:
            changes, choice = True, self._format.no_choice()
            exchange.note(f"tools: no more calls after {self._number} rounds (tools.max_rounds)")
        if changes:
            self.payload = self.payload.with_keys(tool_choice=choice)

    def _insert(self, at: int, items: Sequence[Json]) -> None:
        """Insert into the history; one that is a text becomes a list."""
        exchange = self._exchange
        key = exchange.dialect.history_key
        edit = Edit(at, at, items)
        if not isinstance(self.payload.body.get(key), list):
            history = exchange.dialect.history(self.payload.body)
            edit = Edit(0, 0, [*history[:at], *items, *history[at:]])
        self.payload = self.payload.with_items(key, [edit])

    def _measured(self, turn: Turn) -> Turn:
        exchange = self._exchange
        blocks, chars = self._context.residency(exchange, exchange.dialect.script(self.payload.body))
        return replace(turn, blocks=blocks, chars=chars)

    def _note_round(self, results: Sequence[Result]) -> None:
        """Add one row to the receipt."""
        reply, dispatch = self._exchange.reply, self._exchange.dispatch
        tools = [
            {
                "name": result.call.name if result.call.name in self._tools else "unknown",
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
        self._exchange.charges.append(reply.charge)
        reply.is_charged = True

    def _store_hidden(self, results: Sequence[Json]) -> None:
        """Store the answer in full before the client gets its end. `results`: of the last round, which the engine
        has not seen yet."""
        exchange, hidden, now = self._exchange, self._context.hidden, self._context.clock()
        tenant, chain = exchange.caller.tenant, follow(self._chain, self.answer.mark)
        hidden.put(tenant, self._recognition.session_id, chain, self._said, now)
        if exchange.dialect.stores_answers and exchange.reply.id:
            hidden.put_stored(tenant, self.answer.id, exchange.reply.id, results, now)
