"""Tool rounds, as far as all formats share them: one public answer is made of several model calls.

The gateway runs its own tools between two model calls. Their calls and results are *hidden* from the client, which
sees its own calls only, numbered as if there were no others.
"""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod
from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any, TypeAlias

import orjson

from gateway.core.errors import Failure
from gateway.core.fields import Json
from gateway.core.reply import ToolCall, ToolCalls
from gateway.dialects import canonical

if TYPE_CHECKING:  # gateways without tools do not load them
    from tool_runtime.types import Result, Tool

NO_ARGUMENTS = "{}"


# ---- the calls of one model call: which are hidden, and when their arguments are complete


class ObjectEnd:
    """Finds where a JSON object ends in text that comes in pieces. Linear, whatever the pieces."""

    __slots__ = ("_depth", "_in_string", "_is_escaped", "is_over")

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = False
        self._is_escaped = False
        self.is_over = False

    def feed(self, text: str) -> bool:
        """Return whether the object is complete now."""
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


class RoundCall(ToolCall):
    """One call of a round. It equals itself only: two calls that say the same are run twice."""

    __slots__ = ("end", "is_complete", "is_hidden", "place")
    __eq__ = object.__eq__
    __hash__ = object.__hash__  # type: ignore[assignment]

    def __init__(self) -> None:
        super().__init__()
        self.is_hidden: bool | None = None
        """Whether the client must not see it. None: its name has not come yet."""
        self.is_complete = False
        self.place = 0
        """Of a client's call: its index among those that the client sees."""
        self.end = ObjectEnd()

    def for_history(self) -> str:
        """Return arguments that chat templates can render: engines answer 400 to what is no object."""
        arguments = self.arguments
        try:
            parsed = orjson.loads(arguments)
        except orjson.JSONDecodeError:
            return NO_ARGUMENTS
        return arguments if isinstance(parsed, dict) else NO_ARGUMENTS


IsHidden: TypeAlias = Callable[[str], bool]
"""Whether the client has no tool of a name, so that calls of it are hidden."""
Completed: TypeAlias = Callable[[RoundCall], None]
"""Receives each hidden call once, as soon as its arguments are complete."""


class RoundCalls(ToolCalls[RoundCall]):
    """The calls of a round."""

    def __init__(self, is_hidden: IsHidden, completed: Completed) -> None:
        super().__init__(RoundCall)
        self._is_hidden = is_hidden
        self._completed = completed
        self._num_shown = 0

    @property
    def hidden(self) -> list[RoundCall]:
        return [call for call in self if call.is_hidden]

    @property
    def shown(self) -> list[RoundCall]:
        return [call for call in self if call.is_hidden is False]

    def put_piece(self, index: int, id_: str | None, name: str | None, arguments: str) -> RoundCall:
        if self and self.at(index) is None:
            self._complete(self[-1])
        call = super().put_piece(index, id_, name, arguments)
        if name and call.is_hidden is None:
            call.is_hidden = self._is_hidden(name)
            call.id = call.id or f"call_{uuid.uuid4().hex}"
            call.place = self._num_shown
            self._num_shown += not call.is_hidden
        if arguments and call.end.feed(arguments):
            self._complete(call)
        return call

    def close(self, index: int, arguments: str | None = None) -> None:
        """Mark a call as complete. `arguments`: all of them, from a format that repeats them."""
        if (call := self.at(index)) is not None:
            if arguments and not call.written.num_chars:
                call.written.append(arguments)
            self._complete(call)

    def close_all(self) -> None:
        """Mark every call as complete: the model has ended its turn."""
        for call in self:
            self._complete(call)

    def _complete(self, call: RoundCall) -> None:
        if call.is_hidden and not call.is_complete:
            call.is_complete = True
            self._completed(call)


# ---- the answer and its rounds


class End(Enum):
    """How one model call ended, to the client."""

    INNER = "inner"  # it called hidden tools only: the client sees no end, and the model is asked again
    MIXED = "mixed"  # it called tools of both sides: the client gets its calls once the hidden ones have run
    FINAL = "final"


class PublicAnswer(ABC):
    """One answer to one client, over all rounds."""

    def __init__(self, is_hidden: IsHidden, completed: Completed) -> None:
        self.is_hidden = is_hidden
        self.completed = completed
        self.usage: Json = {}
        """Of the rounds that are over."""

    @property
    @abstractmethod
    def id(self) -> str:
        """The id in all events and in the body: the engine's of the first round, unless a keep-alive came
        before it."""

    @property
    @abstractmethod
    def calls(self) -> list[ToolCall]:
        """The calls that the client is asked to run."""

    @property
    @abstractmethod
    def text(self) -> str:
        """The text that the client was given."""

    @property
    @abstractmethod
    def mark(self) -> bytes:
        """The mark by which the answer is found again in the client's next request, see `ToolFormat.answers`."""

    @abstractmethod
    def round(self, number: int, must_end: bool) -> Round:
        """Return the next model call, or the same once more on another replica. `number`: from 1; `must_end`: the
        client gets its end whatever the model calls, as no round is left."""

    def close_round(self, round_: Round) -> None:
        """Take in a round that is over, with its engine's clean end."""
        self.usage = added(self.usage, round_.usage)

    @abstractmethod
    def body(self, last: bytes) -> bytes:
        """Return the body for a client that asked for no stream; `last` is the engine's last one."""

    @abstractmethod
    def keep_alive(self, answer_id: str, model: str, created_at: int, body: Json) -> bytes:
        """Return a data event that means nothing and fits into the stream so far. If nothing was sent, it begins
        the answer to `body` by these names."""

    @abstractmethod
    def error_event(self, failure: Failure) -> bytes:
        """Return the event that fails a stream that has begun."""


