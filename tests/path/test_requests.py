"""What the edge answers itself, and what it changes on the way to an engine: models, bounds, refused fields."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.path.conftest import Gateway, Start
from tests.path.fake_engine import FakeEngine, completion, error, replies

ASK = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
TOOL = {"type": "function", "function": {"name": "ls"}}
TOO_LARGE = (
    "This model's maximum context length is 32768 tokens. However, you requested 30000 output tokens and your"
    " prompt contains {} input tokens, for a total of too many tokens."
)


async def sent(gateway: Gateway, body: dict[str, Any], **headers: str) -> dict[str, Any]:
    """The body that the engine got."""
    answer = await gateway.ask(body, **headers)
    assert answer.status == 200, answer.body
    got: dict[str, Any] = gateway.engines[0].calls[-1].body
    return got


async def notes(gateway: Gateway, headers: dict[str, str]) -> list[str]:
    async with gateway.get("/v1/turngate/receipts/" + headers["X-Turngate-Receipt"]) as response:
        return list((await response.json()).get("notes", []))


@pytest.mark.parametrize(
    ("raw", "status", "said"),
    [
        (b'{"model": "m",\n "messages": [}', 400, "line 2, column 15"),
        (b"[1]", 400, "must be a JSON object"),
        (b'{"model": "m", "messages": "hi"}', 400, "messages"),
        (b'{"model": "m", "messages": [], "pad": "' + b"x" * 2000 + b'"}', 413, "limits.body_bytes"),
    ],
    ids=["not json", "not an object", "wrong type", "too large"],
)
async def test_a_request_that_cannot_be_read_is_refused_with_its_fault(
    start: Start, engine: FakeEngine, raw: bytes, status: int, said: str
) -> None:
    gateway = await start(engine, limits={"body_bytes": 1000})
    for path, envelope in (("/v1/chat/completions", "error"), ("/v1/messages", "type")):
        async with gateway.client.post(gateway.url(path), data=raw) as response:
            body = await response.json()
        assert response.status == status
        assert said in body["error"]["message"]
        assert envelope in body
    assert not engine.calls


async def test_paths_and_methods_that_are_not_there_are_said_to_be_so(start: Start, engine: FakeEngine) -> None:
    gateway = await start(engine)
    async with gateway.get("/v1/chat/completions") as response:
        assert (response.status, response.headers["Allow"]) == (405, "POST")
    async with gateway.get("/v1/nothing") as response:
        assert response.status == 404
        assert "error" in await response.json()
    async with gateway.post(ASK, "/chat/completions") as response:
        assert response.status == 404
        assert "/v1/chat/completions" in (await response.json())["error"]["message"]
    async with gateway.post(ASK, "/v1/v1/messages") as response:
        assert "Did you mean /v1/messages?" in (await response.json())["error"]["message"]
    async with gateway.get("/") as response:
        assert "/openapi.json" in (await response.json())["error"]["message"]


async def test_a_refusal_is_logged_with_its_status_and_field_and_none_of_its_words(
    start: Start, engine: FakeEngine
) -> None:
    gateway = await start(engine)
    answer = await gateway.ask({"model": "m", "messages": "hush"})
    async with gateway.get("/v1/turngate/receipts/" + answer.headers["X-Turngate-Receipt"]) as response:
        told = await response.json()
    assert (told["outcome"], told["status"], told["param"]) == ("bad_request", 400, "messages")
    assert "hush" not in str(told)


async def test_a_websocket_upgrade_of_responses_is_426(start: Start, engine: FakeEngine) -> None:
    gateway = await start(engine)
    async with gateway.get("/v1/responses", Upgrade="websocket", Connection="Upgrade") as response:
        assert response.status == 426


async def test_keys_name_tenants_and_the_wrong_one_is_401(
    start: Start, engine: FakeEngine, tmp_path: Path
) -> None:
    for name in "ab":
        (tmp_path / name).write_text(f"key-{name}")
    keys = [{"key": f"file:{tmp_path / name}", "tenant": name} for name in "ab"]
    gateway = await start(engine, keys=keys)
    for headers in ({}, {"Authorization": "Bearer key-c"}, {"Authorization": "key-a"}):
        answer = await gateway.ask(ASK, **headers)
        assert answer.status == 401
        assert orjson.loads(answer.body)["error"]["type"] == "authentication_error"
    answer = await gateway.ask(ASK, Authorization="Bearer key-a")
    assert answer.status == 200
    assert (await gateway.ask(ASK, "/v1/chat/completions", X_Api_Key="key-b")).status == 200
    receipt = "/v1/turngate/receipts/" + answer.headers["X-Turngate-Receipt"]
    for key, status in (("key-a", 200), ("key-b", 404), ("", 401)):
        async with gateway.get(receipt, Authorization=f"Bearer {key}") as response:
            assert response.status == status
    async with gateway.get("/v1/models") as response:
        assert response.status == 401
    async with gateway.get("/health") as response:
        assert response.status == 200


async def test_a_single_served_model_answers_to_every_name(start: Start, engine: FakeEngine) -> None:
    gateway = await start(engine)
    assert (await sent(gateway, ASK | {"model": "gpt-5"}))["model"] == "m"


async def test_a_name_that_nobody_serves_is_404_where_only_known_names_are_answered(
    start: Start, engine: FakeEngine
) -> None:
    gateway = await start(engine, models={"answer_any_model": False, "aliases": {"gpt-*": "m"}})
    answer = await gateway.ask(ASK | {"model": "other"})
    assert answer.status == 404
    assert orjson.loads(answer.body)["error"]["code"] == "model_not_found"
    assert (await sent(gateway, ASK | {"model": "gpt-5.4-nano"}))["model"] == "m"


async def test_models_lists_what_is_served_and_the_aliases(start: Start, engine: FakeEngine) -> None:
    gateway = await start(engine, models={"aliases": {"fast": "m", "gpt-*": "m"}})
    async with gateway.get("/v1/models") as response:
        rows = (await response.json())["data"]
    assert [row["id"] for row in rows] == ["m", "fast"]
    assert {row["max_model_len"] for row in rows} == {32_768}
    async with gateway.get("/v1/models/gpt-5") as response:
        assert (await response.json())["root"] == "m"


@pytest.mark.parametrize("path", ["/v1/chat/completions/", "/v1//chat/completions", "//v1/chat/completions"])
async def test_a_path_with_extra_slashes_leads_to_the_one_without(
    start: Start, engine: FakeEngine, path: str
) -> None:
    gateway = await start(engine)
    url = gateway.url("") + path + "?a=b"
    async with gateway.client.post(url, json=ASK, allow_redirects=False) as response:
        assert (response.status, response.headers["Location"]) == (307, "/v1/chat/completions?a=b")
        assert "/v1/chat/completions" in (await response.json())["error"]["message"]
    async with gateway.client.post(url, json=ASK) as response:
        assert response.status == 200
    async with gateway.client.post(gateway.url("//evil.example/v1"), json=ASK, allow_redirects=False) as response:
        assert response.status == 404


async def test_a_side_request_goes_to_the_side_model(start: Start) -> None:
    big, small = FakeEngine("big"), FakeEngine("small")
    gateway = await start(big, small, models={"side_model": "small"})
    tool = {"type": "function", "function": {"name": "f", "parameters": {}}}
    session = {"X_Session_Affinity": "ses_1", "X_Session_Id": "ses_1"}
    await gateway.ask({"model": "big", "messages": ASK["messages"], "tools": [tool]}, **session)
    await gateway.ask({"model": "big", "messages": [{"role": "user", "content": "title"}]}, **session)
    assert [call.body["model"] for call in big.calls] == ["big"]
    assert [call.body["model"] for call in small.calls] == ["small"]


@pytest.mark.parametrize("side_model", ["small", "never served"])
async def test_a_side_request_goes_to_the_requested_model_while_the_side_model_is_not_served(
    start: Start, side_model: str
) -> None:
    big, also, small = FakeEngine("big"), FakeEngine("also"), FakeEngine("small")
    gateway = await start(big, also, small, models={"side_model": side_model})
    await small.stop()
    down = next(engine for engine in gateway.app.parts.monitor.engines if engine.report.models == ("small",))
    gateway.app.parts.monitor.failed(down)
    tool = {"type": "function", "function": {"name": "f", "parameters": {}}}
    session = {"X_Session_Affinity": "ses_1", "X_Session_Id": "ses_1"}
    await gateway.ask({"model": "big", "messages": ASK["messages"], "tools": [tool]}, **session)
    title = {"model": "big", "messages": [{"role": "user", "content": "title"}]}
    answer = await gateway.ask(title, **session)
    assert answer.status == 200
    assert [call.body["model"] for call in big.calls] == ["big", "big"]
    assert any("side model" in note for note in await notes(gateway, answer.headers))


async def test_a_bound_that_cannot_fit_is_left_to_the_engine_before_it_is_asked(
    start: Start, engine: FakeEngine
) -> None:
    gateway = await start(engine)
    answer = await gateway.ask(ASK | {"max_tokens": 32_768})
    assert answer.status == 200
    assert "max_tokens" not in engine.calls[0].body
    assert "max_tokens" in (await notes(gateway, answer.headers))[0]
    assert (await sent(gateway, ASK | {"max_tokens": 8_192}))["max_tokens"] == 8_192


@pytest.mark.parametrize(
    ("counted", "path", "body", "asked_again"),
    [
        ("3000", "/v1/chat/completions", ASK, 29_768),
        ("at least 2769", "/v1/chat/completions", ASK, None),
        ("at least 2769", "/v1/completions", {"model": "m", "prompt": "x" * 9_000}, 29_760),
    ],
)
async def test_a_bound_that_the_engine_finds_too_large_is_lowered_once(
    start: Start, engine: FakeEngine, counted: str, path: str, body: dict[str, Any], asked_again: int | None
) -> None:
    refusal = error(TOO_LARGE.format(counted), 400, "BadRequestError")
    engine.plays = [replies(400, refusal), replies(200, completion())]
    gateway = await start(engine)
    answer = await gateway.ask(body | {"max_tokens": 30_000}, path)
    assert answer.status == 200
    assert engine.calls[1].body.get("max_tokens") == asked_again
    assert "max_tokens" in (await notes(gateway, answer.headers))[0]


async def test_a_prompt_that_is_too_long_is_the_clients_to_shorten(start: Start, engine: FakeEngine) -> None:
    refusal = error(TOO_LARGE.format(32_700), 400, "BadRequestError")
    engine.plays = [replies(400, refusal)]
    gateway = await start(engine)
    answer = await gateway.ask(ASK | {"max_tokens": 30_000})
    assert (answer.status, answer.body) == (400, orjson.dumps(refusal))
    assert len(engine.calls) == 1


async def test_paths_that_no_engine_has_are_404_in_the_dialect_which_no_client_asks_again(start: Start) -> None:
    engine = FakeEngine(lacks=frozenset(["/v1/messages", "/v1/embeddings"]))
    gateway = await start(engine)
    messages = await gateway.ask(ASK | {"max_tokens": 9}, "/v1/messages")
    assert messages.status == 404
    assert orjson.loads(messages.body)["type"] == "error"
    assert b"/v1/messages" in messages.body
    embeddings = await gateway.ask({"model": "m", "input": "x"}, "/v1/embeddings")
    assert embeddings.status == 404
    assert orjson.loads(embeddings.body)["error"]["code"] == "unsupported_path"


async def test_calls_that_are_no_turns_pass_through_without_a_slot(start: Start, engine: FakeEngine) -> None:
    engine.plays = [replies(200, b'{ "tokens": [1] }'), replies(400, error("no", 400))]
    gateway = await start(engine)
    answer = await gateway.ask({"model": "gpt", "prompt": "x"}, "/tokenize")
    assert (answer.status, answer.body) == (200, b'{ "tokens": [1] }')
    assert engine.calls[0].body == {"model": "m", "prompt": "x"}
    assert (await gateway.ask({"model": "m", "tokens": [1]}, "/detokenize")).status == 400
    assert not gateway.app.parts.gate.view().sessions


async def test_a_plain_call_tries_another_engine(start: Start) -> None:
    first, second = FakeEngine(), FakeEngine()
    first.plays = second.plays = [replies(500, error("boom", 500)), replies(200, b'{"data":[]}')]
    gateway = await start(first, second)
    assert (await gateway.ask({"model": "m", "input": "x"}, "/v1/embeddings")).body == b'{"data":[]}'


async def test_a_stateful_request_goes_to_the_replica_that_holds_its_predecessor(start: Start) -> None:
    first, second = FakeEngine(), FakeEngine()
    gateway = await start(first, second, policy={"placement": "benchmarks.simulation.placement:round_robin"})
    stored = {"id": "resp_1", "object": "response", "status": "completed", "output": [], "model": "m"}
    first.plays = second.plays = [replies(200, stored)] * 6
    answer = await gateway.ask({"model": "m", "input": "hi"}, "/v1/responses")
    home = answer.headers["X-Turngate-Engine"]
    for n in range(3):
        body = {"model": "m", "input": f"and {n}", "previous_response_id": "resp_1"}
        assert (await gateway.ask(body, "/v1/responses")).headers["X-Turngate-Engine"] == home
    engine = first if home == "e1" else second
    async with gateway.get("/v1/responses/resp_1") as response:
        assert (response.status, engine.calls[-1].path) == (200, "/v1/responses/resp_1")
    async with gateway.post({}, "/v1/responses/resp_1/cancel") as response:
        assert (response.status, engine.calls[-1].path) == (200, "/v1/responses/resp_1/cancel")
    async with gateway.get("/v1/responses/resp_2") as response:
        assert response.status == 404


async def test_what_an_engine_is_known_to_refuse_is_said_in_its_words_and_noted(
    start: Start, engine: FakeEngine
) -> None:
    engine.plays = [replies(200, {"object": "response", "status": "completed", "output": []})]
    gateway = await start(engine)
    turn = {"role": "assistant", "content": [{"type": "output_text", "text": "a"}]}
    answer = await gateway.ask({"model": "m", "input": [turn]}, "/v1/responses")
    assert engine.calls[0].body["input"] == [{"type": "message", **turn}]
    assert "input" in (await notes(gateway, answer.headers))[0]


async def test_a_field_that_the_engine_refuses_is_sent_once_and_never_again(start: Start) -> None:
    engine = FakeEngine()
    gateway = await start(engine)
    running = gateway.app.parts.monitor.engines[0]
    running.abilities.version = "0.10.0"  # before the priority header: the hint goes into the body
    refusal = error("body.priority: extra fields not permitted", 400, "BadRequestError")
    engine.plays = [replies(400, refusal)]
    assert (await gateway.ask(ASK)).status == 200
    assert "priority" in engine.calls[0].body
    assert "priority" not in engine.calls[1].body
    assert "priority" not in await sent(gateway, ASK | {"messages": [{"role": "user", "content": "next"}]})
    assert len(engine.calls) == 3


async def test_readiness_follows_the_engines_and_liveness_does_not(start: Start, engine: FakeEngine) -> None:
    gateway = await start(engine)
    async with gateway.get("/ready") as response:
        assert response.status == 200
    gateway.app.parts.monitor.failed(gateway.app.parts.monitor.engines[0])
    async with gateway.get("/ready") as response:
        assert response.status == 503
    async with gateway.get("/health") as response:
        about = (await response.json())["engines"][0]
    assert (response.status, about["name"], about["is_up"]) == (200, "e1", False)


async def test_sessions_and_families_are_shown_to_whoever_may_use_them(start: Start, engine: FakeEngine) -> None:
    gateway = await start(engine)
    answer = await gateway.ask(ASK | {"tools": [TOOL]}, x_turngate_session="mine")
    async with gateway.get("/v1/turngate/sessions") as response:
        (session,) = (await response.json())["sessions"]
    assert session["session"] == answer.headers["X-Turngate-Session"]
    assert (session["kind"], session["turns"], session["state"]) == ("agent", 1, "idle")
    assert (session["source"], session["replica"]) == ("x-turngate-session", "e1")
    async with gateway.get("/v1/turngate/families") as response:
        (family,) = (await response.json())["families"]
    assert (family["family"], family["turns"]) == (session["family"], 1)
    assert (family["sessions"], family["states"]) == ({"agent": 1}, {"idle": 1})
