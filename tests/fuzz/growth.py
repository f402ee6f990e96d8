"""Input in which one thing is repeated, for every place where a client, an engine or a model can repeat something.

Each place gives work for any number of repeats. `test_growth.py` holds the law: twice as much takes at most about
twice the time. A new place is one more entry here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any, TypeAlias

import orjson

from batch_agent.calls import events_of, joined
from benchmarks.fuzz.targets import KINDS, FuzzedGateway
from gateway.access.keys import ANONYMOUS
from gateway.batches import input_file
from gateway.batches.files import BadForm, FormSplitter, boundary_of
from gateway.config.live_settings import RequestSettings
from gateway.core import sse
from gateway.core.fields import Json
from gateway.core.json_edit import Edit, edited
from gateway.core.reply import Reply, ToolCall, ToolCalls
from gateway.core.transport import Request, Responder, Timeouts
from gateway.dialects import BY_PATH
from gateway.engines.base import names_field
from gateway.engines.kinds import adapter_of
from gateway.engines.providers.anthropic import AnthropicEvents, anthropic_request
from gateway.engines.providers.translation import BodyWriter, StreamWriter, read_chat
from gateway.exchange import Exchange, Payload, Timings
from gateway.prompt_lists.gather import PartFailed, PartRequest, PromptPart, StreamedAnswer
from gateway.request import upstream_request
from gateway.request.inprocess import Continuation, InProcessRequest
from gateway.sessions.identity import Identity
from gateway.sessions.prefix_breaks import Rewrite, owner_of
from gateway.transport import Name, transport_of
from policies.recognition.chains import message_links
from policies.recognition.conversations import Conversations
from policies.recognition.prefix_breaks import LEARNED_AFTER, Break, Found, Gap, after, before
from policies.recognition.prompts import Call, Prompt, SummaryRequest
from policies.recognition.summaries import Summaries
from tests.fuzz.shapes import (
    ANSWERS,
    CHAT,
    ERRORS,
    FORMS,
    IN_EACH_FORMAT,
    LINES,
    NAMES,
    OF_EACH_FORMAT,
    PAGES,
    PIECE,
    REQUESTS,
    SHORT,
    SPOKEN,
    STEADY,
    STREAMS,
    Body,
    argument,
    block,
    chat_stream,
    in_bytes,
    messages,
    messages_stream,
    parts,
    raw_of,
    rounds,
    user,
    volatile,
    volatile_lines,
)
from tool_runtime.arguments import Schema
from tool_runtime.web import page_text

Work: TypeAlias = Callable[[], object]
Made: TypeAlias = Callable[[int], AbstractContextManager[Work]]
Place: TypeAlias = tuple[int, Made]
"""How many repeats show the law, and what is to be done for any number of them."""

TRANSPORTS: tuple[Name, ...] = ("fast", "aiohttp")

# So that no bound on the number of anything hides how it grows.
BOUNDS = {"body_bytes": 2**30, "messages": 10**7, "tools": 10**7}
PLAIN = {"limits": BOUNDS, "tools": {}}
FULL = {
    "limits": BOUNDS,
    "identity": {"volatile_spans": "move", "volatile_patterns": [r"^x-[^\n]*\n?"]},
}
"""Tools of its own are offered, and volatile spans are moved."""
GATEWAYS: Mapping[str, Mapping[str, Any]] = {"plain": PLAIN, "full": FULL}


_STREAMED, _WHOLE, _ERROR = b"\3\1", b"\2\1", b"\4\1"
_STATUSES = (200, 400, 502)
"""What is refused is a shape too; 502 is an engine's answer that is none."""


@contextmanager
def asked(settings: Mapping[str, Any], path: str, raw: bytes, *answers: bytes) -> Iterator[Work]:
    """A request and its answer through a gateway that has never seen either."""
    gateway = FuzzedGateway(settings)

    def work() -> None:
        answer = gateway.ask(path, raw, list(answers))
        assert answer.status in _STATUSES, answer.body[:300]

    try:
        yield work
    finally:
        gateway.close()


def _requested(settings: Mapping[str, Any], path: str, body: Body) -> Made:
    streamed = _STREAMED + b"\1".join(SPOKEN[path](["hi"]))
    return lambda num: asked(settings, path, raw_of(body(num), stream=True), streamed)


def _streamed(settings: Mapping[str, Any], path: str, chunks: Callable[[int], list[bytes]]) -> Made:
    raw = raw_of(SHORT[path], stream=True)
    return lambda num: asked(settings, path, raw, _STREAMED + b"\1".join(chunks(num)))