class Round(ABC):
    """One model call. Subclasses read events or a body; this says whose calls it made and how it ended."""

    def __init__(self, answer: PublicAnswer, number: int, must_end: bool) -> None:
        self.number = number
        self.calls = RoundCalls(answer.is_hidden, answer.completed)
        self.usage: Json = {}
        self.end: End | None = None
        self.closing: list[bytes] = []
        """Events of the end, held back until the hidden calls are in store: see `holds_end`."""
        self._must_end = must_end
        self._shown: list[int] = []
        """Indexes, in order, of the items or blocks that the client sees, in formats that number them."""

    @property
    def holds_end(self) -> bool:
        """Whether the end waits: the client may come back as soon as it sees the end, and then everything hidden
        must be in store."""
        return self.end is End.MIXED or (self.end is End.FINAL and self.number > 1)

    @property
    def is_shown_whole(self) -> bool:
        """Whether the client has been shown its end."""
        return self.end is End.FINAL and not self.holds_end

    def is_hidden(self, index: int) -> bool:
        """Return whether the item or block at this index is a call that the client must not see."""
        call = self.calls.at(index)
        return call is not None and call.is_hidden is not False

    @property
    def calls_client(self) -> bool:
        """Whether the client has a call to run."""
        return bool(self.calls.shown)

    def place_item(self, index: int) -> None:
        """Take note of an item or block that has begun at this index."""
        if not self.is_hidden(index):
            insort(self._shown, index)

    def num_shown_before(self, index: int) -> int:
        return bisect_left(self._shown, index)

    @abstractmethod
    def shown(self, event: bytes, parsed: Json | None) -> bytes:
        """Return what the client gets of an event; `parsed` is None for the end marker."""

    def failed(self, event: bytes, parsed: Json) -> bytes:
        """Return what the client gets of an event by which the engine fails the answer."""
        return event

    @abstractmethod
    def read(self, body: Json) -> None:
        """Read a whole answer."""

    @abstractmethod
    def said(self) -> list[Json]:
        """Return the model's turn as history, with the calls of both sides."""

    def ended(self, is_cut_short: bool) -> None:
        """Settle how the round ends, once the model has said why it stops. Calls of a turn that ran into a limit
        are not run: they may be torn."""
        if is_cut_short:
            self.end = End.FINAL
            return
        self.calls.close_all()
        if not self.calls.hidden or (self._must_end and not self.calls_client):
            self.end = End.FINAL
        else:
            self.end = End.MIXED if self.calls_client else End.INNER


# ---- requests


class ToolFormat(ABC):
    """How the requests and histories of one format speak of tools. Stateless."""

    echoes_tools = False
    """Whether answers repeat the tools of the request, of which the client must see its own only."""

    def takes_tools(self, body: Json) -> bool:
        """Return whether an answer to this request can be made of several."""
        return True

    def declared(self, body: Json) -> Iterator[str]:
        """Yield the names of the client's tools, as calls carry them."""
        yield from canonical.tool_names(canonical.objects(body.get("tools")))

    @abstractmethod
    def definition(self, tool: Tool) -> Json:
        """Return a tool as the request offers it."""

    @abstractmethod
    def choice(self, body: Json, is_hidden: IsHidden) -> tuple[bool, Any]:
        """Return whether `tool_choice` must change once hidden calls have run, and to what: what forced a call is
        fulfilled."""

    def no_choice(self) -> Any:
        """Return the `tool_choice` under which the model calls nothing."""
        return "none"

    @abstractmethod
    def results(self, results: Sequence[Result]) -> list[Json]:
        """Return results of calls as history."""

    @abstractmethod
    def answers(self, history: Sequence[Json]) -> Iterator[tuple[int, int, bytes]]:
        """Yield start, end and mark of each answer of the model in a history."""

    def restored(self, history: Sequence[Json], end: int, said: list[Json]) -> tuple[int, list[Json]]:
        """Put `said` in the place of an answer that ends at `end`. Return the end of what is replaced, and the
        items. `said` ends in results if the answer had calls of both sides."""
        return end, said

    @abstractmethod
    def earlier_calls(self, history: Sequence[Json], name: str) -> tuple[str, ...]:
        """Return the arguments of all calls of a tool in a history, oldest first."""

    @abstractmethod
    def new_answer(self, is_hidden: IsHidden, completed: Completed) -> PublicAnswer:
        """Return an answer that has not begun."""


MARK_CHARS = 48
"""Length of the end of a text that is compared: clients remove reasoning from its start."""


def mark(text: str, call_ids: Sequence[str]) -> bytes:
    """Return the end of a text, and ids of calls: every client sends these back as they were."""
    return orjson.dumps([text.strip()[-MARK_CHARS:], *call_ids])


def added(one: Any, other: Any) -> Any:
    """Join two usage reports: numbers are summed at every depth, and the later of other values stays."""
    if isinstance(one, dict) and isinstance(other, dict):
        return {key: added(one.get(key), other.get(key)) for key in {**one, **other}}
    if _is_number(one) and _is_number(other):
        return one + other
    return one if other is None else other


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
