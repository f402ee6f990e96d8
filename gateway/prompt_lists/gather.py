"""Gathers the answers to the parts of a prompt list into one answer, whole or streamed.

Law: prompt p of the client's list has the choices p * n to p * n + n - 1, however the list was cut.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from gateway.core import fields, sse
from gateway.core.errors import Failure
from gateway.core.fields import Json
from gateway.core.reply import TextBuffer
from gateway.core.sse import EventSplitter, data_of
from gateway.core.transport import Handler, HeaderList
from gateway.dialects import canonical
from gateway.dialects.base import Prompt, kind_of, openai_error
from gateway.dialects.completions import PATH, Completions
from gateway.dialects.rounds import added
from gateway.request.inprocess import FAILED, Continuation, InProcessRequest, InProcessResponder


@dataclass(frozen=True, slots=True)
class PromptPart:
    """Prompts that go out in one request."""

    indexes: tuple[int, ...]
    """The place of each prompt in the client's list."""
    prompts: tuple[Prompt, ...]

    def halves(self) -> tuple[PromptPart, PromptPart]:
        middle = len(self.indexes) // 2
        return (
            PromptPart(self.indexes[:middle], self.prompts[:middle]),
            PromptPart(self.indexes[middle:], self.prompts[middle:]),
        )

    def only(self, positions: Sequence[int]) -> PromptPart:
        """Return the prompts at these positions of the part."""
        return PromptPart(tuple(self.indexes[p] for p in positions), tuple(self.prompts[p] for p in positions))


class BadPart(Exception):
    """An engine's answer does not have the choices of its part."""


class Choices:
    """The choices of a whole answer, in the order of the client's list."""

    def __init__(self, n: int) -> None:
        self._n = n
        self._found: dict[int, Json] = {}
        self.frame: Json = {}
        """The first answer without its choices and its usage."""
        self.usage: Json = {}

    def add_answer(self, part: PromptPart, body: Json) -> None:
        """Raises BadPart, and then has added nothing."""
        choices = {fields.integer(choice, "index"): choice for choice in canonical.objects(body.get("choices"))}
        if set(choices) != set(range(len(part.indexes) * self._n)):
            raise BadPart
        for local, choice in choices.items():
            assert local is not None
            index = index_of(part, local, self._n)
            self._found[index] = {**choice, "index": index}
        self.frame = self.frame or {key: value for key, value in body.items() if key not in ("choices", "usage")}
        self.usage = added(fields.obj(body, "usage"), self.usage)

    def fail(self, index: int, failure: Failure) -> None:
        """Give a prompt without an answer choices that carry the error."""
        for choice in failed(index, self._n, failure):
            self._found[choice["index"]] = choice

    def body(self, about: Json) -> bytes:
        """Return the whole answer. `about` replaces fields of the engine's frame."""
        choices = [self._found[index] for index in sorted(self._found)]
        return fields.written({**self.frame, **about, "choices": choices, "usage": self.usage})


def index_of(part: PromptPart, local: int, n: int) -> int:
    """Return the index in the whole answer of a choice of a part."""
    prompt, copy = divmod(local, n)
    return part.indexes[prompt] * n + copy


def failed(index: int, n: int, failure: Failure) -> list[Json]:
    """Return the choices of a prompt that has no answer."""
    error = openai_error(failure)
    frame = {"text": "", "logprobs": None, "finish_reason": "error", "error": error}
    return [{"index": index * n + copy, **frame} for copy in range(n)]


# ---- sends one part, and gathers its answer

_DIALECT = Completions()
_NO_ANSWER = Failure(502, "server_error", "What an engine sent is no answer to the prompts.")


class PartRequest(InProcessRequest):
    """The request for one part. It is not cut again, and continues the request of its list."""

    def __init__(self, header_list: HeaderList, body: bytes, begun: Continuation) -> None:
        super().__init__(PATH, header_list, body)
        self.begun = begun