def _answered(settings: Mapping[str, Any], path: str, answer: Callable[[int], Json]) -> Made:
    return lambda num: asked(settings, path, raw_of(SHORT[path]), _WHOLE + orjson.dumps(answer(num)))


def _refused(settings: Mapping[str, Any], path: str, error: Callable[[int], bytes]) -> Made:
    return lambda num: asked(settings, path, raw_of(SHORT[path]), *[_ERROR + error(num)] * 3)


@contextmanager
def just(work: Work) -> Iterator[Work]:
    yield work


# What is no request through the whole path.


def split(made: Callable[[int], bytes], num: int) -> AbstractContextManager[Work]:
    """A form, in the chunks in which it may come."""
    chunks = in_bytes([made(num)], 1500)

    def work() -> None:
        splitter = FormSplitter(b"edge")
        with suppress(BadForm):
            for chunk in chunks:
                for _ in splitter.feed(chunk):
                    pass

    return just(work)


@contextmanager
def read_lines(made: Callable[[int], bytes], num: int) -> Iterator[Work]:
    """An input file of a batch: checked, and each line of it read again."""
    dialect = BY_PATH[CHAT]
    script = partial(input_file.script_of, dialect)
    endpoint = input_file.Endpoint(CHAT, dialect.check, script, lambda model: None)
    limits = input_file.LineLimits(2**30, 2**30)
    with NamedTemporaryFile() as file:
        file.write(made(num))
        file.flush()
        raw, path = Path(file.name).read_bytes(), Path(file.name)

        def work() -> None:
            for line in input_file.read(path, endpoint, limits).lines:
                input_file.body_of(raw[line.offset : line.offset + line.size_bytes])

        yield work


def polled(kind: str, made: Callable[[int], str], num: int) -> AbstractContextManager[Work]:
    """Pages of an engine, all of them the same."""
    engine, page = adapter_of(kind), made(num)
    texts = dict.fromkeys((*engine.metrics_paths, *engine.probe_paths, "/v1/models"), page)

    def work() -> None:
        with suppress(ValueError):  # the poller reports it
            engine.parse_report(texts)
            engine.learn(texts, engine.abilities())

    return just(work)


HTML: Mapping[str, tuple[int, Callable[[int], str]]] = {
    "tags": (50_000, lambda n: "<p>a" * n),
    "beginnings of tags": (200_000, lambda n: "<a" * n),
    "a tag without an end": (500_000, lambda n: "<a " + "b" * n),
    "beginnings of comments": (100_000, lambda n: "<!--" * n),
    "comments": (50_000, lambda n: "<!-- a -->b" * n),
    "spaces": (500_000, lambda n: "a" + " " * n),
    "entities": (50_000, lambda n: "&amp;&#1;&nosuch" * n),
    "scripts": (50_000, lambda n: "<script>a</script>b" * n),
    "scripts without an end": (50_000, lambda n: "<script>" * n),
    "a long name": (500_000, lambda n: "<" + "a" * n + ">"),
}
"""Pages that a tool reads."""


def read_page(made: Callable[[int], str], num: int) -> AbstractContextManager[Work]:
    page = made(num)
    return just(lambda: page_text(page))


def boundary(content_type: str) -> Work:
    def work() -> None:
        with suppress(BadForm):
            boundary_of(content_type)

    return work


def exchange(number: int, body: Json) -> Exchange:
    raw = orjson.dumps(body)
    request = InProcessRequest(CHAT, [], raw)
    return Exchange(str(number), request, BY_PATH[CHAT], Timings(0.0), payload=Payload(raw, orjson.loads(raw)))


@dataclass
class Heard:
    """What a stream of Anthropic's service becomes."""

    chunks: Sequence[bytes]

    def __call__(self) -> None:
        events = AnthropicEvents(StreamWriter(0, wants_usage=True))
        for chunk in self.chunks:
            events.feed(chunk)


def told_in_pieces(num: int) -> Work:
    def work() -> None:
        writer = BodyWriter(0)
        writer.open_call("c", "f")
        for _ in range(num):
            writer.write_arguments(PIECE)
        writer.body()

    return work


def translated(body: Json) -> Work:
    return lambda: anthropic_request(read_chat(body))


def read_whole(chunks: Sequence[bytes]) -> Work:
    raw = b"".join(chunks)
    return lambda: joined(events_of(raw))


