"""Byte truth on real engines: the gateway adds hints, takes out what only it asked for, and changes nothing."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from tests.real.dynamo import DynamoOptions, dynamo_stack
from tests.real.rewrites import forced, reply_key
from tests.real.scripts import Call, answer_to
from tests.real.sglang import Sglang
from tests.real.vllm import Vllm
from tests.real.wire import Seen, Wire, data_of, events, wire

pytestmark = pytest.mark.asyncio(loop_scope="module")

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"
LIST_FILES = answer_to({}, Call("bash", {"command": 'ls -l "usage":'}))
PARAMETERS = {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}
BASH = {
    "type": "function",
    "function": {"name": "bash", "description": "Runs a command", "parameters": PARAMETERS},
}
FLAT_BASH = {"type": "function"} | BASH["function"]  # type: ignore[operator]
ASK = [{"role": "user", "content": "List the files \u2014 \u00fcberall."}]
STREAM = {"stream": True}
USAGE = {"stream_options": {"include_usage": True}}
SCRIPTED = {"scripted": True}
"""Stands for the fields that make the engine call the tool."""
REPLAYED = {"nvext": {"annotations": [f"output_replay_id:{reply_key(LIST_FILES)}"]}}
KEY = "sk-entitled"
ADDED_HEADERS = {"accept-encoding"}
DYNAMO_HINTS = {"x-dynamo-session-id", "x-dynamo-request-strict-priority", "x-dynamo-request-priority"}


@dataclass(frozen=True)
class Line:
    """An engine behind a gateway, and what the gateway adds to calls of it."""

    kind: str
    wire: Wire
    hint_headers: frozenset[str]
    hint_keys: frozenset[str]

    @property
    def model(self) -> str:
        return self.wire.model

    def body(self, path: str, fields: dict[str, Any]) -> dict[str, Any]:
        body = {"model": self.model} | fields
        if body.pop("scripted", False) and (path == CHAT or self.kind == "vllm"):
            body |= forced(LIST_FILES, self.kind)
        return body

    def keys_for(self, path: str) -> frozenset[str]:
        """The body keys that are added. A response is stored under an id that the gateway gives."""
        named = {"request_id"} if path == RESPONSES else set()
        return (self.hint_keys | named) - ({"session_id"} if path == MESSAGES else set())


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def on_vllm(vllm_process: Vllm) -> AsyncIterator[Line]:
    async with wire("vllm", vllm_process.base_url, vllm_process.model) as running:
        yield Line("vllm", running, frozenset({"x-session-id", "x-vllm-priority"}), frozenset())


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def on_sglang(sglang_process: Sglang) -> AsyncIterator[Line]:
    async with wire("sglang", sglang_process.base_url, sglang_process.model) as running:
        yield Line("sglang", running, frozenset(), frozenset({"priority", "session_id"}))


@pytest.fixture(params=["vllm", "sglang"])
def line(request: pytest.FixtureRequest) -> Line:
    found: Line = request.getfixturevalue(f"on_{request.param}")
    return found


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def dynamo_wire(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Wire]:
    """Two workers; the one client may choose between them, which is when the gateway asks which one served."""
    key_file = tmp_path_factory.mktemp("keys") / "key"
    key_file.write_text(KEY)
    keys = [{"key": f"file:{key_file}", "tenant": "a", "may_prioritise": True}]
    options = DynamoOptions(num_workers=2, speedup_ratio=1000, replies=(LIST_FILES,))
    async with (
        dynamo_stack(options) as stack,
        wire("dynamo", stack.base_url, stack.model, keys=keys) as running,
    ):
        yield running


def is_usage(event: bytes) -> bool:
    data = data_of(event)
    return data is not None and data.get("choices") == [] and "usage" in data


def without_added(body: bytes, sent: bytes) -> bytes:
    """`body` less exactly the members at its end that `sent` has not."""
    added = json.loads(body).keys() - json.loads(sent).keys()
    for key, value in json.loads(body).items():
        if key in added:
            member = b',"%s":%s' % (key.encode(), json.dumps(value, separators=(",", ":")).encode())
            assert body.count(member) == 1
            body = body.replace(member, b"")
    return body


def assert_bytes(seen: Seen, sent: bytes, *, num_taken_out: int = 0) -> None:
    """The laws of both directions, `num_taken_out` usage events apart."""
    assert seen.status == 200, seen.received
    assert without_added(seen.asked, sent) == sent
    sent_by_engine, taken_out = events(seen.answered), [e for e in events(seen.answered) if is_usage(e)]
    if num_taken_out:
        assert len(taken_out) == num_taken_out
        sent_by_engine = [event for event in sent_by_engine if event not in taken_out]
    assert events(seen.received) == sent_by_engine


def spaced(body: dict[str, Any]) -> bytes:
    """As no serialiser of ours writes: white space, escapes, a number's own form, a repeated unknown key."""
    text = json.dumps(body, indent=1, ensure_ascii=False).replace('"top_p": 1', '"top_p" :\t1.00e0')
    return (text[:-2] + ' , "x_unknown" : "\\u00e9",\n"x_unknown":[ ] }').encode()


