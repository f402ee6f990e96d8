"""An engine that misbehaves says nothing in the gateway's name, and nothing that a client's browser obeys."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from gateway.engines import doctor
from tests.path.conftest import Start
from tests.path.fake_engine import DONE, Call, FakeEngine, chunk, completion, error, finish, replies
from tests.path.faults import ENGINE, counted, fault, faults, outcomes

ASK: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
FORGED = {
    "X-Turngate-Receipt": "forged",
    "x-turngate-session": "forged",
    "Access-Control-Allow-Origin": "*",
    "Access-Control-Allow-Credentials": "true",
    "Location": "http://evil.example",
    "Refresh": "0; url=http://evil.example",
    "Retry-After": "9" * 20,
    "Retry-After-Ms": "9" * 20,
    "Content-Encoding": "identity",
    "Clear-Site-Data": "*",
    "Strict-Transport-Security": "max-age=1",
    "Alt-Svc": 'h3=":443"',
}
DAY_S = 86_400


async def forged_stream(call: Call) -> Any:
    await call.start(headers=FORGED)
    for part in (chunk(content="hello"), finish(), DONE):
        await call.write(part)
    return await call.end()


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/embeddings"])
@pytest.mark.parametrize("stream", [False, True])
async def test_what_an_engine_says_in_the_gateway_s_name_or_to_browsers_is_not_relayed(
    start: Start, engine: FakeEngine, path: str, stream: bool
) -> None:
    is_stream = stream and path != "/v1/embeddings"
    engine.plays = [forged_stream if is_stream else replies(200, completion(), **FORGED, X_Engine="kept")]
    gateway = await start(engine)
    answer = await gateway.ask(ASK | {"input": "hi", "stream": is_stream}, path)
    assert answer.status == 200
    receipts = answer.headers.getall("X-Turngate-Receipt")
    assert (len(receipts), "forged" in receipts) == (1, False)
    assert "forged" not in answer.headers.getall("X-Turngate-Session", [])
    assert {name.lower() for name in FORGED if not name.lower().startswith("x-turngate")}.isdisjoint(
        name.lower() for name in answer.headers
    )
    assert is_stream or answer.headers["X_Engine"] == "kept"


@fault(
    ENGINE,
    "redirects, packs its answer, or gives a status above 599",
    "another replica, unseen; none left: 502",
    faults("no_answer"),
)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/embeddings"])
@pytest.mark.parametrize(
    ("status", "told", "headers"),
    [
        (302, completion(), {"Location": "http://evil.example"}),
        (200, completion(), {"Content-Encoding": "gzip"}),
        (999, error("no", 999), {}),
        (600, error("no", 600), {}),
    ],
)
async def test_a_status_or_a_coding_that_clients_cannot_read_is_a_fault_of_the_engine(
    start: Start, engine: FakeEngine, path: str, status: int, told: dict[str, Any], headers: dict[str, str]
) -> None:
    engine.plays = [replies(status, told, **headers)]
    gateway = await start(engine)
    answer = await gateway.ask(ASK | {"input": "hi"}, path)
    assert answer.status == 502
    assert orjson.loads(answer.body)["error"]["type"] == "server_error"
    assert "Location" not in answer.headers
    assert await counted(gateway, faults("no_answer")) == 1


@fault(ENGINE, "asks for a pause of years", "`Retry-After` is a day at most", outcomes("engine_refused"))
async def test_a_pause_that_an_engine_asks_for_is_bounded(start: Start, engine: FakeEngine) -> None:
    engine.plays = [replies(429, error("full", 429), **{"Retry-After": "1" + "0" * 20})]
    answer = await (await start(engine)).ask(ASK)
    assert (answer.status, int(answer.headers["Retry-After"])) == (429, DAY_S)


async def test_a_name_that_an_engine_gives_moves_no_cursor(start: Start) -> None:
    engine = FakeEngine(model="m\x1b]0;owned\x07\x9b2J\nforged: line")
    gateway = await start(engine)
    for text in (gateway.app.banner(), doctor.as_text(gateway.app.parts.monitor.engines)):
        assert "owned" in text
        assert not {"\x1b", "\x07", "\x9b"} & set(text)
        assert not any(line.startswith("forged") for line in text.splitlines())