def passed_on(texts: Sequence[str], *, again: bool) -> Work:
    """One prompt of a list, whose engine breaks off once if it is asked `again`."""
    events = [sse.event(orjson.dumps({"choices": [{"index": 0, "text": text}]})) for text in texts]
    end = sse.event(b'{"choices":[{"index":0,"text":"","finish_reason":"stop"}]}')

    async def main() -> None:
        num_asked = 0

        async def handle(request: Request, responder: Responder) -> None:
            nonlocal num_asked
            num_asked += 1
            await responder.open_stream(200, [])
            for event in [*events, end] if num_asked > again else events:
                await responder.write(event)
            responder.reset()

        async def write(data: bytes) -> None: ...

        part, sink = PromptPart((0,), ("hi",)), StreamedAnswer(handle, 1, {}, write)
        begun = Continuation(RequestSettings(), ANONYMOUS)
        with suppress(PartFailed):
            await sink.ask(part, PartRequest([], b"", begun))
        if again:
            await sink.ask(part, PartRequest([], b"", begun))

    return lambda: asyncio.run(main())


def put_back(body: Json) -> Work:
    raw = orjson.dumps(body)
    edits = [Edit(at, at + 1, user("hi") * 2) for at in range(1, len(body["messages"]), 2)]
    return lambda: edited(raw, body, "messages", edits)


def refused(quoted: str) -> Work:
    """A 400 in which an engine quotes what a client sent."""
    message = f"This model's maximum context length is 10 tokens. expected one of `x`, got {quoted}"
    return lambda: (upstream_request.after_refusal(message, 1, 1, may_omit=True), names_field(message, "priority"))


def checked(arguments: Json) -> Work:
    """Arguments that a model wrote for a tool."""
    items = {"type": "array", "uniqueItems": True, "items": {"type": "object"}}
    schema = Schema({"type": "object", "properties": {"items": items}})
    return partial(schema.read, orjson.dumps(arguments).decode())


@contextmanager
def learned(system: Any) -> Iterator[Work]:
    """A system text with what has broken the prefixes of siblings, everywhere in it."""
    rewrite = Rewrite(True, (), ["header"])
    made = exchange(0, messages([{"role": "system", "content": system}], user("hi")))
    owner, around = owner_of(made), [hash(line) for line in STEADY]
    gap = Gap(before(owner, around), after(owner, around, 0), "header")
    rewrite.learn(Found("family", LEARNED_AFTER, Break(0, 0, "header", "system", 1, 0, (gap,))))

    def work() -> None:
        rewrite.apply(made)
        assert made.notes, "nothing was learned"

    yield work


SIBLINGS = 1_024


@contextmanager
def followed_by_many(num: int) -> Iterator[Work]:
    """A long prompt that may be the next turn of any of many sessions, each of which has another answer."""
    identity = Identity(secret=b"s")

    def recognise(made: Exchange) -> None:
        identity.recognise(made, identity.script(made), 0.0)

    for number in range(SIBLINGS):
        first = exchange(number, messages(user("Fix it.")))
        recognise(first)
        first.reply = Reply(tool_calls=ToolCalls(ToolCall, [ToolCall(f"call_{number:012}", "f", "{}")]))
        identity.answered(first, True, 1.0)
    last = exchange(SIBLINGS, messages(user("Fix it."), user("a") * num))
    yield lambda: recognise(last)


def summed_up(num: int) -> Work:
    """A prompt that may begin with any of many summaries, which begin alike."""
    summaries, strands, key = Summaries(), Conversations(10, 1e9), b"key"
    for number in range(SIBLINGS):
        summaries.keep(SummaryRequest(key, 0.0, {}), b"They all begin so.\\nAnd this is number %d." % number)
    call = Call(key, (b"tool",), b"", [b"They all begin so.\\n" * num])
    asked = Prompt(call, message_links(key, call.messages), 0.0)
    return lambda: summaries.restarted(strands, asked)


@contextmanager
def received(transport: Name, num: int) -> Iterator[Work]:
    """A request whose body comes in chunks of one byte."""
    wire = b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1\r\na\r\n" * num + b"0\r\n\r\n"

    async def handler(request: Request, responder: Responder) -> None:
        body = await request.read(2**30)
        await responder.reply(200, [], str(len(body)).encode())

    async def main() -> None:
        server = transport_of(transport).server(handler)
        port = await server.start("127.0.0.1", 0)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(wire)
        answer = await reader.readuntil(str(num).encode())
        assert answer.startswith(b"HTTP/1.1 200")
        writer.close()
        await server.stop(0)

    yield lambda: asyncio.run(main())