@pytest.mark.parametrize(("asked", "num_taken_out"), [({}, 1), (USAGE, 0)], ids=["not asked", "asked"])
@pytest.mark.parametrize("num", [1, 2], ids=["one choice", "two choices"])
async def test_chat_streams_lose_only_the_usage_that_we_asked_for(
    line: Line, asked: dict[str, Any], num_taken_out: int, num: int
) -> None:
    body = {"messages": ASK, "tools": [BASH], "top_p": 1, "n": num, "max_tokens": 200} | STREAM | SCRIPTED | asked
    raw = spaced(line.body(CHAT, body) | {"temperature": num - 1})
    seen = await line.wire.send(CHAT, raw, X_Custom="\u00fc", User_Agent="mine/1")
    assert_bytes(seen, raw, num_taken_out=num_taken_out)
    assert any(b'"tool_calls"' in event for event in events(seen.received))
    added = json.loads(seen.asked).keys() - json.loads(raw).keys()
    assert added == line.hint_keys | (set() if asked else {"stream_options"})
    headers = seen.engine_headers
    assert (headers["x-custom"], headers["user-agent"]) == ("\u00fc", "mine/1")
    client = {"host", "accept", "x-custom", "user-agent", "content-type", "x-request-id"}
    assert headers.keys() - client == ADDED_HEADERS | line.hint_headers


async def test_stream_options_of_the_client_keep_their_meaning(line: Line) -> None:
    """`continuous_usage_stats` says nothing without `include_usage`, and must not begin to when we set that."""
    options = {"stream_options": {"continuous_usage_stats": True}}
    body = {"model": line.model, "messages": ASK, "max_tokens": 3} | STREAM | options
    seen = await line.wire.send(CHAT, body)
    assert b'"prompt_tokens"' not in seen.received
    assert events(seen.received) == [event for event in events(seen.answered) if not is_usage(event)]


@pytest.mark.parametrize(
    ("path", "fields", "num_taken_out"),
    [
        (COMPLETIONS, {"prompt": "def add(", "max_tokens": 12}, 1),
        (COMPLETIONS, {"prompt": ["one", "two"], "max_tokens": 5}, 1),
        (RESPONSES, {"input": "List", "tools": [FLAT_BASH], "max_output_tokens": 200, **SCRIPTED}, 0),
        (RESPONSES, {"input": [ASK[0]], "max_output_tokens": 9, "store": False}, 0),
        (MESSAGES, {"messages": ASK, "max_tokens": 9}, 0),
    ],
    ids=["completions", "two prompts", "responses with a tool", "responses", "messages"],
)
async def test_streams_of_the_other_formats_too(
    line: Line, path: str, fields: dict[str, Any], num_taken_out: int
) -> None:
    raw = spaced(line.body(path, fields | STREAM))
    assert_bytes(await line.wire.send(path, raw), raw, num_taken_out=num_taken_out)


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (CHAT, {"messages": ASK, "tools": [BASH], **SCRIPTED}),
        (CHAT, {"messages": ASK, "max_tokens": 4, "n": 2, "temperature": 1}),
        (COMPLETIONS, {"prompt": ["one", "two"], "max_tokens": 4}),
        (RESPONSES, {"input": "List", "tools": [FLAT_BASH], "max_output_tokens": 200, **SCRIPTED}),
        (MESSAGES, {"messages": ASK, "max_tokens": 9}),
    ],
    ids=["chat with a tool", "chat with two choices", "completions", "responses", "messages"],
)
async def test_bodies_arrive_as_they_are(line: Line, path: str, fields: dict[str, Any]) -> None:
    raw = spaced(line.body(path, fields))
    seen = await line.wire.send(path, raw)
    assert seen.status == 200, seen.received
    assert json.loads(seen.asked).keys() - json.loads(raw).keys() == line.keys_for(path)
    assert (without_added(seen.asked, raw), seen.received) == (raw, seen.answered)


