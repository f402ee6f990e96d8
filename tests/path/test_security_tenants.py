"""Tenants share engines and nothing else: two of them send the same things, and neither learns of the other."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import openai
import orjson
import pytest

from tests.path.batches import Connect, asks, create
from tests.path.conftest import Answer, Gateway, Start
from tests.path.fake_engine import FakeEngine, replies
from tests.path.faults import metrics_of
from tests.path.secured import ADMIN, admin_key, by, key_of, keys
from tests.path.toolkit import Bench, Says, says

ASK: dict[str, Any] = {
    "model": "m",
    "messages": [{"role": "system", "content": "x" * 2_000}, {"role": "user", "content": "the same"}],
    "tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}],
}
OWN = {"X-Turngate-Session": "session-1", "X-Turngate-Parent": "parent-1"}
VIEWS = ("sessions", "families", "live", "limits")


async def view(gateway: Gateway, path: str, key: str) -> Any:
    async with gateway.get(path, Authorization=f"Bearer {key}") as response:
        return response.status, await response.text()


async def both(gateway: Gateway, **headers: str) -> list[Answer]:
    """The same request of both tenants."""
    return [await gateway.ask(ASK, **headers, **by(tenant)) for tenant in "ab"]


@pytest.mark.parametrize("headers", [{}, OWN, {"prompt_cache_key": "k"}], ids=["chain", "own", "cache key"])
async def test_equal_requests_are_other_sessions_and_families(
    start: Start, engine: FakeEngine, headers: dict[str, str]
) -> None:
    gateway = await start(engine, keys=keys("a", "b"))
    first, second = await both(gateway, **headers)
    for name in ("X-Turngate-Session", "X-Turngate-Family", "X-Turngate-Receipt"):
        assert first.headers[name] != second.headers[name]


async def test_no_turn_goes_on_in_another_tenant_s_session(start: Start, engine: FakeEngine) -> None:
    gateway = await start(engine, keys=keys("a", "b"))
    begun = await gateway.ask(ASK, **OWN, **by("a"))
    more = ASK | {"messages": [*ASK["messages"], {"role": "assistant", "content": "hello"}, ASK["messages"][1]]}
    taken = await gateway.ask(more, **OWN, **by("b"))
    kept = await gateway.ask(more, **OWN, **by("a"))
    assert kept.headers["X-Turngate-Session"] == begun.headers["X-Turngate-Session"]
    assert taken.headers["X-Turngate-Session"] != begun.headers["X-Turngate-Session"]
    named = await gateway.ask(ASK, **by("b"), X_Turngate_Session=begun.headers["X-Turngate-Session"])
    assert named.headers["X-Turngate-Session"] != begun.headers["X-Turngate-Session"]


async def test_every_view_shows_its_own_tenant_only(start: Start, engine: FakeEngine) -> None:
    gateway = await start(engine, keys=keys("a", "b", limits={"requests": 99}), admin=admin_key())
    answers = await both(gateway, **OWN)
    foreign = {"a": answers[1], "b": answers[0]}
    for tenant, other in foreign.items():
        for name in VIEWS:
            status, text = await view(gateway, f"/v1/turngate/{name}", key_of(tenant))
            assert status == 200
            assert other.headers["X-Turngate-Session"] not in text
            assert other.headers["X-Turngate-Family"] not in text
            assert f"key-{'ab'.replace(tenant, '')}" not in text
        status, text = await view(
            gateway, f"/v1/turngate/receipts/{other.headers['X-Turngate-Receipt']}", key_of(tenant)
        )
        assert status == 404
    for name in VIEWS:
        status, text = await view(gateway, f"/v1/turngate/{name}", ADMIN)
        assert status == 200
        if name in ("sessions", "live"):
            assert all(answer.headers["X-Turngate-Session"] in text for answer in answers)
    for answer in answers:
        assert (await view(gateway, f"/v1/turngate/receipts/{answer.headers['X-Turngate-Receipt']}", ADMIN))[
            0
        ] == 200


@pytest.mark.parametrize("key", ["", "wrong", "None"])
@pytest.mark.parametrize("name", [*VIEWS, "tools", "receipts/x"])
async def test_nobody_without_a_key_sees_a_view(start: Start, engine: FakeEngine, name: str, key: str) -> None:
    gateway = await start(engine, keys=keys("a"))
    assert (await view(gateway, f"/v1/turngate/{name}", key))[0] == 401


async def test_a_client_cannot_name_its_tenant_or_class(start: Start, engine: FakeEngine) -> None:
    gateway = await start(engine, keys=keys("a", "b"))
    named = {"X-Turngate-Tenant": "b", "X-Turngate-Urgency": "99", "X-Turngate-Key": "key-b"}
    answer = await gateway.ask(ASK, **named, **by("a"))
    _, text = await view(gateway, f"/v1/turngate/receipts/{answer.headers['X-Turngate-Receipt']}", key_of("a"))
    assert orjson.loads(text)["tenant"] == "a"
    assert not [name for name in engine.calls[0].headers if name.lower().startswith("x-turngate-")]


async def test_an_answer_that_is_stored_is_its_own_tenant_s(start: Start, engine: FakeEngine) -> None:
    stored = {"id": "resp_1", "object": "response", "status": "completed", "output": [], "model": "m"}
    engine.plays = [replies(200, stored)] * 5
    gateway = await start(engine, keys=keys("a", "b"))
    ask = {"model": "m", "input": "hi"}
    assert (await gateway.ask(ask, "/v1/responses", **by("a"))).status == 200
    follow = ask | {"previous_response_id": "resp_1"}
    assert (await gateway.ask(follow, "/v1/responses", **by("b"))).status == 404
    assert (await gateway.ask({}, "/v1/responses/resp_1/cancel", **by("b"))).status == 404
    assert (await view(gateway, "/v1/responses/resp_1", key_of("b")))[0] == 404
    assert len(engine.calls) == 1
    assert (await gateway.ask(follow, "/v1/responses", **by("a"))).status == 200


async def test_what_was_hidden_from_one_tenant_is_put_back_for_no_other(start: Start, engine: FakeEngine) -> None:
    found = Says("I look.", (("call_search_1", "search", '{"q": "x"}'),))
    engine.plays = [says(found), says(Says("It is there."))]
    bench = Bench()
    gateway = await start(engine, tools=bench.settings(), keys=keys("a", "b"))
    ask = {"model": "m", "messages": [{"role": "user", "content": "find it"}]}
    answer = orjson.loads((await gateway.ask(ask, **OWN, **by("a"))).body)["choices"][0]["message"]
    more = {"model": "m", "messages": [*ask["messages"], answer, {"role": "user", "content": "and?"}]}
    for tenant, restored in (("b", False), ("a", True)):
        assert (await gateway.ask(more, **OWN, **by(tenant))).status == 200
        sent = orjson.dumps(engine.calls[-1].body["messages"])
        assert (b"search found x" in sent) is restored


async def test_files_and_batches_are_their_own_tenant_s(
    start: Start, engine: FakeEngine, sdk: Connect, tmp_path: Path
) -> None:
    gateway = await start(engine, keys=keys("a", "b"), batches={"directory": str(tmp_path)})
    owner, other = sdk(gateway, key_of("a")), sdk(gateway, key_of("b"))
    batch = await create(owner, [asks("line")])
    for ask in (
        lambda: other.batches.retrieve(batch.id),
        lambda: other.batches.cancel(batch.id),
        lambda: other.files.retrieve(batch.input_file_id),
        lambda: other.files.content(batch.input_file_id),
        lambda: other.files.delete(batch.input_file_id),
    ):
        with pytest.raises(openai.NotFoundError):
            await ask()
    with pytest.raises(openai.NotFoundError):
        await other.batches.create(
            input_file_id=batch.input_file_id, endpoint="/v1/chat/completions", completion_window="24h"
        )
    assert [file async for file in other.files.list()] == []
    assert [one async for one in other.batches.list()] == []


async def test_metrics_name_tenants_and_models_and_no_key_session_or_word_of_a_client(
    start: Start, engine: FakeEngine
) -> None:
    gateway = await start(engine, keys=keys("a", "tenant-b", limits={"requests": 9}), tools=Bench().settings())
    answer = await gateway.ask(ASK | {"model": "strange-model", "user": "strange-user"}, **OWN, **by("tenant-b"))
    await gateway.ask(ASK, "/v1/strange-path", **by("a"))
    await gateway.ask(ASK, Authorization="Bearer strange-key")
    page = metrics_of(gateway)
    assert re.findall(r"turngate_prompt_tokens_total{(.*)}", page) == [f'model="{engine.model}",tenant="tenant-b"']
    for word in ("key-", "strange", "session-1", answer.headers["X-Turngate-Session"]):
        assert word not in page


async def test_what_clients_choose_makes_no_new_series(start: Start, engine: FakeEngine) -> None:
    gateway = await start(engine, keys=keys("a"), tools=Bench().settings())

    def series() -> int:
        return sum(not line.startswith("#") for line in metrics_of(gateway).splitlines())

    async def strange(n: int) -> None:
        calls = ((f"call_{n}", f"made_up_{n}", "{}"),)
        engine.plays = [says(Says(calls=calls)), says(Says("x"))]
        body = ASK | {"model": f"m{n}", "user": f"u{n}", "messages": [{"role": "user", "content": f"{n}"}]}
        await gateway.ask(body, **by("a"), X_Turngate_Session=f"s{n}", X_Request_Id=f"r{n}")
        await gateway.ask(body, f"/v1/p{n}", **by("a"))

    await strange(0)
    before = series()
    for n in range(1, 6):
        await strange(n)
    assert series() == before


async def test_a_client_s_id_is_whole_in_its_tenant_s_views_hashed_for_the_operator_and_in_no_other_view(
    start: Start, engine: FakeEngine
) -> None:
    gateway = await start(engine, keys=keys("a", "b"), admin=admin_key())
    answers = {
        tenant: await gateway.ask(ASK, **OWN, **by(tenant), User_Agent=f"{tenant}-agent/1") for tenant in "ab"
    }
    hashed = {tenant: answer.headers["X-Turngate-Session"] for tenant, answer in answers.items()}
    for tenant, other in ("ab", "ba"):
        for path in ("sessions", "live"):
            (row,) = orjson.loads((await view(gateway, f"/v1/turngate/{path}", key_of(tenant)))[1])["sessions"]
            assert (row["client_session"], row["agent"]) == ("session-1", f"{tenant}-agent")
        receipt = f"/v1/turngate/receipts/{answers[tenant].headers['X-Turngate-Receipt']}"
        assert orjson.loads((await view(gateway, receipt, key_of(tenant)))[1])["client_session"] == "session-1"
        assert (await view(gateway, receipt, key_of(other)))[0] == 404
        assert "session-1" not in (await view(gateway, receipt, ADMIN))[1]
    for path in ("sessions", "live", "families"):
        text = (await view(gateway, f"/v1/turngate/{path}", ADMIN))[1]
        assert "session-1" not in text
        assert path == "families" or all(one in text for one in hashed.values())
