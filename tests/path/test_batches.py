"""`/v1/batches` over real sockets with the official SDK."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import openai
import pytest
from aiohttp import web

from tests.path.batches import Connect, asks, create, over, plays, rows_of
from tests.path.conftest import Start
from tests.path.fake_engine import Call, FakeEngine, completion


@pytest.fixture
def kept(tmp_path: Path) -> dict[str, str]:
    return {"directory": str(tmp_path / "batches")}


async def test_a_batch_goes_from_upload_to_output(
    start: Start, engine: FakeEngine, kept: dict[str, str], sdk: Connect
) -> None:
    client = sdk(await start(engine, batches=kept))
    batch = await create(client, [asks(f"r{n}") for n in range(20)], metadata={"team": "a"})
    assert batch.status == "validating"
    done = await over(client, batch)
    assert (done.status, done.metadata, done.model, done.error_file_id) == ("completed", {"team": "a"}, "m", None)
    assert done.request_counts is not None
    assert (done.request_counts.total, done.request_counts.completed, done.request_counts.failed) == (20, 20, 0)
    times = [done.created_at, done.in_progress_at, done.finalizing_at, done.completed_at]
    assert times == sorted(times, key=lambda at: at or 0)
    assert done.usage is not None
    assert (done.usage.input_tokens, done.usage.output_tokens, done.usage.total_tokens) == (140, 40, 180)
    rows = await rows_of(client, done.output_file_id)
    assert set(rows) == {f"r{n}" for n in range(20)}
    assert rows["r3"]["error"] is None
    response = rows["r3"]["response"]
    assert (response["status_code"], response["body"]) == (200, completion())
    assert response["request_id"] == response["turngate"]["receipt"]
    assert response["turngate"]["session"]
    listed = await client.files.list(purpose="batch_output")
    assert [file.id for file in listed.data] == [done.output_file_id]


async def test_the_engine_gets_the_bytes_of_the_body(
    start: Start, engine: FakeEngine, kept: dict[str, str], sdk: Connect
) -> None:
    client = sdk(await start(engine, batches=kept))
    body = b'{"model": "m",   "messages": [{"role":"user","content":"h\\u00e9"}], "seed": 1.0}'
    line = b'{"custom_id": "a", "body": ' + body + b', "url": "/v1/chat/completions", "method": "POST"}'
    await over(client, await create(client, [line]))
    assert engine.calls[0].raw == body
    assert not [name for name in engine.calls[0].headers if name.lower().startswith("x-turngate")]


async def test_a_file_with_wrong_lines_fails_before_anything_is_asked(
    start: Start, engine: FakeEngine, kept: dict[str, str], sdk: Connect
) -> None:
    client = sdk(await start(engine, batches=kept))
    wrong: list[dict[str, Any] | bytes] = [
        asks("a"),
        b"{oops",
        asks("a"),
        asks("c", url="/v1/embeddings"),
        asks("d") | {"method": "GET"},
    ]
    failed = await over(client, await create(client, wrong))
    assert (failed.status, failed.output_file_id, failed.error_file_id) == ("failed", None, None)
    assert failed.failed_at is not None
    assert failed.errors is not None
    assert failed.errors.data is not None
    assert [(fault.code, fault.line) for fault in failed.errors.data] == [
        ("invalid_json_line", 2),
        ("duplicate_custom_id", 3),
        ("url_mismatch", 4),
        ("invalid_method", 5),
    ]
    assert engine.calls == []


@pytest.mark.parametrize(
    ("url", "ask", "answer"),
    [
        ("/v1/completions", {"prompt": "p"}, {"choices": [{"index": 0, "text": "t", "finish_reason": "stop"}]}),
        ("/v1/embeddings", {"input": ["a"]}, {"data": [{"embedding": [0.25, 1e-9]}]}),
        ("/v1/responses", {"input": "hi"}, {"object": "response", "status": "completed", "output": []}),
    ],
)
async def test_other_endpoints_are_asked_like_chat(
    start: Start,
    engine: FakeEngine,
    kept: dict[str, str],
    url: str,
    ask: dict[str, Any],
    answer: dict[str, Any],
    sdk: Connect,
) -> None:
    async def play(call: Call) -> web.StreamResponse:
        assert call.path == url
        return await call.reply(200, answer | {"id": "x", "model": "m", "usage": {"prompt_tokens": 3}})

    plays(engine, play)
    client = sdk(await start(engine, batches=kept))
    line = {"custom_id": "a", "method": "POST", "url": url, "body": {"model": "m"} | ask}
    done = await over(client, await create(client, [line], endpoint=url))
    rows = await rows_of(client, done.output_file_id)
    assert answer.items() <= rows["a"]["response"]["body"].items()
    assert done.usage is not None
    assert done.usage.input_tokens == 3


async def test_a_batch_that_is_over_cannot_be_cancelled(
    start: Start, engine: FakeEngine, kept: dict[str, str], sdk: Connect
) -> None:
    client = sdk(await start(engine, batches=kept))
    done = await over(client, await create(client, [asks("a")]))
    with pytest.raises(openai.ConflictError, match="Cannot cancel a batch with status 'completed'"):
        await client.batches.cancel(done.id)


async def test_a_tenant_sees_only_its_own(
    start: Start, engine: FakeEngine, kept: dict[str, str], monkeypatch: pytest.MonkeyPatch, sdk: Connect
) -> None:
    monkeypatch.setenv("KEY_A", "a")
    monkeypatch.setenv("KEY_B", "b")
    keys = [{"key": "env:KEY_A", "tenant": "a"}, {"key": "env:KEY_B", "tenant": "b"}]
    gateway = await start(engine, batches=kept, keys=keys)
    one, other, nobody = sdk(gateway, "a"), sdk(gateway, "b"), sdk(gateway, "c")
    done = await over(one, await create(one, [asks("x")]))
    assert done.status == "completed"
    assert done.output_file_id is not None
    assert (await other.batches.list()).data == []
    assert (await other.files.list()).data == []
    refused: list[Awaitable[Any]] = [
        other.batches.retrieve(done.id),
        other.batches.cancel(done.id),
        other.files.retrieve(done.output_file_id),
        other.files.content(done.output_file_id),
        other.files.delete(done.output_file_id),
        other.batches.create(
            input_file_id=done.input_file_id, endpoint="/v1/chat/completions", completion_window="24h"
        ),
    ]
    for asked in refused:
        with pytest.raises(openai.NotFoundError):
            await asked
    with pytest.raises(openai.AuthenticationError):
        await nobody.files.list()


async def test_batches_are_listed_page_by_page(
    start: Start, engine: FakeEngine, kept: dict[str, str], sdk: Connect
) -> None:
    client = sdk(await start(engine, batches=kept))
    made = [(await create(client, [asks("a")])).id for _ in range(5)]
    found = [batch.id async for batch in await client.batches.list(limit=2)]
    assert found == made[::-1]
    await asyncio.gather(*[over(client, await client.batches.retrieve(id_)) for id_ in made])


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"endpoint": "/v1/audio"}, "endpoint"),
        ({"completion_window": "soon"}, "completion_window"),
        ({"completion_window": "31d"}, "completion_window"),
        ({"metadata": {str(n): "" for n in range(17)}}, "metadata"),
        ({"metadata": {"k": "x" * 513}}, "metadata.k"),
        ({"output_expires_after": {"anchor": "created_at", "seconds": 60}}, "output_expires_after.seconds"),
        ({"endpoint": None}, "endpoint"),
    ],
)
async def test_a_batch_that_asks_for_nonsense_is_refused(
    start: Start, engine: FakeEngine, kept: dict[str, str], change: dict[str, Any], param: str, sdk: Connect
) -> None:
    client = sdk(await start(engine, batches=kept))
    with pytest.raises(openai.BadRequestError) as refused:
        await create(client, [asks("a")], **change)
    assert refused.value.param == param


async def test_output_files_expire_as_asked(
    start: Start, engine: FakeEngine, kept: dict[str, str], sdk: Connect
) -> None:
    client = sdk(await start(engine, batches=kept))
    policy = {"anchor": "created_at", "seconds": 3600}
    done = await over(client, await create(client, [asks("a")], output_expires_after=policy))
    assert done.output_file_id is not None
    file = await client.files.retrieve(done.output_file_id)
    assert file.expires_at == file.created_at + 3600


async def test_without_a_directory_there_are_no_batches_and_the_answer_says_why(
    start: Start, engine: FakeEngine, sdk: Connect
) -> None:
    with pytest.raises(openai.NotFoundError, match=r"batches\.directory"):
        await sdk(await start(engine)).files.list()
