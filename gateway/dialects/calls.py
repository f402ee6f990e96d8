"""The calls of one model turn as they come in a stream: whose each one is, and when its arguments are complete."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import orjson

from gateway.core.reply import TextBuffer

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
