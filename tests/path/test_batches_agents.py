"""Lines that are agent runs: model and tools by turns, kept so that a restart goes on behind the last message."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import openai
import orjson
import pytest
from aiohttp import web

from gateway.batches import agent_runs, runner
from gateway.batches.sqlite import SqliteStore
from tests.deadline import DEADLINE_S
from tests.path import batch_tools
from tests.path.batches import Connect, create, over, plays, rows_of
from tests.path.conftest import Start
from tests.path.fake_engine import Call, FakeEngine, completion, error

URL = "/v1/turngate/agent_runs"
TOOLS = {"use": [{"use": f"tests.path.batch_tools:{name}"} for name in ("look", "order")]}
SCHEMA = {"type": "object", "properties": {"answer": {"type": "integer"}}, "required": ["answer"]}


def run(custom_id: str = "a", **body: Any) -> dict[str, Any]:
    return {"custom_id": custom_id, "method": "POST", "url": URL, "body": {"task": f"Task {custom_id}."} | body}


def says(*calls: tuple[str, str], text: str | None = None) -> dict[str, Any]:
    """An answer with calls of tools: (name, key)."""
    answer = completion(text or "")
    told = [
        {"id": f"call_{n}", "type": "function", "function": {"name": name, "arguments": f'{{"key": "{key}"}}'}}
        for n, (name, key) in enumerate(calls)
    ]
    answer["choices"][0]["message"] = {"role": "assistant", "content": text, "tool_calls": told or None}
    return answer


def script(engine: FakeEngine, *answers: dict[str, Any]) -> None:
    """The answers to the turns of every run, by how many the model has given."""

    async def play(call: Call) -> web.StreamResponse:
        turn = sum(message["role"] == "assistant" for message in call.body["messages"])
        return await call.reply(200, answers[min(turn, len(answers) - 1)])

    plays(engine, play)


async def test_a_result_names_the_session_of_its_run_and_the_receipt_of_its_last_call(
    start: Start, engine: FakeEngine, kept: dict[str, str], sdk: Connect
) -> None:
    script(engine, says(text="done"))
    client = sdk(await start(engine, batches=kept))
    done = await over(client, await create(client, [run()], endpoint=URL))
    response = (await rows_of(client, done.output_file_id))["a"]["response"]
    assert response["turngate"].keys() == {"session", "receipt"}


async def result(client: openai.AsyncOpenAI, *rows: dict[str, Any]) -> Any:
    """Of the first run, or what it failed with."""
    done = await over(client, await create(client, rows, endpoint=URL))
    assert done.status == "completed", done.errors
    rows_ = await rows_of(client, done.output_file_id) | await rows_of(client, done.error_file_id)
    return rows_[rows[0]["custom_id"]]["response"]["body"]


@pytest.fixture(autouse=True)
def _no_calls() -> Iterator[None]:
    batch_tools.CALLS.clear()
    yield
    batch_tools.HOLDS.clear()


@pytest.fixture
def kept(tmp_path: Path) -> dict[str, str]:
    return {"directory": str(tmp_path / "batches")}


async def test_a_run_calls_its_tools_and_ends_with_its_answer(
    start: Start, engine: FakeEngine, kept: dict[str, str], sdk: Connect
) -> None:
    script(engine, says(("look", "x"), ("look", "y")), says(("order", "x")), says(text="done"))
    gateway = await start(engine, batches=kept, tools=TOOLS)
    told = await result(
        sdk(gateway), run(tools=["look", "order"], system="Be brief.", include=["messages"], temperature=0)
    )
    assert (told["output"], told["turns"], told["tool_calls"]) == ("done", 3, 3)
    assert (told["usage"]["input_tokens"], told["usage"]["output_tokens"]) == (21, 6)
    assert sorted(map(str, batch_tools.CALLS))[0] == "('look', {'key': 'x'})"
    assert [message["role"] for message in told["messages"]] == [
        *("system", "user", "assistant", "tool", "tool", "assistant", "tool", "assistant")
    ]
    assert [message["content"] for message in told["messages"][3:5]] == ["seen x", "seen y"]
    assert [tool["function"]["name"] for tool in engine.calls[0].body["tools"]] == ["look", "order"]
    assert all(call.body["temperature"] == 0 for call in engine.calls)
    histories = [call.body["messages"] for call in engine.calls]
    assert all(later[: len(earlier)] == earlier for earlier, later in pairwise(histories))
    await gateway.is_empty()


async def test_an_output_that_does_not_fit_the_schema_is_asked_for_once_more(
    start: Start, engine: FakeEngine, kept: dict[str, str], sdk: Connect
) -> None:
    script(engine, says(text='{"answer": "x"}'), says(text='```json\n{"answer": 7}\n```'))
    told = await result(sdk(await start(engine, batches=kept)), run(schema=SCHEMA))
    assert (told["output"], told["turns"]) == ({"answer": 7}, 2)
    assert engine.calls[0].body["response_format"]["json_schema"]["schema"] == SCHEMA
    assert "$.answer" in engine.calls[1].body["messages"][-1]["content"]


NEVER_ENDS = {
    "a pattern": ({"type": "string", "pattern": "^(a+)+$"}, f'"{"a" * 60}!"'),
    "references": ({"$ref": "#/$defs/twice"}, "[" * 60 + "]" * 60),
}
TWICE = {"anyOf": [{"items": {"$ref": "#/$defs/twice"}, "maxItems": 0}, {"items": {"$ref": "#/$defs/twice"}}] * 2}


@pytest.mark.parametrize("which", NEVER_ENDS)
async def test_a_schema_that_takes_for_ever_ends_its_own_run_and_holds_up_no_other(
    start: Start, engine: FakeEngine, kept: dict[str, str], sdk: Connect, which: str
) -> None:
    answer, text = NEVER_ENDS[which]
    schema = {"type": "object", "properties": {"answer": answer}, "$defs": {"twice": TWICE}}
    script(engine, says(text=f'{{"answer": {text}}}'))
    gateway = await start(engine, batches=kept)
    told = await result(sdk(gateway), run(schema=schema))
    assert told["error"]["code"] == "not_checked"
    script(engine, says(text='{"answer": 7}'))
    assert (await result(sdk(gateway), run(schema=SCHEMA)))["output"] == {"answer": 7}


async def test_with_tools_the_schema_is_enforced_only_when_no_tool_may_be_called(
    start: Start, engine: FakeEngine, kept: dict[str, str], sdk: Connect
) -> None:
    script(engine, says(("look", "x")), says(text='{"answer": 1}'))
    gateway = await start(engine, batches=kept, tools=TOOLS)
    assert (await result(sdk(gateway), run(tools=["look"], schema=SCHEMA, max_turns=2)))["output"] == {"answer": 1}
    first, last = (call.body for call in engine.calls)
    assert ("response_format" in first, "tool_choice" in first) == (False, False)
    assert (last["tool_choice"], last["response_format"]["type"]) == ("none", "json_schema")
    assert last["tools"] == first["tools"]
    assert "JSON Schema" in first["messages"][0]["content"]


@pytest.mark.parametrize(
    ("answer", "more", "code"),
    [
        (says(("look", "x")), {"tools": ["look"], "max_turns": 3}, "max_turns"),
        (says(text="no json"), {"schema": SCHEMA, "max_turns": 2}, "invalid_output"),
    ],
)
async def test_a_run_without_an_output_fails_and_says_why(
    start: Start,
    engine: FakeEngine,
    kept: dict[str, str],
    sdk: Connect,
    answer: dict[str, Any],
    more: dict[str, Any],
    code: str,
) -> None:
    script(engine, answer)
    told = await result(sdk(await start(engine, batches=kept, tools=TOOLS)), run(**more))
    assert told["error"]["code"] == code
    assert len(engine.calls) == more["max_turns"]


async def test_an_engine_that_refuses_a_turn_ends_the_run_with_its_words(
    start: Start, engine: FakeEngine, kept: dict[str, str], sdk: Connect
) -> None:
    async def play(call: Call) -> web.StreamResponse:
        return await call.reply(400, error("Too long.", 400, "invalid_request_error"))

    plays(engine, play)
    told = await result(sdk(await start(engine, batches=kept)), run())
    assert told["error"]["message"] == "Too long."


@pytest.mark.parametrize(
    "answer",
    [
        b'{"choices": []}',
        b'{"choices": ["x"]}',
        b'{"choices": [{"message": {"role": "assistant", "tool_calls": ["x"]}}]}',
    ],
)
async def test_an_answer_that_is_none_ends_its_run_and_not_the_batch(
    start: Start, engine: FakeEngine, kept: dict[str, str], sdk: Connect, answer: bytes
) -> None:
    async def play(call: Call) -> web.StreamResponse:
        return await call.reply(200, orjson.loads(answer))

    plays(engine, play)
    gateway = await start(engine, batches=kept, tools=TOOLS)
    told = await result(sdk(gateway), run(tools=["look"]))
    assert told["error"]["code"] == "no_answer"


async def test_only_the_tools_that_the_line_names_can_be_called(
    start: Start, engine: FakeEngine, kept: dict[str, str], sdk: Connect
) -> None:
    script(engine, says(("order", "x")), says(text="done"))
    told = await result(
        sdk(await start(engine, batches=kept, tools=TOOLS)), run(tools=["look"], include=["messages"])
    )
    assert told["messages"][2]["content"] == "There is no tool 'order'."
    assert batch_tools.CALLS == []


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"tools": ["rm"]}, "body.tools"),
        ({"tools": ["order"]}, "body.tools"),
        ({"max_turns": 0}, "body.max_turns"),
        ({"schema": {"type": "nonsense"}}, "body.schema"),
        ({"messages": []}, "body.messages"),
        ({"task": None}, "body.task"),
    ],
)
async def test_a_run_with_a_wrong_body_fails_its_file(
    start: Start,
    engine: FakeEngine,
    kept: dict[str, str],
    sdk: Connect,
    monkeypatch: pytest.MonkeyPatch,
    change: dict[str, Any],
    param: str,
) -> None:
    monkeypatch.setenv("KEY", "k")
    keys = [{"key": "env:KEY", "tenant": "t", "tools": ["look"]}]
    client = sdk(await start(engine, batches=kept, tools=TOOLS, keys=keys), "k")
    failed = await over(client, await create(client, [run(**change)], endpoint=URL))
    assert failed.errors is not None
    assert failed.errors.data is not None
    assert [fault.param for fault in failed.errors.data] == [param]
    assert engine.calls == []


async def test_a_restart_goes_on_at_the_last_message_and_runs_nothing_twice_that_must_not_be(
    start: Start, engine: FakeEngine, kept: dict[str, str], sdk: Connect
) -> None:
    script(engine, says(("look", "x")), says(("look", "y"), ("order", "z")), says(text="done"))
    batch_tools.HOLDS.set()
    first = await start(engine, batches=kept, tools=TOOLS)
    rows = [run(tools=["look", "order"], include=["messages"])]
    batch = await create(sdk(first), rows, endpoint=URL)
    async with asyncio.timeout(DEADLINE_S):
        while ("order", {"key": "z"}) not in batch_tools.CALLS or len(batch_tools.CALLS) < 3:
            await asyncio.sleep(0.01)
    await first.app.stop()
    num_calls = len(engine.calls)
    batch_tools.HOLDS.clear()
    client = sdk(await start(engine, batches=kept, tools=TOOLS))
    done = await over(client, batch)
    told = (await rows_of(client, done.output_file_id))["a"]["response"]["body"]
    assert (told["output"], told["turns"], num_calls, len(engine.calls)) == ("done", 3, 2, 3)
    assert told["usage"]["input_tokens"] == 21
    assert batch_tools.CALLS.count(("order", {"key": "z"})) == 1
    assert batch_tools.CALLS.count(("look", {"key": "x"})) == 1
    results = [message["content"] for message in told["messages"] if message["role"] == "tool"]
    assert results[:2] == ["seen x", "seen y"]
    assert "outcome of this call is unknown" in results[2]
    sent = orjson.dumps(engine.calls[2].body["messages"])
    assert sent.startswith(orjson.dumps(engine.calls[1].body["messages"])[:-1])


async def test_a_schema_that_leads_nowhere_is_reported(
    start: Start, engine: FakeEngine, kept: dict[str, str], sdk: Connect
) -> None:
    script(engine, says(text="{}"))
    told = await result(sdk(await start(engine, batches=kept)), run(schema={"$ref": "#/$defs/nowhere"}))
    assert told["error"]["code"] == "not_checked"
    assert "nowhere" in told["error"]["message"]


async def test_a_line_on_which_the_gateway_fails_is_an_error_row_and_the_others_go_on(
    start: Start, engine: FakeEngine, kept: dict[str, str], sdk: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(text: str) -> str:
        raise RuntimeError("ours")

    monkeypatch.setattr(agent_runs, "_unfenced", fail)
    script(engine, says(text="{}"))
    client = sdk(await start(engine, batches=kept))
    done = await over(client, await create(client, [run("bad", schema=SCHEMA), run("good")], endpoint=URL))
    assert done.request_counts is not None
    assert (done.status, done.request_counts.completed, done.request_counts.failed) == ("completed", 1, 1)
    row = (await rows_of(client, done.error_file_id))["bad"]
    assert (row["response"], row["error"]["code"]) == (None, "gateway_error")
    assert len(engine.calls) == 2


async def test_a_store_that_fails_for_a_moment_fails_no_line(
    start: Start, engine: FakeEngine, kept: dict[str, str], sdk: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    append, left = SqliteStore.append, [OSError("the disk is gone"), sqlite3.OperationalError("and again")]

    async def fails_twice(*told: Any) -> None:
        if left:
            raise left.pop()
        await append(*told)

    monkeypatch.setattr(SqliteStore, "append", fails_twice)
    monkeypatch.setattr(runner, "AGAIN_S", 0.01)
    script(engine, says(("look", "x")), says(text="done"))
    client = sdk(await start(engine, batches=kept, tools=TOOLS))
    assert (await result(client, run(tools=["look"])))["output"] == "done"
    assert not left