class PartFailed(Exception):
    """A part has no answer, or an incomplete one."""

    def __init__(self, left: PromptPart, failure: Failure, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(failure.message)
        self.left = left
        """The prompts that still need an answer."""
        self.failure = failure
        self.headers = headers or {}


@dataclass(frozen=True, slots=True)
class Template:
    """The request that all parts share."""

    session: str
    headers: HeaderList
    opening: bytes
    """The client's body up to the prompts, which follow."""
    begun: Continuation

    def request(self, part: PromptPart, number: int) -> PartRequest:
        """Make a request. Each `number` is a session of its own."""
        session = ("x-turngate-session", f"{self.session}/{number}")
        body = self.opening + fields.written(part.prompts) + b"}"
        return PartRequest([session, *self.headers], body, self.begun)


class Sink(Protocol):
    async def ask(self, part: PromptPart, request: PartRequest) -> None:
        """Send a part once. Raises PartFailed."""
        ...

    async def fail(self, index: int, failure: Failure) -> None:
        """Give a prompt without an answer its error."""
        ...


class WholeAnswer:
    """Gathers whole answers into one."""

    def __init__(self, handle: Handler, n: int) -> None:
        self._handle = handle
        self.choices = Choices(n)

    async def ask(self, part: PromptPart, request: PartRequest) -> None:
        responder = InProcessResponder()
        await self._handle(request, responder)
        if responder.status != 200:
            raise _failed(part, responder, responder.body)
        try:
            self.choices.add_answer(part, _object(responder.body) or {})
        except BadPart:
            raise PartFailed(part, _NO_ANSWER) from None

    async def fail(self, index: int, failure: Failure) -> None:
        self.choices.fail(index, failure)


@dataclass(slots=True)
class _Written:
    """The text of one choice that the client has."""

    written: TextBuffer = field(default_factory=TextBuffer)
    is_finished: bool = False


@dataclass(slots=True)
class StreamedAnswer:
    """Passes events on with the indexes of the whole list.

    A part that is sent again continues where it broke off. It fails if its text up to there is another one.
    """

    handle: Handler
    n: int
    frame: Json
    """Fields that replace those of the engines."""
    write: Callable[[bytes], Awaitable[None]]
    usage: Json = field(default_factory=dict)
    _said: dict[int, _Written] = field(default_factory=dict)

    async def ask(self, part: PromptPart, request: PartRequest) -> None:
        stream = _Stream(self, part)
        responder = InProcessResponder(stream.feed)
        await self.handle(request, responder)
        left = self.left(part)
        if not left.indexes:
            return  # a failure after the last answer does no harm
        if stream.failure is not None:
            raise PartFailed(left, stream.failure)
        if responder.status != 200:
            raise _failed(part, responder, responder.body)
        raise PartFailed(left, Failure(502, "server_error", "An engine broke off in the middle of an answer."))

    async def fail(self, index: int, failure: Failure) -> None:
        choices = [c for c in failed(index, self.n, failure) if not self.said(c["index"]).is_finished]
        for choice in choices:
            self.said(choice["index"]).is_finished = True
        await self.write(self.event(choices))

    def said(self, index: int) -> _Written:
        return self._said.setdefault(index, _Written())

    def left(self, part: PromptPart) -> PromptPart:
        """Return the prompts of which some choice is not finished."""
        copies = range(self.n)
        return part.only(
            [
                position
                for position, index in enumerate(part.indexes)
                if not all(self.said(index * self.n + copy).is_finished for copy in copies)
            ]
        )

    def event(self, choices: list[Json], of: Json | None = None) -> bytes:
        return sse.event(fields.written({**(of or {}), **self.frame, "choices": choices}))


class _Stream:
    """One attempt at a part."""

    def __init__(self, sink: StreamedAnswer, part: PromptPart) -> None:
        self._sink = sink
        self._part = part
        self._splitter = EventSplitter()
        self._heard: dict[int, int] = {}
        """Characters that each choice has got in this attempt."""
        self._earlier: dict[int, str] = {}
        """Text that each choice got in earlier attempts."""
        self.failure: Failure | None = None

    async def feed(self, chunk: bytes) -> None:
        out = []
        for event in self._splitter.feed(chunk):
            data = data_of(event)
            if data is None or data == b"[DONE]" or self.failure is not None:
                continue
            parsed = _object(data)
            self.failure = _NO_ANSWER if parsed is None else _DIALECT.is_error(parsed)
            if parsed is not None and self.failure is None and (shown := self._shown(parsed)):
                out.append(self._sink.event(shown, parsed))
        if out:
            await self._sink.write(b"".join(out))

    def _shown(self, event: Json) -> list[Json]:
        if usage := fields.obj(event, "usage"):
            self._sink.usage = added(usage, self._sink.usage)
        event.pop("usage", None)
        choices = canonical.objects(event.get("choices"))
        return [shown for choice in choices if (shown := self._choice(choice)) is not None]

    def _choice(self, choice: Json) -> Json | None:
        """Return the part of a choice that the client does not have. None: it has all."""
        local = fields.integer(choice, "index") or 0
        if not 0 <= local < len(self._part.indexes) * self._sink.n:
            self.failure = _NO_ANSWER
            return None
        index = index_of(self._part, local, self._sink.n)
        said, text = self._sink.said(index), fields.text(choice, "text") or ""
        if said.is_finished:
            return None
        if local not in self._earlier:
            self._earlier[local] = str(said.written)
        heard = self._heard.get(local, 0)
        self._heard[local] = heard + len(text)
        again = self._earlier[local][heard : heard + len(text)]
        if text[: len(again)] != again:
            why = "An engine broke off in the middle of an answer, and another gave another answer."
            self.failure = Failure(500, "server_error", why, code="answer_changed")
            return None
        new = text[len(again) :]
        said.is_finished = choice.get("finish_reason") is not None
        if again and not new and not said.is_finished:
            return None
        if said.is_finished:
            said.written = TextBuffer()  # no later text is compared with it
        else:
            said.written.append(new)
        return {**choice, "index": index, "text": new}


def _object(raw: bytes) -> Json | None:
    """Read a JSON object. None: the text is something else."""
    parsed, _ = fields.parsed(raw)
    return parsed if isinstance(parsed, dict) else None


def _failed(part: PromptPart, responder: InProcessResponder, body: bytes) -> PartFailed:
    status = responder.status or 502
    reported = _DIALECT.is_error(_object(body or FAILED) or {})
    text = body[:2_000].decode(errors="replace")
    failure = reported or Failure(status, kind_of(status), text)
    return PartFailed(
        part, Failure(status, failure.kind, failure.message, failure.param, failure.code), responder.headers
    )
