"""Answers whose client was kept waiting, as the official SDKs read them: one beginning, one id, one numbering."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import openai
import orjson
import pytest
from anthropic import AsyncAnthropic
from openai import AsyncOpenAI

from gateway.core.response_ids import new_id
from tests.path.conftest import Gateway, Start, rest_of
from tests.path.fake_engine import DONE, Call, FakeEngine, Play, error, replies, stalls_after, streams
from tests.path.tool_dialects import response, response_events, speaks
from tests.path.toolkit import Bench, Says, deltas, says

Connect = Callable[..., AsyncOpenAI]
ASK: Any = [{"role": "user", "content": "find it"}]
IN_TURN = "benchmarks.simulation.placement:round_robin"
RESPONSES = "/v1/responses"
STREAM = {"model": "m", "input": "find it", "stream": True}
LAST = Says("It is there.", id="resp_of_engine_2")
SEARCH = Says("I look.", (("call_search_1", "search", '{"q":"a"}'),), id="resp_of_engine_1")
AT_ONCE = {"silent_queue_s": 0}
"""Whoever is not answered at once hears a keep-alive."""
ONE_SLOT = {"name": "fifo", "slots_per_replica": 1}


def named(turn: Says) -> Play:
    """As vLLM and SGLang answer: under the id that the request gives them."""

    async def play(call: Call) -> Any:
        id_ = call.body.get("request_id") or turn.id
        return await speaks(Says(turn.text, turn.calls, id=id_))(call)

    return play


def stored(call: Call) -> bytes:
    """What a GET of an answer says."""
    id_ = call.path.split("/")[3]
    return orjson.dumps(response(LAST, {}) | {"id": id_})


async def finds(call: Call) -> Any:
    return await call.reply(200, stored(call))


def later(play: Play, until: asyncio.Event) -> Play:
    return stalls_after(until=until, then=play)


def numbers(events: list[Any]) -> list[int]:
    return [event["sequence_number"] for event in events]


def data(body: bytes) -> list[dict[str, Any]]:
    """Of a stream with named events."""
    lines = [line for line in body.split(b"\n") if line.startswith(b"data: ")]
    return [orjson.loads(line[6:]) for line in lines]


def ids(events: list[dict[str, Any]]) -> set[str]:
    return {event["response"]["id"] for event in events if "response" in event}


async def beats(gateway: Gateway, opened: Any, num: int) -> bytes:
    """So many keep-alives of a stream that waits."""
    got: bytes = await opened.content.readany()
    for _ in range(num - 1):
        gateway.clock.advance(25)
        got += await opened.content.readany()
    return got


async def waited(gateway: Gateway, go_on: asyncio.Event, num: int = 3, **body: Any) -> bytes:
    """The whole stream of a call that waited for so many keep-alives."""
    async with gateway.post(STREAM | body, RESPONSES) as opened:
        got = await beats(gateway, opened, num)
        go_on.set()
        return got + (await rest_of(opened)).body


@pytest.fixture
async def anthropic() -> AsyncIterator[Callable[[Gateway], AsyncAnthropic]]:
    clients: list[AsyncAnthropic] = []

    def connect(gateway: Gateway) -> AsyncAnthropic:
        clients.append(AsyncAnthropic(base_url=gateway.url(""), api_key="x", max_retries=0))
        return clients[-1]

    yield connect
    for client in clients:
        await client.close()


@pytest.mark.parametrize("play", [speaks(LAST), named(LAST)], ids=["an id of its own", "the id that it is given"])
async def test_the_helper_of_responses_reads_an_answer_that_was_waited_for(
    start: Start, engine: FakeEngine, sdk: Connect, play: Play
) -> None:
    go_on = asyncio.Event()
    engine.plays = [later(play, go_on)]
    gateway = await start(engine, stream=AT_ONCE)
    events: list[dict[str, Any]] = []
    async with sdk(gateway).responses.stream(model="m", input="find it", temperature=0.5) as stream:
        async for event in stream:
            events.append(event.to_dict(warnings=False))
            if len(events) < 3:
                gateway.clock.advance(25)
            else:
                go_on.set()
        final = await stream.get_final_response()
    assert final.output_text == "It is there."
    assert [event["type"] for event in events[:3]] == ["response.created", *["response.in_progress"] * 2]
    assert [event["type"] for event in events].count("response.created") == 1
    assert events[0]["response"]["temperature"] == 0.5
    assert numbers(events) == list(range(len(events)))
    assert ids(events) == {final.id}
    assert {event["response"]["model"] for event in events if "response" in event} == {"m"}
    assert final.usage is not None
    assert final.usage.input_tokens == 10


async def test_a_stream_that_was_queued_is_one_answer(start: Start, engine: FakeEngine) -> None:
    hold, go_on = asyncio.Event(), asyncio.Event()
    engine.plays = [later(speaks(LAST), hold), later(speaks(LAST), go_on)]
    gateway = await start(engine, policy=ONE_SLOT, stream=AT_ONCE)
    gateway.begin(STREAM, RESPONSES)
    await engine.has_seen(1)
    async with gateway.post(STREAM, RESPONSES) as opened:
        got = await beats(gateway, opened, 2)
        hold.set()
        await engine.has_seen(2)
        gateway.clock.advance(25)
        got += await opened.content.readany()
        go_on.set()
        got += (await rest_of(opened)).body
    events = data(got)
    assert len(ids(events)) == 1
    assert numbers(events) == list(range(len(events)))
    assert [event["type"] for event in events].count("response.created") == 1


async def test_what_the_engine_sent_on_arrival_stands_behind_our_own_beginning(
    start: Start, engine: FakeEngine
) -> None:
    whole, go_on = list(response_events(LAST, {})), asyncio.Event()
    engine.plays = [stalls_after(*whole[:2], until=go_on, then=streams(whole[2:]))]
    gateway = await start(engine, stream=AT_ONCE)
    events = data(await waited(gateway, go_on))
    kinds = [event["type"] for event in events]
    assert kinds[:4] == ["response.created", *["response.in_progress"] * 3]
    assert kinds.count("response.created") == 1
    assert numbers(events) == list(range(len(events)))
    assert len(ids(events)) == 1


async def test_an_answer_that_nobody_waited_for_passes_byte_for_byte(start: Start, engine: FakeEngine) -> None:
    for play, path in ((named(LAST), RESPONSES), (says(LAST), "/v1/chat/completions")):
        engine.plays = [play]
        gateway = await start(engine)
        answer = await gateway.ask(STREAM | {"messages": ASK, "stream_options": {"include_usage": True}}, path)
        assert answer.body == engine.calls[-1].sent


@pytest.mark.parametrize("api", ["chat", "completions"])
async def test_chunks_keep_the_id_of_the_keep_alives(
    start: Start, engine: FakeEngine, sdk: Connect, api: str
) -> None:
    go_on = asyncio.Event()
    chunk = {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": "m"}
    said = [
        b"data: "
        + orjson.dumps(chunk | {"choices": [{"index": 0, "text": text, "finish_reason": reason}]})
        + b"\n\n"
        for text, reason in (("It is ", None), ("there.", "stop"))
    ]
    engine.plays = [later(says(LAST) if api == "chat" else streams([*said, DONE]), go_on)]
    gateway = await start(engine, stream=AT_ONCE)
    client, chunks = sdk(gateway), []
    made: Any = (
        client.chat.completions.create(model="m", messages=ASK, stream=True)
        if api == "chat"
        else client.completions.create(model="m", prompt="find it", stream=True)
    )
    async for part in await made:
        chunks.append(part)
        go_on.set()
    texts = [(part.choices[0].delta.content if api == "chat" else part.choices[0].text) or "" for part in chunks]
    assert "".join(texts) == "It is there."
    assert len({(part.id, part.created, part.model) for part in chunks}) == 1


async def test_the_helper_of_chat_reads_an_answer_that_was_waited_for(
    start: Start, engine: FakeEngine, sdk: Connect
) -> None:
    go_on = asyncio.Event()
    calls = Says("I look.", (("call_1", "edit", '{"path":"x"}'),))
    engine.plays = [later(says(calls), go_on)]
    gateway = await start(engine, stream=AT_ONCE)
    seen = set()
    async with sdk(gateway).chat.completions.stream(model="m", messages=ASK) as stream:
        async for event in stream:
            if event.type == "chunk":
                seen.add(event.chunk.id)
                go_on.set()
        final = await stream.get_final_completion()
    assert final.choices[0].message.tool_calls
    assert final.choices[0].message.tool_calls[0].function.arguments == '{"path":"x"}'
    assert seen == {final.id}


@pytest.mark.parametrize("has_tools", [False, True])
async def test_a_message_starts_once(
    start: Start, engine: FakeEngine, anthropic: Callable[[Gateway], AsyncAnthropic], has_tools: bool
) -> None:
    bench = Bench()
    engine.plays = [speaks(SEARCH), speaks(LAST)] if has_tools else [speaks(LAST)]
    gateway = await start(engine, stream=AT_ONCE, **({"tools": bench.settings()} if has_tools else {}))
    body = {"model": "m", "max_tokens": 99, "messages": ASK, "stream": True}
    kinds = [event["type"] for event in data((await gateway.ask(body, "/v1/messages")).body)]
    assert kinds[0] == "ping"
    assert kinds.count("message_start") == kinds.count("message_stop") == 1
    engine.plays = [speaks(SEARCH), speaks(LAST)] if has_tools else [speaks(LAST)]
    async with anthropic(gateway).messages.stream(model="m", max_tokens=99, messages=ASK) as stream:
        final = await stream.get_final_message()
    assert "".join(block.text for block in final.content if block.type == "text").endswith("It is there.")


async def test_a_failure_after_a_keep_alive_belongs_to_the_same_answer(start: Start, engine: FakeEngine) -> None:
    go_on = asyncio.Event()
    engine.plays = [later(replies(400, error("no such thing", 400)), go_on)]
    gateway = await start(engine, stream=AT_ONCE)
    events = data(await waited(gateway, go_on, 2))
    assert [event["type"] for event in events] == ["response.created", "response.in_progress", "response.failed"]
    assert events[-1]["response"]["error"]["message"] == "no such thing"
    assert numbers(events) == [0, 1, 2]
    assert len(ids(events)) == 1


@pytest.mark.parametrize("has_tools", [False, True])
async def test_an_error_in_the_middle_of_an_answer_that_was_waited_for_has_its_id_too(
    start: Start, engine: FakeEngine, has_tools: bool
) -> None:
    whole, go_on = list(response_events(LAST, {})), asyncio.Event()
    failed = response(LAST, {}, "failed") | {"error": {"code": "server_error", "message": "out of memory"}}
    told = {"type": "response.failed", "sequence_number": 6, "response": failed}
    end = b"event: response.failed\ndata: " + orjson.dumps(told) + b"\n\n"
    engine.plays = [later(streams([*whole[:6], end]), go_on)]
    tools = {"tools": Bench().settings()} if has_tools else {}
    gateway = await start(engine, stream=AT_ONCE, **tools)
    events = data(await waited(gateway, go_on))
    assert events[-1]["response"]["error"]["message"] == "out of memory"
    assert len(ids(events)) == 1
    assert numbers(events) == list(range(len(events)))


# ---- with tools of the gateway


async def test_the_helper_reads_rounds_of_which_each_was_waited_for(
    start: Start, engine: FakeEngine, sdk: Connect
) -> None:
    bench, first, second = Bench(), asyncio.Event(), asyncio.Event()
    bench.holds.clear()
    engine.plays = [later(speaks(SEARCH), first), later(speaks(LAST), second)]
    gateway = await start(engine, tools=bench.settings(), stream=AT_ONCE)
    edit: Any = {"type": "function", "name": "edit", "parameters": {"type": "object"}, "strict": False}
    events: list[dict[str, Any]] = []
    async with sdk(gateway).responses.stream(model="m", input="find it", tools=[edit]) as stream:
        async for event in stream:
            events.append(event.to_dict(warnings=False))
            first.set()
            if event.type == "response.output_item.done" and not bench.holds.is_set():
                await bench.started.wait()
                await gateway.is_empty()
                gateway.clock.advance(26)
            if event.type == "response.in_progress" and bench.started.is_set():
                bench.holds.set()
                if len(engine.calls) == 2:
                    second.set()
                else:
                    await engine.has_seen(2)
                    gateway.clock.advance(26)
        final = await stream.get_final_response()
    assert final.output_text == "I look.It is there."
    assert [event["type"] for event in events].count("response.created") == 1
    assert [tool["name"] for tool in events[0]["response"]["tools"]] == ["edit"]
    assert numbers(events) == list(range(len(events)))
    assert ids(events) == {final.id}
    assert events[-1]["response"]["status"] == "completed"
    kept = next(e for e in events if e["type"] == "response.in_progress" and e["response"]["output"])
    assert kept["response"]["output"][0]["content"][0]["text"] == "I look."


async def test_with_tools_what_the_engine_sent_on_arrival_is_numbered_as_it_goes_out(
    start: Start, engine: FakeEngine
) -> None:
    whole, go_on = list(response_events(LAST, {})), asyncio.Event()
    engine.plays = [stalls_after(*whole[:2], until=go_on, then=streams(whole[2:]))]
    gateway = await start(engine, tools=Bench().settings(), stream=AT_ONCE)
    events = data(await waited(gateway, go_on))
    assert [event["type"] for event in events].count("response.created") == 1
    assert numbers(events) == list(range(len(events)))
    assert len(ids(events)) == 1


async def test_a_round_that_fails_ends_the_answer_under_its_own_id(start: Start, engine: FakeEngine) -> None:
    engine.plays = [speaks(SEARCH), replies(400, error("too long", 400))]
    gateway = await start(engine, tools=Bench().settings(), stream=AT_ONCE)
    events = data((await gateway.ask(STREAM, RESPONSES)).body)
    assert events[-1]["type"] == "response.failed"
    assert numbers(events) == list(range(len(events)))
    assert len(ids(events)) == 1


async def test_rounds_of_chat_keep_the_keep_alives_id(start: Start, engine: FakeEngine) -> None:
    engine.plays = [says(SEARCH), says(LAST)]
    gateway = await start(engine, tools=Bench().settings(), stream=AT_ONCE)
    answer = await gateway.ask({"model": "m", "messages": ASK, "stream": True})
    assert len({(chunk["id"], chunk["created"], chunk["model"]) for chunk in deltas(answer.body)}) == 1


# ---- what a client does with the id


@pytest.mark.parametrize("play", [speaks(LAST), named(LAST)], ids=["an id of its own", "the id that it is given"])
@pytest.mark.parametrize("has_tools", [False, True])
async def test_our_id_is_followed_up_and_read_where_the_engine_has_the_answer(
    start: Start, sdk: Connect, play: Play, has_tools: bool
) -> None:
    engines = [FakeEngine(), FakeEngine()]
    go_on = asyncio.Event()
    engines[0].plays = engines[1].plays = [later(play, go_on)]
    tools = {"tools": Bench().settings()} if has_tools else {}
    gateway = await start(*engines, policy={"placement": IN_TURN}, stream=AT_ONCE, **tools)
    created = data(await waited(gateway, go_on, 1))[0]["response"]
    (home,) = [engine for engine in engines if engine.calls]
    for engine in engines:
        engine.plays = [speaks(Says("And more.", id="resp_2")), finds]
    client = sdk(gateway)
    assert (await client.responses.create(model="m", input="and?", previous_response_id=created["id"])).id
    assert home.calls[-1].body["previous_response_id"] == data(bytes(home.calls[0].sent))[0]["response"]["id"]
    read = await client.responses.retrieve(created["id"])
    assert (read.id, read.output_text) == (created["id"], "It is there.")
    assert len(home.calls) == 3


async def test_our_id_outlives_the_gateway(start: Start, sdk: Connect) -> None:
    engines = [FakeEngine(), FakeEngine()]
    go_on = asyncio.Event()
    engines[0].plays = engines[1].plays = [later(named(LAST), go_on)]
    before = await start(*engines, stream=AT_ONCE)
    id_ = data(await waited(before, go_on, 1))[0]["response"]["id"]
    (home,) = [engine for engine in engines if engine.calls]
    (other,) = [engine for engine in engines if not engine.calls]
    gateway = await start(*engines)  # it remembers nothing
    other.lacks = frozenset((f"{RESPONSES}/{id_}",))
    home.plays = [finds, finds, speaks(Says("And more.", id="resp_2"))]
    client = sdk(gateway)
    assert (await client.responses.retrieve(id_)).output_text == "It is there."
    assert (await client.responses.create(model="m", input="and?", previous_response_id=id_)).id == "resp_2"
    assert home.calls[-1].body["previous_response_id"] == id_
    assert not [call for call in other.calls if call.path == RESPONSES]


KEYS = [{"key": f"env:KEY_{name.upper()}", "tenant": name} for name in "ab"]


async def test_our_id_is_its_own_tenant_s_also_after_a_restart(
    start: Start, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "ab":
        monkeypatch.setenv(f"KEY_{name.upper()}", f"key-{name}")
    engine.plays = [named(LAST)]
    before = await start(engine, stream=AT_ONCE, keys=KEYS)
    answer = await before.ask(STREAM, RESPONSES, Authorization="Bearer key-a")
    id_ = data(answer.body)[0]["response"]["id"]
    gateway = await start(engine, keys=KEYS)
    for one in (before, gateway):
        follow = await one.ask(STREAM | {"previous_response_id": id_}, RESPONSES, Authorization="Bearer key-b")
        assert follow.status == 404
        async with one.get(f"{RESPONSES}/{id_}", Authorization="Bearer key-b") as found:
            assert found.status == 404
    assert len(engine.calls) == 1
    forged = id_[:-1] + ("0" if id_[-1] != "0" else "1")
    async with gateway.get(f"{RESPONSES}/{forged}", Authorization="Bearer key-a") as found:
        assert found.status == 404
    assert len(engine.calls) == 1


async def test_without_tenants_the_id_of_another_gateway_is_the_engines_to_judge(
    start: Start, engine: FakeEngine
) -> None:
    id_ = new_id("a tenant of a gateway behind this one")
    gateway = await start(engine)
    engine.plays = [speaks(LAST)]
    answer = await gateway.ask(STREAM | {"previous_response_id": id_}, RESPONSES)
    assert answer.status == 200
    assert engine.calls[0].body["previous_response_id"] == id_


async def test_while_the_engine_that_may_have_it_is_away_a_response_is_not_called_gone(
    start: Start, engine: FakeEngine
) -> None:
    gateway = await start(engine)
    await engine.stop()
    async with gateway.get(f"{RESPONSES}/{new_id('default')}") as found:
        assert found.status == 503
        assert "Retry-After" in found.headers


async def test_an_id_that_no_engine_knows_is_not_found(start: Start, engine: FakeEngine, sdk: Connect) -> None:
    engine.plays = [named(LAST)]
    before = await start(engine, stream=AT_ONCE)
    id_ = data((await before.ask(STREAM, RESPONSES)).body)[0]["response"]["id"]
    engine.lacks = frozenset((f"{RESPONSES}/{id_}",))
    gateway = await start(engine)
    with pytest.raises(openai.NotFoundError):
        await sdk(gateway).responses.retrieve(id_)


async def test_of_rounds_at_several_engines_the_last_one_is_followed_up(start: Start) -> None:
    engines = [FakeEngine(), FakeEngine(), FakeEngine()]
    gateway = await start(*engines)
    id_ = new_id("default")
    for engine, created_at in zip(engines, (7, 9, 8), strict=True):
        engine.plays = [replies(200, response(LAST, {}) | {"id": id_, "created_at": created_at}), speaks(LAST)]
    assert (await gateway.ask(STREAM | {"previous_response_id": id_}, RESPONSES)).status == 200
    assert [len(engine.calls) for engine in engines] == [1, 2, 1]