@contextmanager
def called(transport: Name, num: int) -> Iterator[Work]:
    """An engine's answer that comes in chunks of one byte."""
    wire = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1\r\na\r\n" * num + b"0\r\n\r\n"

    async def engine(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(wire)
        await writer.drain()
        writer.close()

    async def main() -> None:
        listener = await asyncio.start_server(engine, "127.0.0.1", 0)
        port = listener.sockets[0].getsockname()[1]
        upstream = transport_of(transport).upstream()
        reply = await upstream.call("GET", f"http://127.0.0.1:{port}/", [], None, Timeouts())
        assert len(await reply.read(2**30)) == num
        reply.close(reuse=True)
        await upstream.close()
        listener.close()

    yield lambda: asyncio.run(main())


OTHERS: Mapping[str, Place] = {
    **{f"form: {name}": (num, partial(split, made)) for name, (num, made) in FORMS.items()},
    **{f"lines {name}": (num, partial(read_lines, made)) for name, (num, made) in LINES.items()},
    **{
        f"{kind}: {name} of a page": (num, partial(polled, kind, made))
        for kind in KINDS
        for name, (num, made) in PAGES.items()
    },
    **{f"web page: {name}": (num, partial(read_page, made)) for name, (num, made) in HTML.items()},
    "form: parameters of its type": (
        20_000,
        lambda n: just(boundary("multipart/form-data" + ";a" * n + "; boundary=edge")),
    ),
    "form: quotes of its type": (20_000, lambda n: just(boundary('multipart/form-data; a="' + ";" * n))),
    "anthropic: pieces of a text": (
        10_000,
        lambda n: just(
            Heard(
                messages_stream(
                    block(0, {"type": "text", "text": ""}, [{"type": "text_delta", "text": PIECE}] * n)
                )
            )
        ),
    ),
    "anthropic: parts of a request": (10_000, lambda n: just(translated(messages(user(parts(n)))))),
    "anthropic: pieces of arguments in a body": (50_000, lambda n: just(told_in_pieces(n))),
    "batch agent: pieces of a text": (50_000, lambda n: just(read_whole(chat_stream([{"content": PIECE}] * n)))),
    "batch agent: pieces of arguments": (
        50_000,
        lambda n: just(read_whole(chat_stream([argument(0, PIECE, "c")] * n))),
    ),
    "list of prompts: pieces of a text": (10_000, lambda n: just(passed_on([PIECE] * n, again=False))),
    "list of prompts: pieces of a text, again": (10_000, lambda n: just(passed_on([PIECE] * n, again=True))),
    "tool loop: answers put back": (20_000, lambda n: just(put_back(messages(rounds(n))))),
    "refusal: digits that an engine quotes": (20_000, lambda n: just(refused("1" * n))),
    "tool: unique items": (1_000, lambda n: just(checked({"items": [{"at": m} for m in range(n)]}))),
    "rewrite: learned spans of parts": (2_000, lambda n: learned(volatile(n))),
    "rewrite: learned spans of a text": (10_000, lambda n: learned(volatile_lines(n))),
    "lineage: messages behind a prompt of many siblings": (20_000, followed_by_many),
    "lineage: passages of a prompt after many summaries": (20_000, lambda n: just(summed_up(n))),
    **{f"{name}: chunks of a request": (50_000, partial(received, name)) for name in TRANSPORTS},
    **{f"{name}: chunks of an answer": (50_000, partial(called, name)) for name in TRANSPORTS},
}
"""Work that is not asked of a whole gateway."""


def places() -> dict[str, Place]:
    """All of them, by name."""
    found: dict[str, Place] = {}
    for kind, settings in GATEWAYS.items():
        for name, (num, path, body) in REQUESTS.items():
            if kind == "full" and name in OF_EACH_FORMAT and path != CHAT:
                continue  # what it does beside is common to all formats
            found[f"{kind} gateway, request, {name}"] = num, _requested(settings, path, body)
        for name, (num, path, chunks) in STREAMS.items():
            if kind == "full" and name in IN_EACH_FORMAT and path != CHAT:
                continue
            found[f"{kind} gateway, stream, {name}"] = num, _streamed(settings, path, chunks)
        for name, (num, path, answer) in ANSWERS.items():
            found[f"{kind} gateway, answer, {name}"] = num, _answered(settings, path, answer)
    for path, dialect in NAMES.items():
        for name, (num, error) in ERRORS.items():
            found[f"error, {dialect}: {name}"] = num, _refused(PLAIN, path, error)
    return found | dict(OTHERS)
