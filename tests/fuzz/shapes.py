"""Hostile input as pure data: requests, streams and answers of engines, forms, lines of batches, pages.

Each shape repeats one thing any number of times. `growth.py` makes work of them, `benchmarks/overhead/hostile.py`
sends them. A new shape is one more entry here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import orjson

from gateway.core import sse
from gateway.core.fields import Json

CHAT, COMPLETIONS, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"
NAMES: Mapping[str, str] = {
    CHAT: "chat",
    COMPLETIONS: "completions",
    RESPONSES: "responses",
    MESSAGES: "messages",
}

Body: TypeAlias = Callable[[int], Json | bytes]
"""A body of any number of repeats; bytes where its spelling is the shape. It names the model `m`."""
RequestShape: TypeAlias = tuple[int, str, Body]
"""How many repeats show the law, where they go, and the body."""
StreamShape: TypeAlias = tuple[int, str, Callable[[int], list[bytes]]]
"""How many repeats show the law, to which path, and the chunks in which an engine's stream comes."""
AnswerShape: TypeAlias = tuple[int, str, Callable[[int], Json]]

LONG = "long "
LONG_CHARS = 400
"""Beside each repeat: where what has come is copied for each one more, these are copied too."""


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


def assistant(content: Any) -> list[Json]:
    return [{"role": "assistant", "content": content}]


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


def tool_uses(num: int) -> list[Json]:
    """Of one message, in Anthropic's format."""
    return [{"type": "tool_use", "id": f"c{m}", "name": "f", "input": {}} for m in range(num)]


# ---- requests

ASKED: Mapping[str, Callable[[Any], Json]] = {
    CHAT: lambda text: messages(user(text)),
    COMPLETIONS: lambda text: {"prompt": text},
    RESPONSES: lambda text: {"input": user(text)},
    MESSAGES: lambda text: messages(user(text)) | {"max_tokens": 10},
}
"""The body of one text of a client, by path."""
PROPERTY = {"type": "string", "description": "Path of the file"}
OFFERED: Mapping[str, Callable[[int, Json], Json]] = {
    CHAT: lambda n, schema: {"type": "function", "function": {"name": f"f{n}", "parameters": schema}},
    RESPONSES: lambda n, schema: {"type": "function", "name": f"f{n}", "parameters": schema},
    MESSAGES: lambda n, schema: {"name": f"f{n}", "input_schema": schema},
}
"""A tool, by path."""
WRITTEN_DEEP, READ_DEEP = 200, 900
"""Lists in lists. What is deeper is no JSON for orjson, which reads deeper values than it writes."""


def spelled(path: str, more: bytes) -> bytes:
    """A body that begins with `more`, as it stands."""
    return b'{"model":"m",' + more + orjson.dumps(ASKED[path]("hi"))[1:]