async def test_another_name_of_the_model_is_the_only_difference(line: Line) -> None:
    raw = spaced({"model": "gpt-5", "messages": ASK, "max_tokens": 3, "user": "gpt-5"})
    seen = await line.wire.send(CHAT, raw)
    assert without_added(seen.asked, raw) == raw.replace(b'"model": "gpt-5"', b'"model": "tiny"')
    assert seen.received == seen.answered


@pytest.mark.parametrize(
    "fields", [{"messages": []}, {"messages": ASK, "temperature": -1}], ids=["empty", "value"]
)
@pytest.mark.parametrize("stream", [{}, STREAM], ids=["plain", "stream"])
async def test_errors_are_told_in_the_engine_s_own_words(
    line: Line, fields: dict[str, Any], stream: dict[str, Any]
) -> None:
    seen = await line.wire.send(CHAT, {"model": line.model} | fields | stream)
    assert seen.status == 400
    if line.kind == "vllm":
        assert seen.received == seen.answered
    else:  # SGLang's errors are bare objects, which OpenAI's SDKs do not read
        assert json.loads(seen.received)["error"]["message"] == json.loads(seen.answered)["message"]


async def test_a_model_that_is_not_served_is_refused_where_the_engine_would_answer(
    sglang_process: Sglang,
) -> None:
    """SGLang answers to any name."""
    body = {"messages": ASK, "input": "x", "prompt": "x", "max_tokens": 2, "max_output_tokens": 2}
    async with wire("sglang", sglang_process.base_url, "other", models__answer_any_model=False) as running:
        for path in (CHAT, COMPLETIONS, RESPONSES, MESSAGES, "/v1/embeddings", "/v1/messages/count_tokens"):
            seen = await running.send(path, {"model": "other"} | body)
            assert (seen.status, seen.calls) == (404, ()), path
        assert (await running.send(CHAT, {"model": sglang_process.model} | body)).status == 200


async def notes(wire: Wire, seen: Seen) -> list[str]:
    """Of its receipt, which is logged when the request is over."""
    receipt_id = dict(seen.headers)["X-Turngate-Receipt"]
    async with asyncio.timeout(120):
        while not (rows := [row for row in wire.gateway.receipts() if row["id"] == receipt_id]):
            await asyncio.sleep(0.01)
    return list(rows[0].get("notes", []))


async def worker_id(wire: Wire) -> str:
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"{wire.engine_url}/health") as response,
    ):
        instances = (await response.json())["instances"]
    return next(str(row["instance_id"]) for row in instances if row["endpoint"] == "generate")


