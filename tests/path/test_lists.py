"""One request with many prompts, over real sockets, in front of engines whose answers each test decides."""

from __future__ import annotations

import io
from typing import Any

import orjson
import pytest
from aiohttp import web

from gateway.prompt_lists.scatter import MOST_BESIDE_BYTES
from tests.path.conftest import Answer, Gateway, Start
from tests.path.fake_engine import DONE, Call, FakeEngine, error

PATH = "/v1/completions"
SLOTS: dict[str, Any] = {"slots_per_replica": 64}
"""Parts of four prompts."""
APART = {"X-Turngate-Prompt-Errors": "separate"}


def asks(num_prompts: int, **more: Any) -> dict[str, Any]:
    return {"model": "m", "prompt": [f"prompt {n}" for n in range(num_prompts)], "max_tokens": 4} | more


def choice(index: int, text: str, finish: str | None = "stop") -> dict[str, Any]:
    return {"index": index, "text": text, "logprobs": None, "finish_reason": finish}


def usage(call: Call) -> dict[str, Any]:
    num = len(call.body["prompt"])
    return {"prompt_tokens": 2 * num, "completion_tokens": num, "total_tokens": 3 * num}


def event(choices: list[dict[str, Any]], **more: Any) -> bytes:
    frame = {"id": "cmpl-x", "object": "text_completion", "created": 1, "model": "m", "choices": choices}
    return b"data: " + orjson.dumps(frame | more) + b"\n\n"


async def echoes(call: Call) -> web.StreamResponse:
    """Says each prompt back; refuses a part with the word `bad` in it."""
    prompts, n = call.body["prompt"], call.body.get("n", 1)
    if any("bad" in prompt for prompt in prompts):
        return await call.reply(400, error("It is bad.", 400, "BadRequestError", "prompt"))
    choices = [choice(p * n + copy, f"{text}/{copy}") for p, text in enumerate(prompts) for copy in range(n)]
    if not call.body.get("stream"):
        frame = {"id": "cmpl-x", "object": "text_completion", "created": 1, "model": "m"}
        return await call.reply(200, frame | {"choices": choices, "usage": usage(call)})
    for one in choices:
        half = len(one["text"]) // 2
        await call.write(event([one | {"text": one["text"][:half], "finish_reason": None}]))
        await call.write(event([one | {"text": one["text"][half:]}]))
    if (call.body.get("stream_options") or {}).get("include_usage"):
        await call.write(event([], usage=usage(call)))
    await call.write(DONE)
    return await call.end()


def plays(*engines: FakeEngine, play: Any = echoes) -> None:
    for engine in engines:
        engine.plays = [play] * 1_000


def events_of(answer: Answer) -> list[Any]:
    data = [line[6:] for line in answer.body.split(b"\n") if line.startswith(b"data: ")]
    return [orjson.loads(one) for one in data if one != b"[DONE]"]


def texts_of(answer: Answer) -> dict[int, str]:
    """Text of each finished choice, as a client puts it together."""
    texts: dict[int, str] = {}
    finished = set()
    for parsed in events_of(answer):
        for one in parsed.get("choices", ()):
            assert one["index"] not in finished
            texts[one["index"]] = texts.get(one["index"], "") + one["text"]
            if one["finish_reason"] is not None:
                finished.add(one["index"])
    assert finished == set(texts)
    return texts


@pytest.fixture
async def pair(start: Start) -> Gateway:
    engines = FakeEngine(), FakeEngine()
    plays(*engines)
    return await start(*engines, policy=SLOTS)


async def test_a_list_is_answered_in_its_order_from_all_replicas(pair: Gateway) -> None:
    answer = await pair.ask(asks(50), PATH)
    body = orjson.loads(answer.body)
    assert [one["index"] for one in body["choices"]] == list(range(50))
    assert [one["text"] for one in body["choices"]] == [f"prompt {n}/0" for n in range(50)]
    assert body["usage"] == {"prompt_tokens": 100, "completion_tokens": 50, "total_tokens": 150}
    assert (body["object"], body["model"]) == ("text_completion", "m")
    assert [len(engine.calls) > 2 for engine in pair.engines] == [True, True]
    assert max(len(call.body["prompt"]) for engine in pair.engines for call in engine.calls) == 4


async def test_several_choices_for_each_prompt_keep_the_apis_numbering(pair: Gateway) -> None:
    body = orjson.loads((await pair.ask(asks(10, n=3), PATH)).body)
    assert [one["text"] for one in body["choices"]] == [
        f"prompt {p}/{copy}" for p in range(10) for copy in range(3)
    ]


@pytest.mark.parametrize("prompt", ["one", ["one"], ["a", "b", "c", "d"], [1, 2, 3]])
async def test_one_prompt_or_one_part_passes_byte_for_byte(start: Start, engine: FakeEngine, prompt: Any) -> None:
    body = b'{ "model":"m",  "prompt":' + orjson.dumps(prompt) + b',"x":1.0}'
    said = b'{"choices": [ ],   "usage": {}}'

    async def play(call: Call) -> web.StreamResponse:
        return await call.reply(200, said)

    plays(engine, play=play)
    gateway = await start(engine, policy=SLOTS)
    async with gateway.client.post(gateway.url(PATH), data=body) as response:
        assert await response.read() == said
    assert engine.calls[0].raw == body


@pytest.mark.parametrize("headers", [{}, APART])
async def test_a_list_with_much_beside_it_is_not_sent_many_times(pair: Gateway, headers: dict[str, str]) -> None:
    """A thousand parts of a request with a megabyte beside its prompts would be a gigabyte to send."""
    body = orjson.dumps(asks(50, suffix="x" * MOST_BESIDE_BYTES))
    async with pair.client.post(pair.url(PATH), data=io.BytesIO(body), headers=headers) as response:
        assert len((await response.json())["choices"]) == 50
    assert [call.raw for engine in pair.engines for call in engine.calls] == [body]