def nested(num: int) -> Any:
    """Lists in lists, again and again."""
    inner = orjson.loads(b"[" * WRITTEN_DEEP + b"]" * WRITTEN_DEEP)
    return [inner] * max(1, num // WRITTEN_DEEP)


DEEP = b"[" * READ_DEEP + b"]" * READ_DEEP + b","


def schema(num: int) -> Json:
    return {"type": "object", "properties": {f"p{m}": PROPERTY for m in range(num)}}


def nested_schema(num: int) -> Json:
    """Objects in objects; as many as are read without recursion that is too deep, again and again."""
    inner: Json = {"type": "string"}
    for _ in range(100):
        inner = {"type": "object", "properties": {"p": inner}}
    return {"type": "object", "properties": {f"p{m}": inner for m in range(max(1, num // 100))}}


TEXTS: Mapping[str, tuple[int, Callable[[int], str]]] = {
    "letters": (10_000, long_text),
    "escapes": (200_000, lambda n: '\n"' * n),
    "brackets": (200_000, lambda n: "[{" * n),
    "backslashes": (200_000, lambda n: "\\" * n),
    "emojis": (200_000, lambda n: "\U0001f600" * n),
    "lines": (200_000, lambda n: "a\n" * n),
    "spaces": (1_000_000, lambda n: " " * n),
    "passages": (50_000, lambda n: 'say "hello": to them\n' * n),
    "quoted passages": (50_000, lambda n: 'they said: \\"a passage of some words\\"\\n' * n),
    "dates": (50_000, lambda n: "2026-11-23 10:11, " * n),
    "tags": (50_000, lambda n: "<|im_start|>system<a><system-reminder>" * n),
    "tags of a template": (5_000, lambda n: "[INST]<|im_start|>user\nhi<|im_end|>\n" * n),
}
"""Of a client's text in every format."""


def _asking(path: str, text: Callable[[int], str]) -> Body:
    return lambda num: ASKED[path](text(num))


def _of_format(path: str) -> Iterable[tuple[str, RequestShape]]:
    name, asked = NAMES[path], ASKED[path]
    for what, (num, text) in TEXTS.items():
        yield f"{name}: {what} of a text", (num, path, _asking(path, text))
    yield (
        f"{name}: keys of the body",
        (20_000, path, lambda n: asked("hi") | {f"key{m}": m for m in range(n)}),
    )
    yield (
        f"{name}: one key again and again",
        (50_000, path, lambda n: spelled(path, b'"user":"a",' * n)),
    )
    yield (
        f"{name}: the model again and again",
        (50_000, path, lambda n: spelled(path, b'"model":"m",' * n)),
    )
    yield (
        f"{name}: spaces between values",
        (500_000, path, lambda n: spelled(path, b' "stop" : [ ' + b" " * n + b'"a" ] , ')),
    )
    yield (
        f"{name}: escapes of letters",
        (100_000, path, lambda n: spelled(path, b'"user":"' + b"\\u00e9" * n + b'",')),
    )
    yield f"{name}: a long key", (500_000, path, lambda n: asked("hi") | {"k" * n: 1})


def _beside_text(path: str) -> Iterable[tuple[str, RequestShape]]:
    name, asked = NAMES[path], ASKED[path]
    yield (
        f"{name}: numbers of a list beside",
        (200_000, path, lambda n: asked("hi") | {"stop": [1] * n}),
    )
    yield (
        f"{name}: lists of a list beside",
        (100_000, path, lambda n: asked("hi") | {"stop": [[]] * n}),
    )
    yield (
        f"{name}: objects of a list beside",
        (50_000, path, lambda n: asked("hi") | {"stop": [{"a": 1}] * n}),
    )
    yield (
        f"{name}: lists in lists beside",
        (90_000, path, lambda n: asked("hi") | {"stop": nested(n)}),
    )
    yield (
        f"{name}: lists too deep to be written",
        (90_000, path, lambda n: spelled(path, b'"stop":[' + DEEP * (n // READ_DEEP) + b"1],")),
    )
    yield (
        f"{name}: a number of many digits",
        (100_000, path, lambda n: spelled(path, b'"user":0.' + b"1" * n + b",")),
    )
    yield (
        f"{name}: keys of metadata",
        (50_000, path, lambda n: asked("hi") | {"metadata": {f"k{m}": "v" for m in range(n)}}),
    )


def _of_tools(path: str) -> Iterable[tuple[str, RequestShape]]:
    name, asked, tool = NAMES[path], ASKED[path], OFFERED[path]
    yield (
        f"{name}: properties of a tool",
        (20_000, path, lambda n: asked("hi") | {"tools": [tool(0, schema(n))]}),
    )
    yield (
        f"{name}: objects in objects of a tool",
        (20_000, path, lambda n: asked("hi") | {"tools": [tool(0, nested_schema(n))]}),
    )
    yield (
        f"{name}: tools with schemas",
        (
            5_000,
            path,
            lambda n: asked("hi") | {"tools": [tool(m, schema(2)) for m in range(n)]},
        ),
    )
    yield (
        f"{name}: a long description",
        (
            10_000,
            path,
            lambda n: asked("hi") | {"tools": [tool(0, {"type": "object", "description": long_text(n)})]},
        ),
    )


OF_EACH_FORMAT: Mapping[str, RequestShape] = dict(
    shape for path in NAMES for shape in (*_of_format(path), *_beside_text(path))
) | dict(shape for path in OFFERED for shape in _of_tools(path))
REQUESTS: Mapping[str, RequestShape] = {
    **OF_EACH_FORMAT,
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
    "chat: arguments of a call": (
        100_000,
        CHAT,
        lambda n: messages(
            user("hi"), [{"role": "assistant", "tool_calls": [call(0, '{"a":[' + "1," * n + "1]}")]}]
        ),
    ),
    "chat: escapes of arguments": (
        100_000,
        CHAT,
        lambda n: messages(user("hi"), [{"role": "assistant", "tool_calls": [call(0, '"' + '\\"' * n + '"')]}]),
    ),
    "chat: brackets of arguments": (
        100_000,
        CHAT,
        lambda n: messages(user("hi"), [{"role": "assistant", "tool_calls": [call(0, "[" * n)]}]),
    ),
    "chat: messages": (20_000, CHAT, lambda n: messages(user("hi") * n)),
    "chat: answers": (20_000, CHAT, lambda n: messages((user("hi") + assistant("Yes, I am.")) * n, user("hi"))),
    "chat: equal long answers": (
        5_000,
        CHAT,
        lambda n: messages((user("hi") + assistant(long_text(1))) * n, user("hi")),
    ),
    "chat: thoughts": (
        10_000,
        CHAT,
        lambda n: messages(
            user("hi"), [{"role": "assistant", "content": "a", "reasoning_content": "I think."}] * n
        ),
    ),
    "chat: empty messages": (20_000, CHAT, lambda n: messages(user("hi"), [{"role": "user"}] * n)),
    "chat: messages without a role": (20_000, CHAT, lambda n: messages(user("hi"), [{}] * n)),
    "chat: calls of the old kind": (
        20_000,
        CHAT,
        lambda n: messages(
            user("hi"), [{"role": "assistant", "function_call": {"name": "f", "arguments": "{}"}}] * n
        ),
    ),
    "chat: functions of the old kind": (
        20_000,
        CHAT,
        lambda n: messages(user("hi")) | {"functions": [{"name": f"f{m}"} for m in range(n)]},
    ),
    "chat: tools": (10_000, CHAT, lambda n: messages(user("hi")) | {"tools": [function(m) for m in range(n)]}),
    "chat: tools of one name": (10_000, CHAT, lambda n: messages(user("hi")) | {"tools": [function(0)] * n}),
    "chat: tools in namespaces": (20_000, CHAT, lambda n: messages(user("hi")) | {"tools": nested_tools(n)}),
    "chat: properties of an answer's schema": (
        20_000,
        CHAT,
        lambda n: (
            messages(user("hi"))
            | {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": schema(n)}}}
        ),
    ),
    "chat: biases": (
        50_000,
        CHAT,
        lambda n: messages(user("hi")) | {"logit_bias": {str(m): 1 for m in range(n)}},
    ),
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
    "completions: equal prompts": (200, COMPLETIONS, lambda n: {"prompt": [LONG * 100] * n}),
    "completions: prompts of token ids": (
        200,
        COMPLETIONS,
        lambda n: {"prompt": [[*range(100), m] for m in range(n)]},
    ),
    "completions: token ids": (200_000, COMPLETIONS, lambda n: {"prompt": list(range(n))}),
    "completions: turns of one prompt": (
        10_000,
        COMPLETIONS,
        lambda n: {"prompt": "<|im_start|>user\nhi<|im_end|>\n" * n},
    ),
    "completions: prompts of no kind": (20_000, COMPLETIONS, lambda n: {"prompt": [None, {}] * n}),
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
    "responses: calls": (
        10_000,
        RESPONSES,
        lambda n: {
            "input": [
                *user("hi"),
                *(
                    item
                    for m in range(n)
                    for item in (
                        {"type": "function_call", "call_id": f"c{m:012}", "name": "f", "arguments": "{}"},
                        {"type": "function_call_output", "call_id": f"c{m:012}", "output": "ok"},
                    )
                ),
            ]
        },
    ),
    "responses: thoughts": (
        20_000,
        RESPONSES,
        lambda n: {"input": [*user("hi"), *[{"type": "reasoning", "summary": [], "id": "r"}] * n]},
    ),
    "responses: items of no kind": (20_000, RESPONSES, lambda n: {"input": [*user("hi"), *[{"type": "x"}] * n]}),
    "responses: references": (
        20_000,
        RESPONSES,
        lambda n: {"input": [*user("hi"), *({"type": "item_reference", "id": f"i{m}"} for m in range(n))]},
    ),
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
    "messages: messages": (20_000, MESSAGES, lambda n: messages(user("hi") * n)),
    "messages: blocks of a message": (10_000, MESSAGES, lambda n: messages(user(parts(n)))),
    "messages: blocks of text and images": (10_000, MESSAGES, lambda n: messages(user(mixed(n)))),
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
    "messages: results of one message": (
        20_000,
        MESSAGES,
        lambda n: messages(user([{"type": "tool_result", "tool_use_id": f"c{m}"} for m in range(n)])),
    ),
    "messages: thoughts of one message": (
        20_000,
        MESSAGES,
        lambda n: messages(
            user("hi"), assistant([{"type": "thinking", "thinking": "a", "signature": "s"} for _ in range(n)])
        ),
    ),
    "messages: calls of one message": (
        20_000,
        MESSAGES,
        lambda n: messages(user("hi"), assistant(tool_uses(n))),
    ),
    "messages: volatile blocks of a system text": (
        2_000,
        MESSAGES,
        lambda n: messages(user("hi")) | {"system": volatile(n)},
    ),
}
"""Bodies of clients."""
SHORT: Mapping[str, Json] = {path: asked("hi") for path, asked in ASKED.items()}


def raw_of(body: Json | bytes, **more: Any) -> bytes:
    """A request as it is sent. `more`: further keys of it."""
    if not isinstance(body, bytes):
        return orjson.dumps({"model": "m", **body, **more})
    return body[:-1] + b"," + orjson.dumps(more)[1:] if more else body


# ---- streams of an engine


def chat_chunk(delta: Json, finish_reason: str | None = None, **more: Any) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
    return sse.event(orjson.dumps({"id": "c", "object": "chat.completion.chunk", "choices": [choice], **more}))


def chat_stream(deltas: Sequence[Json], finish_reason: str = "stop") -> list[bytes]:
    return [*map(chat_chunk, deltas), chat_chunk({}, finish_reason), sse.DONE]


def argument(index: int, text: str, id_: str | None = None) -> Json:
    about = {"id": id_, "type": "function"} if id_ else {}
    function = {"arguments": text} | ({"name": "theirs"} if id_ else {})
    return {"tool_calls": [{"index": index, **about, "function": function}]}


def text_chunk(text: str, finish_reason: str | None = None, index: int = 0) -> bytes:
    """Of `/v1/completions`."""
    return sse.event(orjson.dumps({"choices": [{"index": index, "text": text, "finish_reason": finish_reason}]}))


def text_stream(events: Sequence[bytes]) -> list[bytes]:
    return [*events, text_chunk("", "stop"), sse.DONE]


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


SPOKEN: Mapping[str, Callable[[Sequence[str]], list[bytes]]] = {
    CHAT: lambda texts: chat_stream([{"content": text} for text in texts]),
    COMPLETIONS: lambda texts: text_stream([text_chunk(text) for text in texts]),
    RESPONSES: lambda texts: responses_stream(
        [event("response.output_text.delta", output_index=0, delta=text) for text in texts]
    ),
    MESSAGES: lambda texts: messages_stream(
        block(0, {"type": "text", "text": ""}, [{"type": "text_delta", "text": text} for text in texts])
    ),
}
"""An answer in pieces of text, by path."""
BESIDE: Mapping[str, tuple[int, bytes]] = {
    "comments": (20_000, b": wait\n\n"),
    "empty lines": (100_000, b"\n"),
    "lines ended by CR": (20_000, b"id: 1\r\r"),
    "events without data": (20_000, b"event: a\nid: 1\n\n"),
    "empty data": (20_000, b"data:\n\n"),
    "events of no JSON": (20_000, b"data: {\n\n"),
    "events that are lists": (20_000, b"data: []\n\n"),
    "events of no kind": (20_000, b"data: {}\n\n"),
    "large usages": (50, sse.event(orjson.dumps({"type": "x", "usage": {f"k{m}": m for m in range(200)}}))),
    "ends": (20_000, sse.DONE),
}
"""Events of no use, once an answer has begun."""


def _saying(path: str, useless: bytes) -> Callable[[int], list[bytes]]:
    return lambda num: _with(SPOKEN[path]([PIECE, PIECE]), [useless] * num)


def _in_format(path: str) -> Iterable[tuple[str, StreamShape]]:
    name, spoken = NAMES[path], SPOKEN[path]
    yield f"{name}: pieces", (20_000, path, lambda n: spoken([PIECE] * n))
    yield (
        f"{name}: uneven pieces",
        (10_000, path, lambda n: spoken(list(map(uneven, range(n))))),
    )
    yield f"{name}: one large piece", (10_000, path, lambda n: spoken([PIECE * n]))
    yield (
        f"{name}: escapes of a piece",
        (200_000, path, lambda n: spoken(["\n" * n, "\\" * n, '"' * n])),
    )
    yield (
        f"{name}: chunks of one event",
        (20_000, path, lambda n: in_bytes(spoken([PIECE * n]), 64)),
    )
    yield (
        f"{name}: chunks of events",
        (5_000, path, lambda n: in_bytes(spoken([PIECE] * n), 7)),
    )
    yield (
        f"{name}: events of one chunk",
        (20_000, path, lambda n: [b"".join(spoken([PIECE] * n))]),
    )
    yield (
        f"{name}: events without an end",
        (20_000, path, lambda n: [*spoken([PIECE])[:-1], b"data: " + b"a" * 50 * n]),
    )
    for what, (num, useless) in BESIDE.items():
        yield (
            f"{name}: {what}",
            (num, path, _saying(path, useless)),
        )


def _with(events: list[bytes], more: list[bytes]) -> list[bytes]:
    """In the middle, where an answer has begun and has not ended."""
    return [*events[: len(events) // 2], *more, *events[len(events) // 2 :]]


IN_EACH_FORMAT: Mapping[str, StreamShape] = dict(shape for path in NAMES for shape in _in_format(path))
STREAMS: Mapping[str, StreamShape] = {
    **IN_EACH_FORMAT,
    "chat: pieces of reasoning": (10_000, CHAT, lambda n: chat_stream([{"reasoning_content": PIECE}] * n)),
    "chat: pieces of text and reasoning": (
        10_000,
        CHAT,
        lambda n: chat_stream([{"reasoning_content": PIECE}, {"content": PIECE}] * n),
    ),
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
    "chat: calls in turn": (
        10_000,
        CHAT,
        lambda n: chat_stream(
            [
                *(argument(m, "[", f"call_{m}") for m in range(100)),
                *(argument(m % 100, "1,") for m in range(n)),
            ],
            "tool_calls",
        ),
    ),
    "chat: calls of one event": (
        50_000,
        CHAT,
        lambda n: chat_stream(
            [{"tool_calls": [argument(m, "{}", f"call_{m}")["tool_calls"][0] for m in range(n)]}], "tool_calls"
        ),
    ),
    "chat: choices of an event": (
        20_000,
        CHAT,
        lambda n: [
            sse.event(orjson.dumps({"choices": [{"index": m, "delta": {"content": "a"}} for m in range(n)]})),
            chat_chunk({}, "stop"),
            sse.DONE,
        ],
    ),
    "chat: choices in turn": (
        10_000,
        CHAT,
        lambda n: [
            *(
                sse.event(orjson.dumps({"choices": [{"index": m % 8, "delta": {"content": PIECE}}]}))
                for m in range(n)
            ),
            chat_chunk({}, "stop"),
            sse.DONE,
        ],
    ),
    "chat: pieces with probabilities": (
        5_000,
        CHAT,
        lambda n: [*[chat_chunk({"content": "a"}, logprobs=[0.1] * 20)] * n, chat_chunk({}, "stop"), sse.DONE],
    ),
    "chat: pieces with usage": (
        10_000,
        CHAT,
        lambda n: [
            *(chat_chunk({"content": "a"}, usage={"prompt_tokens": 1, "completion_tokens": m}) for m in range(n)),
            chat_chunk({}, "stop"),
            sse.DONE,
        ],
    ),
    "chat: ends of choices": (10_000, CHAT, lambda n: [*[chat_chunk({"content": "a"}, "stop")] * n, sse.DONE]),
    "chat: names of an answer": (
        10_000,
        CHAT,
        lambda n: [
            *(sse.event(orjson.dumps({"id": f"c{m}", "model": f"m{m}", "choices": []})) for m in range(n)),
            *chat_stream([{"content": "a"}]),
        ],
    ),
    "chat: lines of one event": (
        100_000,
        CHAT,
        lambda n: [b"data: {\n" + b"data: \n" * n + b"data: }\n\n", sse.DONE],
    ),
    "chat: comments before it": (20_000, CHAT, lambda n: [b": wait\n\n"] * n + chat_stream([{"content": "a"}])),
    "completions: choices in turn": (
        10_000,
        COMPLETIONS,
        lambda n: text_stream([text_chunk(PIECE, index=m % 8) for m in range(n)]),
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
    "responses: pieces of reasoning": (
        10_000,
        RESPONSES,
        lambda n: responses_stream([event("response.reasoning_text.delta", output_index=0, delta=PIECE)] * n),
    ),
    "responses: calls": (3_000, RESPONSES, lambda n: responses_stream(_items(range(n)))),
    "responses: calls in falling order": (3_000, RESPONSES, lambda n: responses_stream(_items(range(n, 0, -1)))),
    "responses: states": (
        3_000,
        RESPONSES,
        lambda n: responses_stream(
            [
                event("response.output_text.delta", output_index=0, delta="a"),
                *[event("response.in_progress", response={"id": "r", "object": "response"})] * n,
            ]
        ),
    ),
    "responses: ends": (
        3_000,
        RESPONSES,
        lambda n: responses_stream(
            [event("response.completed", response={"object": "response", "status": "completed"})] * n
        ),
    ),
    "responses: parts of an answer": (
        10_000,
        RESPONSES,
        lambda n: responses_stream(
            [], [{"type": "message", "role": "assistant", "content": parts(n, "output_text")}]
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
        lambda n: messages_stream([piece for m in range(n) for piece in block(m, tool_use(m), [])], "tool_use"),
    ),
    "messages: calls in falling order": (
        3_000,
        MESSAGES,
        lambda n: messages_stream(
            [piece for m in range(n, 0, -1) for piece in block(m, tool_use(m), [])], "tool_use"
        ),
    ),
    "messages: texts": (
        3_000,
        MESSAGES,
        lambda n: messages_stream(
            [piece for m in range(n) for piece in block(m, {"type": "text", "text": "a"}, [])],
        ),
    ),
    "messages: one block again and again": (
        5_000,
        MESSAGES,
        lambda n: messages_stream(block(0, {"type": "text", "text": "a"}, []) * n),
    ),
    "messages: beginnings": (
        5_000,
        MESSAGES,
        lambda n: messages_stream([event("message_start", message={"usage": {"input_tokens": 1}})] * n),
    ),
    "messages: ends": (
        5_000,
        MESSAGES,
        lambda n: messages_stream([event("message_delta", delta={}, usage={"output_tokens": 1})] * n),
    ),
    "messages: pings": (
        10_000,
        MESSAGES,
        lambda n: messages_stream([event("ping")] * n + block(0, {"type": "text", "text": "a"}, [])),
    ),
}
"""Streams of an engine."""


def _items(indexes: Iterable[int]) -> list[bytes]:
    return [
        event(
            kind,
            output_index=index,
            item={"type": "function_call", "call_id": f"call_{index}", "name": "theirs", "arguments": "{}"},
        )
        for index in indexes
        for kind in ("response.output_item.added", "response.output_item.done")
    ]


# ---- answers of an engine that are not streamed, its errors, and its pages


def chat_answer(message: Json, finish_reason: str = "stop", **more: Any) -> Json:
    choice = {"index": 0, "finish_reason": finish_reason, "message": {"role": "assistant", **message}}
    return {"id": "c", "choices": [choice | more]}


def response_answer(output: Sequence[Json]) -> Json:
    return {"id": "r", "object": "response", "status": "completed", "output": list(output)}


def message_answer(content: Sequence[Json]) -> Json:
    about = {"id": "m", "type": "message", "role": "assistant", "stop_reason": "tool_use"}
    return about | {"content": list(content)}


ANSWERS: Mapping[str, AnswerShape] = {
    "chat: letters of an answer": (10_000, CHAT, lambda n: chat_answer({"content": long_text(n)})),
    "chat: calls of an answer": (
        500,
        CHAT,
        lambda n: chat_answer({"content": None, "tool_calls": [call(m) for m in range(n)]}, "tool_calls"),
    ),
    "chat: arguments of an answer": (
        100_000,
        CHAT,
        lambda n: chat_answer({"content": None, "tool_calls": [call(0, '{"a":["' + "\\u00e9" * n)]}, "tool_calls"),
    ),
    "chat: choices of an answer": (
        20_000,
        CHAT,
        lambda n: {"id": "c", "choices": [{"index": m, "message": {"content": "a"}} for m in range(n)]},
    ),
    "chat: probabilities of an answer": (
        20_000,
        CHAT,
        lambda n: chat_answer({"content": "a"}, logprobs={"content": [{"token": "a", "logprob": -0.1}] * n}),
    ),
    "chat: usage of an answer": (
        20_000,
        CHAT,
        lambda n: chat_answer({"content": "a"}) | {"usage": {f"k{m}": m for m in range(n)}},
    ),
    "completions: choices of an answer": (
        20_000,
        COMPLETIONS,
        lambda n: {"id": "c", "choices": [{"index": m, "text": "a", "finish_reason": "stop"} for m in range(n)]},
    ),
    "responses: parts of an answer": (
        10_000,
        RESPONSES,
        lambda n: response_answer([{"type": "message", "role": "assistant", "content": parts(n, "output_text")}]),
    ),
    "responses: calls of an answer": (
        3_000,
        RESPONSES,
        lambda n: response_answer(
            [{"type": "function_call", "call_id": f"c{m}", "name": "theirs", "arguments": "{}"} for m in range(n)]
        ),
    ),
    "responses: items of an answer": (
        20_000,
        RESPONSES,
        lambda n: response_answer([{"type": "reasoning", "summary": []}] * n),
    ),
    "messages: blocks of an answer": (
        10_000,
        MESSAGES,
        lambda n: message_answer([*parts(n), *map(tool_use, range(n // 10))]),
    ),
    "messages: thoughts of an answer": (
        20_000,
        MESSAGES,
        lambda n: message_answer([{"type": "thinking", "thinking": "a"}] * n),
    ),
}
"""Answers of an engine that are not streamed."""

ERRORS: Mapping[str, tuple[int, Callable[[int], bytes]]] = {
    "letters": (100_000, lambda n: orjson.dumps({"error": {"message": "a " * n, "code": 400}})),
    "digits": (
        100_000,
        lambda n: orjson.dumps({"error": {"message": "maximum context length is " + "1" * n, "code": 400}}),
    ),
    "quotes of a request": (
        20_000,
        lambda n: orjson.dumps({"message": "expected one of `a`, got " + "maximum context length is 5 " * n}),
    ),
    "words of a limit": (
        20_000,
        lambda n: orjson.dumps({"message": "context length is 5 tokens (" * n + "in the messages " * n}),
    ),
    "faults": (
        20_000,
        lambda n: orjson.dumps({"detail": [{"loc": ["body", "priority"], "msg": "extra", "type": "x"}] * n}),
    ),
    "lists in lists": (90_000, lambda n: orjson.dumps({"error": {"message": nested(n)}})),
    "a page": (20_000, lambda n: b"<html>" + b"<p>Bad gateway</p>" * n),
}
"""Bodies of an engine that answers 400."""

PAGES: Mapping[str, tuple[int, Callable[[int], str]]] = {
    "lines": (50_000, lambda n: 'vllm:num_requests_running{engine="0"} 1\n' * n),
    "lines of no use": (50_000, lambda n: 'python_gc_objects_total{generation="0"} 1\n' * n),
    "labels": (20_000, lambda n: "vllm:num_requests_running{" + 'a="b",' * n + "} 1\n"),
    "a long label": (20_000, lambda n: "vllm:num_requests_running{" + "a" * n + "} 1\n"),
    "a label without an end": (20_000, lambda n: 'vllm:num_requests_running{a="' + "b" * n + "} 1\n"),
    "escapes of a label": (20_000, lambda n: 'vllm:num_requests_running{a="' + "\\\\" * n + "} 1\n"),
    "letters": (500_000, lambda n: "a" * n),
}
"""Pages of metrics."""


# ---- forms and lines of batches


def form(fields: Sequence[bytes], boundary: bytes = b"edge") -> bytes:
    edge = b"--" + boundary
    return b"".join(edge + b"\r\n" + field + b"\r\n" for field in fields) + edge + b"--\r\n"


def field(name: str, data: bytes = b"a", more: bytes = b"") -> bytes:
    return b'Content-Disposition: form-data; name="' + name.encode() + b'"' + more + b"\r\n\r\n" + data


def file_field(data: bytes) -> bytes:
    return field("file", data, b'; filename="lines.jsonl"')


PURPOSE = field("purpose", b"batch")
FORMS: Mapping[str, tuple[int, Callable[[int], bytes]]] = {
    "fields": (5_000, lambda n: form([field(f"f{m}") for m in range(n)])),
    "fields without a name": (5_000, lambda n: form([field("")] * n)),
    "starts of delimiters": (100_000, lambda n: form([PURPOSE, file_field(b"\r\n-" * n)])),
    "halves of delimiters": (100_000, lambda n: form([PURPOSE, file_field(b"\r\n--edg" * n)])),
    "letters of a file": (1_000_000, lambda n: form([PURPOSE, file_field(b"a" * n)])),
    "lines of a file": (1_000_000, lambda n: form([PURPOSE, file_field(b"\r\n" * n)])),
    "a long field": (1_000_000, lambda n: form([field("purpose", b"a" * n)])),
    "letters before it": (1_000_000, lambda n: b"a" * n + b"\r\n" + form([PURPOSE])),
    "letters behind it": (1_000_000, lambda n: form([PURPOSE]) + b"a" * n),
    "delimiters behind it": (100_000, lambda n: form([PURPOSE]) + form([PURPOSE]) * n),
    "parameters of a part": (20_000, lambda n: form([field("f", more=b";a" * n)])),
    "quotes of a part": (20_000, lambda n: form([field("f", more=b';a="' + b";" * n)])),
    "headers of a part": (20_000, lambda n: form([b"a: b\r\n" * n + PURPOSE])),
    "lines of a header": (20_000, lambda n: form([b"a: b\r\n" + b" c\r\n" * n + PURPOSE])),
    "headers of parts": (50, lambda n: form([field("f", more=b';a="' + (b";" + b"x" * 250) * 60)] * n)),
    "a header without an end": (1_000_000, lambda n: b"--edge\r\n" + b"a" * n),
}
"""Bodies of `POST /v1/files` with the boundary `edge`."""


def line(number: int, body: Json, url: str = CHAT) -> bytes:
    request = {"custom_id": f"request-{number}", "method": "POST", "url": url, "body": {"model": "m", **body}}
    return orjson.dumps(request) + b"\n"


LINES: Mapping[str, tuple[int, Callable[[int], bytes]]] = {
    "short": (5_000, lambda n: b"".join(line(m, messages(user("hi"))) for m in range(n))),
    "of one id": (5_000, lambda n: line(0, messages(user("hi"))) * n),
    "with faults": (5_000, lambda n: b"{}\n" * n),
    "that are no JSON": (5_000, lambda n: b"[\n" * n),
    "that are blank": (100_000, lambda n: b" \n" * n + line(0, messages(user("hi")))),
    "that are empty": (100_000, lambda n: b"\n" * n + line(0, messages(user("hi")))),
    "ended by CR": (100_000, lambda n: b"a\r" * n),
    "without an end": (1_000_000, lambda n: b"a" * n),
    "of one prefix": (2_000, lambda n: b"".join(line(m, messages(user(long_text(1) + str(m)))) for m in range(n))),
    "of many messages": (20_000, lambda n: line(0, messages(user("hi") * n))),
    "of many parts": (20_000, lambda n: line(0, messages(user(parts(n))))),
    "of many calls": (20_000, lambda n: line(0, messages(assistant(None), rounds(n)))),
    "of many keys": (20_000, lambda n: line(0, messages(user("hi")) | {f"k{m}": m for m in range(n)})),
    "of nested lists": (90_000, lambda n: line(0, messages(user("hi")) | {"stop": nested(n)})),
    "of long ids": (
        5_000,
        lambda n: b"".join(line(m, messages(user("hi"))).replace(b"request-", b"r" * 500) for m in range(n)),
    ),
}
"""Input files of batches."""
