"""Byte truth on real engines: the gateway adds hints, takes out what only it asked for, and changes nothing."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from tests.real.dynamo import DynamoOptions, dynamo_stack
from tests.real.rewrites import reply_key
from tests.real.scripts import Call, answer_to, hermes
from tests.real.vllm import Vllm
from tests.real.wire import Seen, Wire, data_of, events, wire

pytestmark = pytest.mark.asyncio(loop_scope="module")

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"
GIVEN_ID = re.compile(rb',"request_id":"resp_tg[0-9a-f]{48}"')
"""Under which vLLM is told to store a response: the one thing that is added to a body."""
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
SCRIPTED = {"structured_outputs": {"choice": [hermes(LIST_FILES)]}, "temperature": 0}
REPLAYED = {"nvext": {"annotations": [f"output_replay_id:{reply_key(LIST_FILES)}"]}}
KEY = "sk-entitled"
ADDED_HEADERS = {"accept-encoding"}
VLLM_HINTS = {"x-session-id", "x-vllm-priority"}
DYNAMO_HINTS = {"x-dynamo-session-id", "x-dynamo-request-strict-priority", "x-dynamo-request-priority"}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def vllm_wire(vllm_process: Vllm) -> AsyncIterator[Wire]:
    async with wire("vllm", vllm_process.base_url, vllm_process.model) as running:
        yield running


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
async def test_vllm_chat_streams_lose_only_the_usage_that_we_asked_for(
    vllm_wire: Wire, asked: dict[str, Any], num_taken_out: int, num: int
) -> None:
    body = {"model": vllm_wire.model, "messages": ASK, "tools": [BASH], "top_p": 1, "n": num, "max_tokens": 200}
    raw = spaced(body | STREAM | SCRIPTED | asked | {"temperature": num - 1})
    seen = await vllm_wire.send(CHAT, raw, X_Custom="\u00fc", User_Agent="mine/1")
    assert_bytes(seen, raw, num_taken_out=num_taken_out)
    assert any(b'"tool_calls"' in event for event in events(seen.received))
    assert [key for key in json.loads(seen.asked) if key not in json.loads(raw)] == (
        [] if asked else ["stream_options"]
    )
    headers = seen.engine_headers
    assert (headers["x-custom"], headers["user-agent"]) == ("\u00fc", "mine/1")
    client = {"host", "accept", "x-custom", "user-agent", "content-type", "x-request-id"}
    assert headers.keys() - client == ADDED_HEADERS | VLLM_HINTS


async def test_stream_options_of_the_client_keep_their_meaning(vllm_wire: Wire) -> None:
    """`continuous_usage_stats` says nothing without `include_usage`, and must not begin to when we set that."""
    options = {"stream_options": {"continuous_usage_stats": True}}
    body = {"model": vllm_wire.model, "messages": ASK, "max_tokens": 3} | STREAM | options
    seen = await vllm_wire.send(CHAT, body)
    assert b'"prompt_tokens"' not in seen.received
    assert events(seen.received) == [event for event in events(seen.answered) if not is_usage(event)]


@pytest.mark.parametrize(
    ("path", "fields", "num_taken_out"),
    [
        (COMPLETIONS, {"prompt": "def add(", "max_tokens": 12}, 1),
        (COMPLETIONS, {"prompt": ["one", "two"], "max_tokens": 5}, 1),
        (RESPONSES, {"input": "List", "tools": [FLAT_BASH], **SCRIPTED}, 0),
        (RESPONSES, {"input": [ASK[0]], "max_output_tokens": 9, "store": False}, 0),
        (MESSAGES, {"messages": ASK, "max_tokens": 9}, 0),
    ],
    ids=["completions", "two prompts", "responses with a tool", "responses", "messages"],
)
async def test_vllm_streams_of_the_other_formats_too(
    vllm_wire: Wire, path: str, fields: dict[str, Any], num_taken_out: int
) -> None:
    raw = spaced({"model": vllm_wire.model} | fields | STREAM)
    assert_bytes(await vllm_wire.send(path, raw), raw, num_taken_out=num_taken_out)


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (CHAT, {"messages": ASK, "tools": [BASH], **SCRIPTED}),
        (CHAT, {"messages": ASK, "max_tokens": 4, "n": 2, "temperature": 1}),
        (COMPLETIONS, {"prompt": ["one", "two"], "max_tokens": 4}),
        (RESPONSES, {"input": "List", "tools": [FLAT_BASH], **SCRIPTED}),
        (MESSAGES, {"messages": ASK, "max_tokens": 9}),
    ],
    ids=["chat with a tool", "chat with two choices", "completions", "responses", "messages"],
)
async def test_vllm_bodies_arrive_as_they_are(vllm_wire: Wire, path: str, fields: dict[str, Any]) -> None:
    raw = spaced({"model": vllm_wire.model} | fields)
    seen = await vllm_wire.send(path, raw)
    assert seen.status == 200
    asked, num_given_ids = GIVEN_ID.subn(b"", seen.asked)
    assert (asked, seen.received) == (raw, seen.answered)
    assert num_given_ids == (path == RESPONSES)


async def test_another_name_of_the_model_is_the_only_difference(vllm_wire: Wire) -> None:
    raw = spaced({"model": "gpt-5", "messages": ASK, "max_tokens": 3, "user": "gpt-5"})
    seen = await vllm_wire.send(CHAT, raw)
    assert seen.asked == raw.replace(b'"model": "gpt-5"', b'"model": "tiny"')
    assert seen.received == seen.answered


@pytest.mark.parametrize(
    "fields", [{"messages": []}, {"messages": ASK, "temperature": -1}], ids=["empty", "value"]
)
@pytest.mark.parametrize("stream", [{}, STREAM], ids=["plain", "stream"])
async def test_errors_of_vllm_are_told_in_its_own_words(
    vllm_wire: Wire, fields: dict[str, Any], stream: dict[str, Any]
) -> None:
    seen = await vllm_wire.send(CHAT, {"model": vllm_wire.model} | fields | stream)
    assert (seen.status, seen.received) == (400, seen.answered)


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