async def test_prompts_themselves_may_be_long(pair: Gateway) -> None:
    prompts = ["é" * 100_000 + str(n) for n in range(12)]
    body = io.BytesIO(orjson.dumps(asks(0) | {"prompt": prompts}))
    async with pair.client.post(pair.url(PATH), data=body) as response:
        texts = [one["text"] for one in (await response.json())["choices"]]
    assert texts == [f"{prompt}/0" for prompt in prompts]
    assert sum(len(engine.calls) for engine in pair.engines) > 1


async def test_what_a_list_asks_for_reaches_every_part(pair: Gateway) -> None:
    await pair.ask(asks(20, temperature=0.5, extra={"a": [1]}), PATH, X_Other="yes")
    calls = [call for engine in pair.engines for call in engine.calls]
    for call in calls:
        assert (call.body["temperature"], call.body["extra"], call.headers["X-Other"]) == (0.5, {"a": [1]}, "yes")
    assert len({call.headers["X-Request-Id"] for call in calls}) == len(calls)


async def test_a_stream_has_the_same_choices_under_the_same_indexes(pair: Gateway) -> None:
    answer = await pair.ask(asks(30, n=2, stream=True, stream_options={"include_usage": True}), PATH)
    assert texts_of(answer) == {p * 2 + copy: f"prompt {p}/{copy}" for p in range(30) for copy in range(2)}
    events = events_of(answer)
    assert answer.body.endswith(b"data: [DONE]\n\n")
    assert len({one["id"] for one in events}) == 1
    assert events[-1]["usage"]["total_tokens"] == 90
    assert [one for one in events if "usage" in one] == [events[-1]]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_bad_prompt_fails_the_request_as_in_openais_api(pair: Gateway, stream: bool) -> None:
    body = asks(20, stream=stream)
    body["prompt"][0] = "a bad one"
    answer = await pair.ask(body, PATH)
    assert answer.status == 400 or (answer.is_cut and b"It is bad." in answer.body)
    if not stream:
        assert orjson.loads(answer.body)["error"]["message"] == "It is bad."
    await pair.is_empty()


@pytest.mark.parametrize("stream", [False, True])
async def test_bad_prompts_fail_alone_when_asked_to(pair: Gateway, stream: bool) -> None:
    body = asks(20, stream=stream)
    body["prompt"][3] = "a bad one"
    body["prompt"][11] = "another bad one"
    async with pair.client.post(pair.url(PATH), json=body, headers=APART) as response:
        assert response.status == 200
        raw = await response.read()
    rows = events_of(Answer(200, {}, raw)) if stream else [orjson.loads(raw)]
    ends = {one["index"]: one for row in rows for one in row["choices"] if one["finish_reason"]}
    assert sorted(ends) == list(range(20))
    bad = {index for index, one in ends.items() if one["finish_reason"] == "error"}
    assert bad == {3, 11}
    assert ends[3]["error"]["message"] == "It is bad."


@pytest.mark.parametrize("stream", [False, True])
async def test_an_engine_that_dies_in_the_middle_loses_nothing(start: Start, stream: bool) -> None:
    dying, other = FakeEngine(), FakeEngine()

    async def dies(call: Call) -> web.StreamResponse | None:
        """After a few answers, in the middle of one where it streams."""
        if len(dying.calls) < 3:
            return await echoes(call)
        if call.body.get("stream"):
            await call.write(event([choice(0, call.body["prompt"][0] + "/0")]))
            await call.write(event([choice(1, call.body["prompt"][1][:3], None)]))
        call.cut()
        return None

    plays(dying, play=dies)
    plays(other)
    gateway = await start(dying, other, policy=SLOTS)
    answer = await gateway.ask(asks(60, stream=stream), PATH)
    assert answer.status == 200
    assert len(dying.calls) >= 3
    found = texts_of(answer) if stream else {c["index"]: c["text"] for c in orjson.loads(answer.body)["choices"]}
    assert found == {n: f"prompt {n}/0" for n in range(60)}
    await gateway.is_empty()


async def test_a_cut_stream_that_goes_on_otherwise_is_reset(start: Start, engine: FakeEngine) -> None:
    async def changes(call: Call) -> web.StreamResponse | None:
        await call.write(event([choice(0, f"answer {len(engine.calls)}", None)]))
        call.cut()
        return None

    plays(engine, play=changes)
    gateway = await start(engine, policy=SLOTS)
    answer = await gateway.ask(asks(8, stream=True), PATH)
    assert answer.is_cut
    assert b"another gave another answer" in answer.body
    assert b"[DONE]" not in answer.body
    await gateway.is_empty()


async def test_a_client_that_leaves_stops_every_part(start: Start) -> None:
    engines = FakeEngine(), FakeEngine()

    async def hangs(call: Call) -> None:
        await call.start()
        await call.write(b": nothing yet\n\n")
        await engines[0].has_seen(10_000)

    plays(*engines, play=hangs)
    gateway = await start(*engines, policy=SLOTS)
    task = gateway.begin(asks(200), PATH)
    await gateway.until(lambda: sum(len(engine.calls) for engine in engines) >= 10)
    task.cancel()
    await gateway.is_empty()


async def test_prompts_with_one_prefix_go_together(pair: Gateway) -> None:
    prompts = [f"{'abcd'[n % 4] * 3_000} {n}" for n in range(40)]
    await pair.ask(asks(40, prompt=prompts), PATH)
    mixed = 0
    for engine in pair.engines:
        for call in engine.calls:
            mixed += len({prompt[0] for prompt in call.body["prompt"]}) - 1
    assert mixed <= 3
