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
from typing import Any, TypeAlias

import orjson

from batch_agent.calls import events_of, joined
from benchmarks.fuzz.targets import FuzzedGateway
from gateway.access.keys import ANONYMOUS
from gateway.batches.files import BadForm, FormSplitter, boundary_of
from gateway.config.live_settings import RequestSettings
from gateway.core import sse
from gateway.core.fields import Json
from gateway.core.json_edit import Edit, edited
from gateway.core.reply import Reply, ToolCall, ToolCalls
from gateway.core.transport import Request, Responder, Timeouts
from gateway.dialects import BY_PATH
from gateway.engines.base import names_field
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
from tool_runtime.arguments import Schema

CHAT, COMPLETIONS, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"

Work: TypeAlias = Callable[[], object]
Made: TypeAlias = Callable[[int], AbstractContextManager[Work]]
Place: TypeAlias = tuple[int, Made]
"""How many repeats show the law, and what is to be done for any number of them."""

LONG = "long "
LONG_CHARS = 400
"""Beside each repeat: where what has come is copied for each one more, these are copied too."""

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


def long_text(num: int) -> str:
    return LONG * (num * LONG_CHARS // len(LONG))


def parts(num: int, kind: str = "text") -> list[Json]:
    """One long text, and many short ones behind it."""
    return [{"type": kind, "text": long_text(num)}, *({"type": kind, "text": "a"} for _ in range(num))]


def mixed(num: int) -> list[Json]:
    """Texts with something else between them."""
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    return [{"type": "text", "text": long_text(num)}, *({"type": "text", "text": "a"}, image) * num]


def user(content: Any) -> list[Json]:
    return [{"role": "user", "content": content}]


def call(number: int, arguments: str = "{}") -> Json:
    return {"id": f"call_{number:012}", "type": "function", "function": {"name": "f", "arguments": arguments}}


def function(number: int) -> Json:
    return {"type": "function", "function": {"name": f"f{number}", "parameters": {"type": "object"}}}


def nested_tools(num: int) -> list[Json]:
    """Namespaces in namespaces, as deep as they are written here, around many tools."""
    tools: list[Json] = [{"type": "function", "name": f"f{n}"} for n in range(num)]
    for depth in range(120):
        tools = [{"type": "namespace", "name": f"n{depth}", "tools": tools}]
    return tools


STEADY = (b"Be exact" + b"!" * LONG_CHARS, b"Be kind")


def volatile_lines(num: int) -> str:
    """A system text in which something volatile stands again and again."""
    return "".join(f"{STEADY[0].decode()}\n{STEADY[1].decode()}\nx-amz-id: {n}\n" for n in range(num))


def volatile(num: int) -> list[Json]:
    """The same in parts."""
    lines = volatile_lines(num).splitlines()
    return [{"type": "text", "text": "\n".join(lines[at : at + 3])} for at in range(0, len(lines), 3)]


def rounds(num: int) -> list[Json]:
    """A history of tool calls."""
    return [
        *user("Fix it."),
        *(
            message
            for n in range(num)
            for message in (
                {"role": "assistant", "content": None, "tool_calls": [call(n)]},
                {"role": "tool", "tool_call_id": f"call_{n:012}", "content": "ok"},
            )
        ),
    ]


def messages(*values: Any) -> Json:
    return {"messages": [message for value in values for message in value]}


REQUESTS: Mapping[str, tuple[int, str, Callable[[int], Json]]] = {
    "chat: parts of a message": (10_000, CHAT, lambda n: messages(user(parts(n)))),
    "chat: parts of text and images": (10_000, CHAT, lambda n: messages(user(mixed(n)))),
    "chat: parts of a system text": (
        10_000,
        CHAT,
        lambda n: messages([{"role": "system", "content": parts(n)}], user("hi")),
    ),
    "chat: system messages": (
        20_000,
        CHAT,
        lambda n: messages([{"role": "developer", "content": long_text(1)}] * n, user("hi")),
    ),
    "chat: parts of a tool's result": (
        10_000,
        CHAT,
        lambda n: messages(rounds(1), [{"role": "tool", "tool_call_id": "c", "content": parts(n)}]),
    ),
    "chat: rounds of tool calls": (10_000, CHAT, lambda n: messages(rounds(n))),
    "chat: calls of one message": (
        20_000,
        CHAT,
        lambda n: messages(
            user("hi"), [{"role": "assistant", "content": None, "tool_calls": [call(m) for m in range(n)]}]
        ),
    ),
    "chat: messages": (20_000, CHAT, lambda n: messages(user("hi") * n)),
    "chat: tools": (10_000, CHAT, lambda n: messages(user("hi")) | {"tools": [function(m) for m in range(n)]}),
    "chat: tools in namespaces": (20_000, CHAT, lambda n: messages(user("hi")) | {"tools": nested_tools(n)}),
    "chat: keys of the body": (20_000, CHAT, lambda n: messages(user("hi")) | {f"key{m}": m for m in range(n)}),
    "chat: escapes of a text": (200_000, CHAT, lambda n: messages(user('\n"' * n))),
    "chat: brackets of a text": (200_000, CHAT, lambda n: messages(user("[{" * n))),
    "chat: texts of a list beside": (100_000, CHAT, lambda n: {"stop": ["a\n"] * n} | messages(user("hi"))),
    "chat: volatile parts of a system text": (
        2_000,
        CHAT,
        lambda n: messages([{"role": "system", "content": volatile(n)}], user("hi")),
    ),
    "chat: volatile system messages": (
        2_000,
        CHAT,
        lambda n: messages(({"role": "system", "content": [part]} for part in volatile(n)), user("hi")),
    ),
    "chat: volatile lines of a system text": (
        10_000,
        CHAT,
        lambda n: messages([{"role": "system", "content": volatile_lines(n)}], user("hi")),
    ),
    "completions: prompts": (200, COMPLETIONS, lambda n: {"prompt": [f"{LONG * 100}{m}" for m in range(n)]}),
    "completions: token ids": (200_000, COMPLETIONS, lambda n: {"prompt": list(range(n))}),
    "completions: turns of one prompt": (
        10_000,
        COMPLETIONS,
        lambda n: {"prompt": "<|im_start|>user\nhi<|im_end|>\n" * n},
    ),
    "completions: one long prompt": (10_000, COMPLETIONS, lambda n: {"prompt": long_text(n)}),
    "responses: parts of a message": (10_000, RESPONSES, lambda n: {"input": user(parts(n, "input_text"))}),
    "responses: parts of a system text": (
        10_000,
        RESPONSES,
        lambda n: {"input": [{"role": "system", "content": parts(n, "input_text")}, *user("hi")]},
    ),
    "responses: system items": (
        20_000,
        RESPONSES,
        lambda n: {"input": [{"role": "developer", "content": "Be exact."}] * n + user("hi")},
    ),
    "responses: items": (20_000, RESPONSES, lambda n: {"input": user("hi") * n}),
    "responses: parts of a tool's result": (
        10_000,
        RESPONSES,
        lambda n: {
            "input": [
                *user("hi"),
                {"type": "function_call_output", "call_id": "c", "output": parts(n, "input_text")},
            ]
        },
    ),
    "responses: parts of a summary": (
        10_000,
        RESPONSES,
        lambda n: {"input": [*user("hi"), {"type": "reasoning", "summary": parts(n, "summary_text")}]},
    ),
    "responses: a long instruction": (10_000, RESPONSES, lambda n: {"instructions": long_text(n), "input": "hi"}),
    "responses: volatile lines of an instruction": (
        10_000,
        RESPONSES,
        lambda n: {"instructions": volatile_lines(n), "input": "hi"},
    ),
    "responses: tools in namespaces": (20_000, RESPONSES, lambda n: {"input": "hi", "tools": nested_tools(n)}),
    "messages: blocks of a message": (10_000, MESSAGES, lambda n: messages(user(parts(n)))),
    "messages: blocks of a system text": (
        10_000,
        MESSAGES,
        lambda n: messages(user("hi")) | {"system": parts(n)},
    ),
    "messages: blocks of a tool's result": (
        10_000,
        MESSAGES,
        lambda n: messages(user("hi"), user([{"type": "tool_result", "tool_use_id": "c", "content": parts(n)}])),
    ),
    "messages: calls of one message": (
        20_000,
        MESSAGES,
        lambda n: messages(
            user("hi"),
            [
                {
                    "role": "assistant",
                    "content": [{"type": "tool_use", "id": f"c{m}", "name": "f", "input": {}} for m in range(n)],
                }
            ],
        ),
    ),
    "messages: volatile blocks of a system text": (
        2_000,
        MESSAGES,
        lambda n: messages(user("hi")) | {"system": volatile(n)},
    ),
}
"""Bodies: how many repeats, where they go, and the body."""


def chat_chunk(delta: Json, finish_reason: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
    return sse.event(orjson.dumps({"id": "c", "object": "chat.completion.chunk", "choices": [choice]}))


def chat_stream(deltas: Sequence[Json], finish_reason: str = "stop") -> list[bytes]:
    return [*map(chat_chunk, deltas), chat_chunk({}, finish_reason), sse.DONE]


def argument(index: int, text: str, id_: str | None = None) -> Json:
    about = {"id": id_, "type": "function"} if id_ else {}
    function = {"arguments": text} | ({"name": "theirs"} if id_ else {})
    return {"tool_calls": [{"index": index, **about, "function": function}]}


def event(kind: str, **fields: Any) -> bytes:
    return sse.event(orjson.dumps({"type": kind, **fields}), kind)


def responses_stream(events: Sequence[bytes], output: Sequence[Json] = ()) -> list[bytes]:
    answer = {"id": "r", "object": "response", "output": list(output)}
    return [
        event("response.created", response=answer | {"status": "in_progress"}),
        *events,
        event("response.completed", response=answer | {"status": "completed"}),
    ]


def block(index: int, about: Json, deltas: Sequence[Json]) -> list[bytes]:
    return [
        event("content_block_start", index=index, content_block=about),
        *(event("content_block_delta", index=index, delta=delta) for delta in deltas),
        event("content_block_stop", index=index),
    ]


def messages_stream(blocks: Sequence[bytes], reason: str = "end_turn") -> list[bytes]:
    return [
        event("message_start", message={"id": "m", "type": "message", "role": "assistant", "content": []}),
        *blocks,
        event("message_delta", delta={"stop_reason": reason}, usage={"output_tokens": 1}),
        event("message_stop"),
    ]


def tool_use(index: int) -> Json:
    return {"type": "tool_use", "id": f"toolu_{index:012}", "name": "theirs", "input": {}}


PIECE = "piece " * 16


def uneven(number: int) -> str:
    """A piece that no other event has foretold."""
    return PIECE + '"' * (number % 2)


def in_bytes(chunks: Sequence[bytes], size: int) -> list[bytes]:
    whole = b"".join(chunks)
    return [whole[at : at + size] for at in range(0, len(whole), size)]


STREAMS: Mapping[str, tuple[int, str, Callable[[int], list[bytes]]]] = {
    "chat: pieces of a text": (20_000, CHAT, lambda n: chat_stream([{"content": PIECE}] * n)),
    "chat: uneven pieces of a text": (
        10_000,
        CHAT,
        lambda n: chat_stream([{"content": uneven(m)} for m in range(n)]),
    ),
    "chat: pieces of reasoning": (10_000, CHAT, lambda n: chat_stream([{"reasoning_content": PIECE}] * n)),
    "chat: pieces of arguments": (
        10_000,
        CHAT,
        lambda n: chat_stream(
            [argument(0, '{"q":"', "call_1"), *[argument(0, PIECE)] * n, argument(0, '"}')], "tool_calls"
        ),
    ),
    "chat: uneven pieces of arguments": (
        10_000,
        CHAT,
        lambda n: chat_stream(
            [argument(0, "[", "call_1"), *(argument(0, uneven(m)) for m in range(n))], "tool_calls"
        ),
    ),
    "chat: calls": (
        500,
        CHAT,
        lambda n: chat_stream([argument(m, "{}", f"call_{m}") for m in range(n)], "tool_calls"),
    ),
    "chat: chunks of one event": (20_000, CHAT, lambda n: in_bytes(chat_stream([{"content": PIECE * n}]), 64)),
    "chat: lines of one event": (
        100_000,
        CHAT,
        lambda n: [b"data: {\n" + b"data: \n" * n + b"data: }\n\n", sse.DONE],
    ),
    "chat: comments": (20_000, CHAT, lambda n: [b": wait\n\n"] * n + chat_stream([{"content": "a"}])),
    "completions: pieces of a text": (
        20_000,
        COMPLETIONS,
        lambda n: (
            [
                sse.event(orjson.dumps({"choices": [{"index": 0, "text": uneven(m), "finish_reason": None}]}))
                for m in range(n)
            ]
            + [sse.event(b'{"choices":[{"index":0,"text":"","finish_reason":"stop"}]}'), sse.DONE]
        ),
    ),
    "responses: pieces of a text": (
        10_000,
        RESPONSES,
        lambda n: responses_stream(
            [event("response.output_text.delta", output_index=0, delta=PIECE, sequence_number=m) for m in range(n)]
        ),
    ),
    "responses: pieces of arguments": (
        10_000,
        RESPONSES,
        lambda n: responses_stream(
            [
                event(
                    "response.output_item.added",
                    output_index=0,
                    item={"type": "function_call", "call_id": "c", "name": "theirs", "arguments": ""},
                ),
                *(event("response.function_call_arguments.delta", output_index=0, delta=PIECE) for _ in range(n)),
            ]
        ),
    ),
    "responses: calls": (
        3_000,
        RESPONSES,
        lambda n: responses_stream(
            [
                event(
                    kind,
                    output_index=m,
                    item={"type": "function_call", "call_id": f"call_{m}", "name": "theirs", "arguments": "{}"},
                )
                for m in range(n)
                for kind in ("response.output_item.added", "response.output_item.done")
            ]
        ),
    ),
    "responses: parts of an answer": (
        10_000,
        RESPONSES,
        lambda n: responses_stream(
            [], [{"type": "message", "role": "assistant", "content": parts(n, "output_text")}]
        ),
    ),
    "messages: pieces of a text": (
        10_000,
        MESSAGES,
        lambda n: messages_stream(
            block(0, {"type": "text", "text": ""}, [{"type": "text_delta", "text": uneven(m)} for m in range(n)])
        ),
    ),
    "messages: pieces of a thought": (
        10_000,
        MESSAGES,
        lambda n: messages_stream(
            block(0, {"type": "thinking", "thinking": ""}, [{"type": "thinking_delta", "thinking": PIECE}] * n)
        ),
    ),
    "messages: pieces of arguments": (
        10_000,
        MESSAGES,
        lambda n: messages_stream(
            block(0, tool_use(0), [{"type": "input_json_delta", "partial_json": uneven(m)} for m in range(n)]),
            "tool_use",
        ),
    ),
    "messages: calls": (
        3_000,
        MESSAGES,
        lambda n: messages_stream(
            [piece for m in range(n) for piece in block(m, tool_use(m), [])],
            "tool_use",
        ),
    ),
    "messages: texts": (
        3_000,
        MESSAGES,
        lambda n: messages_stream(
            [piece for m in range(n) for piece in block(m, {"type": "text", "text": "a"}, [])],
        ),
    ),
}
"""Streams of an engine: how many repeats, to which path, and the chunks in which they come."""


ANSWERS: Mapping[str, tuple[int, str, Callable[[int], Json]]] = {
    "chat: calls of an answer": (
        500,
        CHAT,
        lambda n: {
            "id": "c",
            "choices": [
                {
                    "index": 0,
                    "finish_reason": "tool_calls",
                    "message": {"role": "assistant", "content": None, "tool_calls": [call(m) for m in range(n)]},
                }
            ],
        },
    ),
    "responses: parts of an answer": (
        10_000,
        RESPONSES,
        lambda n: {
            "id": "r",
            "object": "response",
            "status": "completed",
            "output": [{"type": "message", "role": "assistant", "content": parts(n, "output_text")}],
        },
    ),
    "responses: calls of an answer": (
        3_000,
        RESPONSES,
        lambda n: {
            "id": "r",
            "object": "response",
            "status": "completed",
            "output": [
                {"type": "function_call", "call_id": f"c{m}", "name": "theirs", "arguments": "{}"}
                for m in range(n)
            ],
        },
    ),
    "messages: blocks of an answer": (
        10_000,
        MESSAGES,
        lambda n: {
            "id": "m",
            "type": "message",
            "role": "assistant",
            "stop_reason": "tool_use",
            "content": [*parts(n), *map(tool_use, range(n // 10))],
        },
    ),
}
"""Answers of an engine that are not streamed."""

SHORT = {
    CHAT: messages(user("hi")),
    COMPLETIONS: {"prompt": "hi"},
    RESPONSES: {"input": "hi"},
    MESSAGES: messages(user("hi")) | {"max_tokens": 10},
}
_STREAMED, _WHOLE = b"\3\1", b"\2\1"


@contextmanager
def asked(settings: Mapping[str, Any], path: str, body: Json, *answers: bytes) -> Iterator[Work]:
    """A request and its answer through a gateway that has never seen either."""
    raw = orjson.dumps({"model": "m", **body})
    gateway = FuzzedGateway(settings)

    def work() -> None:
        answer = gateway.ask(path, raw, list(answers))
        assert answer.status == 200, answer.body[:300]

    try:
        yield work
    finally:
        gateway.close()


def _requested(settings: Mapping[str, Any], path: str, body: Callable[[int], Json]) -> Made:
    streams: dict[str, Callable[[list[Any]], list[bytes]]] = {
        RESPONSES: responses_stream,
        MESSAGES: messages_stream,
    }
    streamed = _STREAMED + b"\1".join(streams.get(path, chat_stream)([]))
    return lambda num: asked(settings, path, body(num) | {"stream": True}, streamed)


def _streamed(settings: Mapping[str, Any], path: str, chunks: Callable[[int], list[bytes]]) -> Made:
    return lambda num: asked(settings, path, SHORT[path] | {"stream": True}, _STREAMED + b"\1".join(chunks(num)))


def _answered(settings: Mapping[str, Any], path: str, answer: Callable[[int], Json]) -> Made:
    return lambda num: asked(settings, path, SHORT[path], _WHOLE + orjson.dumps(answer(num)))


@contextmanager
def just(work: Work) -> Iterator[Work]:
    yield work


# What is no request through the whole path.


def form(fields: Sequence[bytes]) -> bytes:
    return b"".join(b"--edge\r\n" + field + b"\r\n" for field in fields) + b"--edge--\r\n"


def field(name: str, data: bytes = b"a", more: bytes = b"") -> bytes:
    return b'Content-Disposition: form-data; name="' + name.encode() + b'"' + more + b"\r\n\r\n" + data


def split_form(chunks: Sequence[bytes]) -> Work:
    def work() -> None:
        splitter = FormSplitter(b"edge")
        try:
            for chunk in chunks:
                for _ in splitter.feed(chunk):
                    pass
        except BadForm:
            pass

    return work


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
    "form: fields": (5_000, lambda n: just(split_form([form([field(f"f{m}") for m in range(n)])]))),
    "form: chunks": (100_000, lambda n: just(split_form(in_bytes([form([field("file", b"\r\n-" * n)])], 16)))),
    "form: parameters of a part": (20_000, lambda n: just(split_form([form([field("f", more=b";a" * n)])]))),
    "form: quotes of a part": (20_000, lambda n: just(split_form([form([field("f", more=b';a="' + b";" * n)])]))),
    "form: headers of parts": (
        50,
        lambda n: just(split_form([form([field("f", more=b';a="' + (b";" + b"x" * 250) * 60)] * n)])),
    ),
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
            found[f"{kind} gateway, request, {name}"] = num, _requested(settings, path, body)
        for name, (num, path, chunks) in STREAMS.items():
            found[f"{kind} gateway, stream, {name}"] = num, _streamed(settings, path, chunks)
        for name, (num, path, answer) in ANSWERS.items():
            found[f"{kind} gateway, answer, {name}"] = num, _answered(settings, path, answer)
    return found | dict(OTHERS)