@pytest.mark.parametrize(("asked", "num_taken_out"), [({}, 1), (USAGE, 0)], ids=["not asked", "asked"])
async def test_dynamo_chat_streams_lose_only_the_usage_that_we_asked_for(
    dynamo_wire: Wire, asked: dict[str, Any], num_taken_out: int
) -> None:
    body = {"model": dynamo_wire.model, "messages": ASK, "tools": [BASH], "max_tokens": 200} | STREAM
    seen = await dynamo_wire.send(CHAT, body | REPLAYED | asked, Authorization=f"Bearer {KEY}")
    sent = json.dumps(body | REPLAYED | asked, separators=(",", ":")).encode()
    # By then the family has a known length of answers: the one key of ours in the client's own object.
    hint = re.compile(rb'"agent_hints":\{"osl":\d+\},')
    assert len(hint.findall(seen.asked)) <= 1
    assert without_added(hint.sub(b"", seen.asked), sent) == sent
    assert events(seen.received) == [e for e in events(seen.answered) if not num_taken_out or not is_usage(e)]
    assert sum(map(is_usage, events(seen.answered))) == 1
    assert any(b'"tool_calls"' in event for event in events(seen.received))
    headers = seen.engine_headers
    client = {"host", "accept", "user-agent", "content-type", "x-request-id"}
    assert headers.keys() - client == ADDED_HEADERS | DYNAMO_HINTS | {"x-dynamo-worker-instance-id"}


@pytest.mark.parametrize("stream", [{}, STREAM], ids=["plain", "stream"])
@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (CHAT, {"messages": ASK, "tools": [BASH], "max_tokens": 200} | REPLAYED),
        (COMPLETIONS, {"prompt": "x", "max_tokens": 5}),
        (RESPONSES, {"input": "x", "max_output_tokens": 5}),
    ],
    ids=["chat", "completions", "responses"],
)
async def test_the_worker_that_dynamo_names_for_us_is_taken_out_to_the_byte(
    dynamo_wire: Wire, path: str, fields: dict[str, Any], stream: dict[str, Any]
) -> None:
    chosen = await worker_id(dynamo_wire)
    body = {"model": dynamo_wire.model} | fields | stream
    headers = {"Authorization": f"Bearer {KEY}", "x-dynamo-worker-instance-id": chosen}
    seen = await dynamo_wire.send(path, body, **headers)
    assert seen.status == 200
    assert json.loads(seen.asked)["nvext"]["extra_fields"] == ["worker_id"]
    told = [e for e in events(seen.answered) if not is_usage(e)] if stream else [seen.answered]
    got = events(seen.received) if stream else [seen.received]
    num_named = 0
    for ours, theirs in zip(got, told, strict=True):
        named = data_of(theirs) if stream else json.loads(theirs)
        member = b""
        if named is not None and "nvext" in named:
            member = b',"nvext":' + json.dumps(named["nvext"], separators=(",", ":")).encode()
            num_named += str(named["nvext"]["worker_id"]["decode_worker_id"]) == chosen
        assert theirs.count(member) == 1 or not member
        assert ours == theirs.replace(member, b"")
    if path == RESPONSES and stream:
        assert num_named == 0  # Dynamo does not name it there
    else:
        assert num_named >= (2 if stream else 1)
        assert f"served by {chosen}" in await notes(dynamo_wire, seen)


async def test_the_worker_that_the_client_asked_for_stays(dynamo_wire: Wire) -> None:
    body = {"model": dynamo_wire.model, "messages": ASK, "max_tokens": 5, "nvext": {"extra_fields": ["worker_id"]}}
    for stream in ({}, STREAM | USAGE):
        seen = await dynamo_wire.send(CHAT, body | stream, Authorization=f"Bearer {KEY}")
        assert seen.received == seen.answered
        assert b'"nvext":{"worker_id"' in seen.received


@pytest.mark.parametrize("stream", [{}, STREAM], ids=["plain", "stream"])
@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (COMPLETIONS, {"prompt": "def", "max_tokens": 5}),
        (RESPONSES, {"input": "List", "max_output_tokens": 5}),
        (MESSAGES, {"messages": ASK, "max_tokens": 5}),
    ],
    ids=["completions", "responses", "messages"],
)
async def test_dynamos_other_formats_too(
    dynamo_wire: Wire, path: str, fields: dict[str, Any], stream: dict[str, Any]
) -> None:
    body = {"model": dynamo_wire.model} | fields | stream
    seen = await dynamo_wire.send(path, body, Authorization=f"Bearer {KEY}")
    assert seen.status == 200
    if not stream:
        assert seen.received == seen.answered
        return
    assert events(seen.received) == [e for e in events(seen.answered) if path != COMPLETIONS or not is_usage(e)]
