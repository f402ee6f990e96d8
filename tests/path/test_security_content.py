"""What must not be told: prompts and answers in logs, receipts and the log of facts; keys anywhere."""

from __future__ import annotations

import io
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from gateway.config import loading
from gateway.config.settings import Logging
from gateway.telemetry import logs
from tests.path.conftest import Gateway, Start
from tests.path.fake_engine import FakeEngine, chunk, completion, cuts_after, replies, streams
from tests.path.secured import ADMIN, admin_key, by, key_of, keys
from tests.path.toolkit import Bench, Says, says

SECRETS = ("prompt-content", "system-content", "answer-content", "tool-content", "schema-content")
ENGINE_KEY = "engine-key-0123456789"
ASK: dict[str, Any] = {
    "model": "m",
    "messages": [
        {"role": "system", "content": "system-content"},
        {"role": "user", "content": "prompt-content"},
        {
            "role": "assistant",
            "tool_calls": [
                {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": "tool-content"}'}}
            ],
        },
        {"role": "tool", "tool_call_id": "c", "content": "tool-content"},
    ],
    "tools": [{"type": "function", "function": {"name": "f", "description": "schema-content", "parameters": {}}}],
}


@pytest.fixture(params=["text", "json"])
def log(request: pytest.FixtureRequest) -> Iterator[io.StringIO]:
    """All that the process writes, at the finest level."""
    root, stream = logging.getLogger(), io.StringIO()
    handlers, level = list(root.handlers), root.level
    logs.setup(Logging(level="debug", format=request.param), stream)
    yield stream
    root.handlers[:], root.level = handlers, level


async def everything(gateway: Gateway, engine: FakeEngine, **headers: str) -> list[str]:
    """Requests that end in each way that leaves a trace. Ids of their receipts."""
    failure = {"error": {"message": "answer-content is bad", "type": "invalid_request_error"}}
    ends: list[Any] = [
        replies(200, completion("answer-content")),
        streams([chunk(content="answer-content")]),
        cuts_after(chunk(content="answer-content")),
        replies(400, failure),
        replies(500, failure),
        replies(200, b"no JSON: answer-content"),
        says(Says("answer-content", (("call_search_1", "search", '{"q": "tool-content"}'),))),
        says(Says("answer-content")),
        says(Says("", (("call_fail_1", "fail", '{"q": "tool-content"}'),))),
        says(Says("answer-content")),
    ]
    engine.plays = ends
    receipts = []
    for _ in range(2 * len(ends)):
        for stream in (False, True):
            answer = await gateway.ask(ASK | {"stream": stream}, **headers)
            receipts.append(answer.headers["X-Turngate-Receipt"])
    wrong = [ASK | {"messages": "prompt-content"}, ASK | {"stream": "prompt-content"}, ["prompt-content"]]
    for body in (*wrong, ASK | {"messages": [{"role": "user", "content": {"prompt-content": 1}}]}):
        receipts.append((await gateway.ask(body, **headers)).headers["X-Turngate-Receipt"])
    return receipts


async def test_no_content_is_written_by_default(
    start: Start, engine: FakeEngine, log: io.StringIO, tmp_path: Path
) -> None:
    gateway = await start(
        engine,
        keys=keys("a"),
        tools=Bench().settings(),
        logging={"facts": str(tmp_path / "facts")},
        limits={"attempts": 1},
    )
    written = ""
    for receipt in await everything(gateway, engine, **by("a")):
        async with gateway.get(f"/v1/turngate/receipts/{receipt}", **by("a")) as response:
            assert response.status == 200
            written += await response.text()
    for view in ("sessions", "families", "live"):
        async with gateway.get(f"/v1/turngate/{view}", **by("a")) as response:
            written += await response.text()
    async with gateway.get("/metrics") as response:
        written += await response.text()
    gateway.app.parts.observer.close()
    written += (tmp_path / "facts").read_text() + log.getvalue()
    assert "answered" in log.getvalue()
    assert len((tmp_path / "facts").read_text()) > 1_000
    for word in (*SECRETS, key_of("a")):
        assert word not in written, word


async def test_keys_are_told_to_nobody(
    start: Start, engine: FakeEngine, log: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENGINE_KEY", ENGINE_KEY)
    await engine.start()
    engines = [{"url": f"vllm://127.0.0.1:{engine.port}", "name": "e1", "api_key": "env:ENGINE_KEY"}]
    gateway = await start(engine, keys=keys("a"), admin=admin_key(), engines=engines)
    seen = ""
    for key in (key_of("a"), ADMIN, key_of("wrong")):
        headers = {"Authorization": f"Bearer {key}"}
        for path in (
            "/health",
            "/metrics",
            "/ready",
            "/v1/models",
            "/v1/turngate/live",
            "/v1/turngate/limits",
            "/nothing",
        ):
            async with gateway.get(path, **headers) as response:
                seen += str(response.headers) + await response.text()
        for play in (
            replies(200, completion()),
            replies(401, {"error": {"message": "bad key"}}),
            replies(500, b""),
        ):
            engine.plays = [play] * 9
            answer = await gateway.ask(ASK, **headers)
            seen += str(answer.headers) + answer.body.decode()
    seen += log.getvalue() + gateway.app.banner()
    for key in (ENGINE_KEY, key_of("a"), key_of("wrong"), ADMIN):
        assert key not in seen
    sent = [value for call in engine.calls for value in call.headers.values()]
    assert f"Bearer {ENGINE_KEY}" in sent
    assert not [value for value in sent if key_of("a") in value]


@pytest.mark.parametrize("name", ["Authorization", "X-Api-Key", "x-api-key"])
async def test_a_client_s_key_reaches_no_engine(start: Start, engine: FakeEngine, name: str) -> None:
    gateway = await start(engine, keys=keys("a"))
    value = key_of("a") if name != "Authorization" else f"bearer  {key_of('a')}"
    async with gateway.client.post(
        gateway.url("/v1/chat/completions"), json=ASK, headers={name: value}
    ) as response:
        assert response.status == 200
    assert key_of("a") not in str(dict(engine.calls[0].headers)) + engine.calls[0].path


async def test_an_operator_s_account_at_an_engine_is_not_shown_to_clients(
    start: Start, engine: FakeEngine
) -> None:
    account = {
        "x-ratelimit-remaining-tokens": "7",
        "openai-organization": "org",
        "Set-Cookie": "a=b",
        "X-Other": "y",
    }
    engine.plays = [replies(200, completion(), **account)]
    gateway = await start(engine, keys=keys("a", limits={"tokens": 99_999, "window_s": 1e9}))
    headers = (await gateway.ask(ASK, **by("a"))).headers
    assert headers["X-Other"] == "y"
    assert headers.getall("x-ratelimit-remaining-tokens") != ["7"]
    assert len(headers.getall("x-ratelimit-remaining-tokens")) == 1
    assert not {"openai-organization", "Set-Cookie"} & set(headers)


async def test_an_engine_s_401_is_not_taken_for_the_client_s(start: Start, engine: FakeEngine) -> None:
    engine.plays = [replies(401, {"error": {"message": "bad key"}}, **{"WWW-Authenticate": "Bearer"})] * 9
    gateway = await start(engine, keys=keys("a"))
    answer = await gateway.ask(ASK, **by("a"))
    assert answer.status == 502
    assert "WWW-Authenticate" not in answer.headers


async def test_a_failure_of_the_gateway_itself_tells_the_client_nothing(
    start: Start, engine: FakeEngine, log: io.StringIO
) -> None:
    gateway = await start(engine, keys=keys("a"))
    gateway.app.parts.observer.receipt_headers = None  # type: ignore[method-assign,assignment]
    answer = await gateway.ask(ASK, **by("a"))
    assert answer.status == 500
    assert orjson.loads(answer.body)["error"]["message"] == "The gateway failed. Its log says why."
    assert "Traceback" in log.getvalue()
    for word in (*SECRETS, key_of("a")):
        assert word not in log.getvalue()


def test_the_dumped_configuration_holds_no_secret(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TEAM_KEY", "very-secret")
    file = tmp_path / "c.yaml"
    file.write_text(
        "keys: [{key: env:TEAM_KEY}]\nadmin: {key: env:TEAM_KEY}\nidentity: {secret: env:TEAM_KEY}\n"
        "engines: [{url: vllm://h:1, api_key: env:TEAM_KEY}]\n"
    )
    assert "very-secret" not in loading.dump(loading.load(file=file, environ={"TEAM_KEY": "very-secret"}))


@pytest.mark.parametrize("style", ["text", "json"])
@pytest.mark.parametrize(
    "text", ["a\nb forged=1", "a\r\nb", "\x1b[2Jx", "a\x9b1mb", "a\u2028b", "a\x7fb", 'a"b c=d']
)
def test_what_a_client_says_stays_in_its_field_of_one_line(style: Any, text: str) -> None:
    stream = io.StringIO()
    formatter = logs.JsonLines() if style == "json" else logs.TextLines()
    record = logging.LogRecord("x", logging.INFO, "", 0, "request of %s", (text,), None)
    record.fields = {"request_id": text, "list": [text]}
    line = formatter.format(record)
    print(line, file=stream)
    assert len(line.splitlines()) == 1
    assert not re.search(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]", line)
    if style == "json":
        assert orjson.loads(line)["request_id"] == text
