"""The calls of one model turn as they come in a stream: whose each one is, and when its arguments are complete."""

from __future__ import annotations

import uuid
from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol

import orjson

from gateway.core.errors import Failure
from gateway.core.fields import Json
from gateway.core.reply import TextBuffer, ToolCall
from tool_runtime.types import Result, Tool

NO_ARGUMENTS = "{}"


class ObjectEnd:
    """Finds where a JSON object ends in text that comes in pieces. Linear, whatever the pieces."""

    __slots__ = ("_depth", "_in_string", "_is_escaped", "is_over")

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = False
        self._is_escaped = False
        self.is_over = False

    def feed(self, text: str) -> bool:
        """Whether the object is complete now."""
        for char in text:
            if self._is_escaped:
                self._is_escaped = False
            elif self._in_string:
                self._is_escaped = char == "\\"
                self._in_string = char != '"'
            elif char == '"':
                self._in_string = True
            elif char in "{[":
                self._depth += 1
            elif char in "}]":
                self._depth -= 1
                self.is_over |= self._depth == 0
        return self.is_over


@dataclass(slots=True, eq=False)
class Spoken:
    """One call that the model wrote."""

    id: str = ""
    name: str = ""
    written: TextBuffer = field(default_factory=TextBuffer)
    """Its arguments."""
    is_ours: bool | None = None
    """Whether the client must not see it. None: its name has not come yet."""
    is_complete: bool = False
    place: int = 0
    """Of a client's call: its index among those that the client sees."""
    end: ObjectEnd = field(default_factory=ObjectEnd)

    @property
    def arguments(self) -> str:
        return str(self.written)

    def for_history(self) -> str:
        """Arguments that chat templates can render: engines answer 400 to what is no object."""
        arguments = self.arguments
        try:
            parsed = orjson.loads(arguments)
        except orjson.JSONDecodeError:
            return NO_ARGUMENTS
        return arguments if isinstance(parsed, dict) else NO_ARGUMENTS


class Calls:
    """Those of one model turn, in the order in which they began.

    `is_ours`: of a name, whether the client has no tool of that name. `completed` is told of each of ours once.
    """

    def __init__(self, is_ours: Callable[[str], bool], completed: Callable[[Spoken], None]) -> None:
        self._is_ours = is_ours
        self._completed = completed
        self._by_index: dict[int, Spoken] = {}
        self._latest: Spoken | None = None
        self._num_clients = 0

    def __iter__(self) -> Iterator[Spoken]:
        return iter(self._by_index.values())

    @property
    def ours(self) -> list[Spoken]:
        return [call for call in self if call.is_ours]

    @property
    def clients(self) -> list[Spoken]:
        return [call for call in self if call.is_ours is False]

    def heard(self, index: int, id_: str | None, name: str | None, arguments: str) -> Spoken:
        """A piece of the call at `index`, or all of it."""
        call = self._by_index.get(index)
        if call is None:
            if self._latest is not None:
                self._complete(self._latest)
            call = self._latest = self._by_index[index] = Spoken()
        call.id = id_ or call.id
        if name and call.is_ours is None:
            call.name = name
            call.is_ours = self._is_ours(name)
            call.id = call.id or f"call_{uuid.uuid4().hex}"
            call.place = self._num_clients
            self._num_clients += not call.is_ours
        if arguments:
            call.written.add(arguments)
            if call.end.feed(arguments):
                self._complete(call)
        return call

    def closed(self, index: int, arguments: str | None = None) -> None:
        """No more will come of a call. `arguments`: all of them, from a format that repeats them."""
        if (call := self._by_index.get(index)) is not None:
            if arguments and not call.written.num_chars:
                call.written.add(arguments)
            self._complete(call)

    def ended(self) -> None:
        """The model has said all."""
        for call in self:
            self._complete(call)

    def _complete(self, call: Spoken) -> None:
        if call.is_ours and not call.is_complete:
            call.is_complete = True
            self._completed(call)


# ---- what the loop needs of a wire format: one public answer made of several model calls

MARK_CHARS = 48
"""Of an answer's text, from its end: clients take reasoning off its start."""


class End(Enum):
    """How one model call ended, to the client."""

    INNER = "inner"  # it called only ours: the client sees no end, and the model is asked again
    MIXED = "mixed"  # it called ours and the client's: the client gets its own, once ours have run
    FINAL = "final"


@dataclass(frozen=True, slots=True)
class RoundTerms:
    """What the loop tells a round before it begins."""

    number: int
    """From 1."""
    is_ours: Callable[[str], bool]
    """Of a name: whether the client has no tool of that name."""
    completed: Callable[[Spoken], None]
    """Told of each call of ours once its arguments are complete."""
    must_end: bool
    """The client gets its end, whatever the model calls, for lack of rounds."""


