"""The answer of one model call, as read from a copy of its bytes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from io import StringIO
from typing import Generic, TypeVar

from policies.types import Usage

BYTES_PER_TOKEN = 4
"""Of text that no engine has counted."""
MOST_CHARS = 2 * 2**20
"""No model writes more in one answer. Of a longer one only the characters are counted."""
MOST_CALLS = 1024
"""More tool calls of one answer are nonsense."""


class TextBuffer:
    """Text that comes in pieces. Appending costs what the piece costs; `text += piece` would copy all of it.

    Reading the text (`str`) joins the pieces: do that once the text is whole, not for each piece.
    """

    __slots__ = ("_pieces", "latest", "num_chars")

    def __init__(self, text: str = "") -> None:
        self._pieces = StringIO()
        self.latest = ""
        """The last piece."""
        self.num_chars = 0
        if text:
            self.append(text)

    def append(self, piece: str) -> None:
        self._pieces.write(piece)
        self.latest = piece
        self.num_chars += len(piece)

    def __str__(self) -> str:
        return self._pieces.getvalue()

    def __repr__(self) -> str:
        return repr(str(self))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TextBuffer) and str(self) == str(other)

    __hash__ = None  # type: ignore[assignment]


class ToolCall:
    """A tool call that the model wrote. Its arguments may still be incomplete."""

    __slots__ = ("id", "name", "written")

    def __init__(self, id_: str = "", name: str = "", arguments: str = "") -> None:
        self.id = id_
        self.name = name
        self.written = TextBuffer(arguments)

    @property
    def arguments(self) -> str:
        return str(self.written)

    def __repr__(self) -> str:
        return f"ToolCall({self.id!r}, {self.name!r}, {self.arguments!r})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ToolCall):
            return NotImplemented
        return (self.id, self.name, self.written) == (other.id, other.name, other.written)

    __hash__ = None  # type: ignore[assignment]


CallT = TypeVar("CallT", bound=ToolCall)


class ToolCalls(list[CallT], Generic[CallT]):
    """The calls of one answer, in the order in which they began, each put together from its pieces."""

    __slots__ = ("_by_index", "_kind")

    def __init__(self, kind: type[CallT], whole: Iterable[CallT] = ()) -> None:
        """`whole`: calls that are complete."""
        super().__init__(whole)
        self._kind = kind
        self._by_index: dict[int, CallT] = {}

    def at(self, index: int) -> CallT | None:
        """The call that the engine numbers so; None: it has not begun."""
        return self._by_index.get(index)

    def put_piece(self, index: int, id_: str | None, name: str | None, arguments: str) -> CallT:
        """Add a piece to the call at `index`, which begins with its first piece; or all of it at once."""
        call = self._by_index.get(index)
        if call is None:
            call = self._by_index[index] = self._kind()
            self.append(call)
        call.id = id_ or call.id
        call.name = call.name or name or ""
        if arguments:
            call.written.append(arguments)
        return call


@dataclass(slots=True)
class Reply:
    """The answer of one model call."""

    status: int = 0
    id: str = ""
    """The engine's id of a stored answer (`/v1/responses`)."""
    served_by: str | None = None
    """Name of the KV pool that computed the answer, where the engine reports it."""
    model: str = ""
    written: TextBuffer = field(default_factory=TextBuffer)
    """The text of the answer."""
    tool_calls: ToolCalls[ToolCall] = field(default_factory=lambda: ToolCalls(ToolCall))
    finish_reason: str | None = None
    usage: Usage = Usage()
    is_complete: bool = False
    """Whether the engine ended the answer itself."""
    num_events: int = 0
    """Events of its stream. An engine sends one for each token, or for several."""
    num_other_chars: int = 0
    """Characters of streamed text that is not part of `written`: reasoning, and further choices."""
    has_other_answers: bool = False
    """Whether a further choice was read."""
    is_usage_of_one: bool = False
    """Whether the usage came in an event with a choice: with several answers it is that of one of them."""
    is_charged: bool = False
    """Whether its charge is among those of earlier model calls."""

    @property
    def charge(self) -> Usage:
        """The usage that limits count: as the engine reported it, but of an answer that was not read to its usage
        at least the tokens that were relayed. An Anthropic stream reports its prompt first and its output last."""
        usage = self.usage
        is_whole = self.is_complete and not (self.is_usage_of_one and self.has_other_answers)
        if is_whole and usage.prompt_tokens is not None:
            return usage
        output_tokens = max(usage.output_tokens or 0, self.relayed_tokens)
        return Usage(usage.prompt_tokens, usage.cached_tokens, output_tokens)

    @property
    def relayed_tokens(self) -> int:
        """An estimate of the tokens of a stream: one for each event, or more for events that are long."""
        texts = [self.written, *(call.written for call in self.tool_calls)]
        if (num_bytes := self.num_chars) <= MOST_CHARS:
            num_bytes = sum(len(str(text).encode(errors="replace")) for text in texts)
        return max(self.num_events, (num_bytes + self.num_other_chars) // BYTES_PER_TOKEN)

    @property
    def num_chars(self) -> int:
        """Of its text and of the arguments of its calls."""
        return self.written.num_chars + sum([call.written.num_chars for call in self.tool_calls])

    @property
    def text(self) -> str:
        return str(self.written)