class Round:
    """One model call. Subclasses read events or a body; this says whose calls it made and how it ended."""

    def __init__(self, terms: RoundTerms) -> None:
        self.number = terms.number
        self.calls = Calls(terms.is_ours, terms.completed)
        self.usage: Json = {}
        self.end: End | None = None
        self.closing: list[bytes] = []
        """Events of the end, kept back until what is hidden has been stored: see `holds_end`."""
        self._must_end = terms.must_end
        self._shown: list[int] = []
        """Indexes, in order, of the items or blocks that the client sees, of formats that number those."""

    @property
    def holds_end(self) -> bool:
        """The client may come back as soon as it sees the end, and then everything hidden must be in store."""
        return self.end is End.MIXED or (self.end is End.FINAL and self.number > 1)

    @property
    def is_shown_whole(self) -> bool:
        """Whether the client has been shown its end."""
        return self.end is End.FINAL and not self.holds_end

    def begun(self, index: int, *, is_hidden: bool) -> None:
        """An item or block at this index has begun, once."""
        if not is_hidden:
            insort(self._shown, index)

    def num_shown_before(self, index: int) -> int:
        return bisect_left(self._shown, index)

    def shown(self, event: bytes, parsed: Json | None) -> bytes:
        """What the client gets of an event; `parsed` is None for the end marker."""
        raise NotImplementedError

    def failed(self, event: bytes, parsed: Json) -> bytes:
        """What the client gets of an event by which the engine fails the answer."""
        return event

    def read(self, body: Json) -> None:
        """A whole answer."""
        raise NotImplementedError

    def said(self) -> list[Json]:
        """The model's turn as history, with the calls of both sides."""
        raise NotImplementedError

    def ended(self, is_cut_short: bool) -> None:
        """The model has said why it stops. Calls of a turn that ran into a limit are not run: they may be torn."""
        if is_cut_short:
            self.end = End.FINAL
            return
        self.calls.ended()
        if not self.calls.ours or (self._must_end and not self.calls.clients):
            self.end = End.FINAL
        else:
            self.end = End.MIXED if self.calls.clients else End.INNER


class PublicAnswer(Protocol):
    """One answer to one client, over all rounds."""

    @property
    def id(self) -> str:
        """Of all events and of the body; the engine's of the first round, unless a keep-alive came before it."""
        ...

    @property
    def calls(self) -> list[ToolCall]:
        """Those that the client is asked to run."""
        ...

    @property
    def text(self) -> str:
        """What the client was given to read."""
        ...

    @property
    def mark(self) -> bytes:
        """By which the answer is found again in the client's next request, see `Format.answers`."""
        ...

    def round(self, terms: RoundTerms) -> Round:
        """The next model call, or the same once more on another replica."""
        ...

    def add(self, round_: Round) -> None:
        """A round is over, with its engine's clean end."""
        ...

    def body(self, last: bytes) -> bytes:
        """The body for a client that asked for no stream; `last` is the engine's last one."""
        ...

    def keep_alive(self, answer_id: str, model: str, created_at: int, body: Json) -> bytes:
        """A data event that means nothing, fitting into what has been sent so far; if that is nothing, it begins
        the answer to `body` by these names."""
        ...

    def error_event(self, failure: Failure) -> bytes:
        """Fails a stream that has begun."""
        ...


class Format(Protocol):
    """Requests of one dialect. Stateless."""

    key: str
    """Of the history: `messages` or `input`."""
    echoes_tools: bool
    """Whether answers repeat the tools of the request, of which the client must see its own only."""

    def takes_tools(self, body: Json) -> bool:
        """Whether an answer to this request can be made of several."""
        ...

    def declared(self, body: Json) -> Iterator[str]:
        """Names of the client's tools, as calls carry them."""
        ...

    def definition(self, tool: Tool) -> Json:
        """A tool as the request offers it."""
        ...

    def choice(self, body: Json, ours: Callable[[str], bool]) -> tuple[bool, Any]:
        """Whether `tool_choice` must change once ours have run, and to what: what forced a call is fulfilled."""
        ...

    def no_choice(self) -> Any:
        """The `tool_choice` under which the model calls nothing."""
        ...

    def history(self, body: Json) -> list[Json]:
        """Items of the conversation."""
        ...

    def results(self, results: Sequence[Result]) -> list[Json]:
        """Outcomes of calls as history."""
        ...

    def answers(self, history: Sequence[Json]) -> Iterator[tuple[int, int, bytes]]:
        """Start, end and mark of each answer of the model in a history."""
        ...

    def restored(self, history: Sequence[Json], end: int, said: list[Json]) -> tuple[int, list[Json]]:
        """`said` in the place of an answer that ends at `end`: the end of what is replaced, and the items. `said`
        ends in results if the answer had calls of both sides."""
        ...

    def earlier_calls(self, history: Sequence[Json], name: str) -> tuple[str, ...]:
        """Arguments of all calls of a tool in a history, oldest first."""
        ...

    def begin(self) -> PublicAnswer:
        """An answer that has not begun."""
        ...


def mark(text: str, call_ids: Sequence[str]) -> bytes:
    """Text from its end, and ids of calls: what every client sends back as it was."""
    return orjson.dumps([text.strip()[-MARK_CHARS:], *call_ids])


def added(one: Any, other: Any) -> Any:
    """Two usage reports become one: numbers are summed at every depth, of anything else the later stays."""
    if isinstance(one, dict) and isinstance(other, dict):
        return {key: added(one.get(key), other.get(key)) for key in {**one, **other}}
    if _is_number(one) and _is_number(other):
        return one + other
    return one if other is None else other


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
