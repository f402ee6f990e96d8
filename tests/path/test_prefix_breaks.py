"""Prefix breaks through a whole gateway and its embedded engine: found, told, and gone once they are taken out."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import aiohttp
import pytest

from gateway.app import App
from gateway.cli import doctor, main
from gateway.config.settings import Settings

RULES = "\n".join(f"Rule {n}: do {n * 7919} things in order and say so." for n in range(80))
RUNS = [f"{n * 7919:08x}{n:04x}" for n in range(1, 7)]

Start = Callable[..., Awaitable["Client"]]


class Client:
    def __init__(self, app: App, http: aiohttp.ClientSession) -> None:
        self.url = f"http://127.0.0.1:{app.port}"
        self._http = http

    async def get(self, path: str) -> Any:
        async with self._http.get(self.url + path) as response:
            return await response.json() if path != "/metrics" else await response.text()

    async def ask(self, *messages: dict[str, str]) -> tuple[int, Any]:
        """Cached tokens, and the receipt."""
        body = {"model": "any", "messages": messages, "max_tokens": 8}
        async with self._http.post(self.url + "/v1/chat/completions", json=body) as response:
            usage = (await response.json())["usage"]
            receipt = await self.get(f"/v1/turngate/receipts/{response.headers['X-Turngate-Receipt']}")
        return usage["prompt_tokens_details"]["cached_tokens"], receipt


def first(run: str) -> list[dict[str, str]]:
    system = f"Working directory: /srv/runs/{run}/repo\n{RULES}"
    return [{"role": "system", "content": system}, {"role": "user", "content": f"Task {run}: fix it."}]


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    async with AsyncExitStack() as running:

        async def start(**identity: Any) -> Client:
            tree = {"listen": {"port": 0}, "engines": ["embedded"], "embedded": {"speed": 1000}}
            app = App(Settings.model_validate(tree | {"identity": identity}))
            running.push_async_callback(app.stop)
            await app.start()
            return Client(app, await running.enter_async_context(aiohttp.ClientSession()))

        yield start


async def test_breaks_are_reported_and_by_default_nothing_is_changed(start: Start) -> None:
    client = await start()
    told = [await client.ask(*first(run)) for run in RUNS]
    assert max(cached for cached, _ in told) < 32
    assert not any("volatile" in note for _, receipt in told for note in receipt.get("notes", ()))
    (row,) = [r for r in (await client.get("/v1/turngate/families"))["families"] if "prefix_breaks" in r]
    found = row["prefix_breaks"]
    assert (found["sessions"], found["breaks"]) == (len(RUNS), len(RUNS) - 1)
    assert (found["last"]["kind"], found["last"]["at_chars"], found["last"]["spans"]) == ("path", 0, 1)
    prompt_tokens = told[-1][1]["prompt_tokens"]
    assert 0.9 * prompt_tokens < found["wasted_tokens_per_break"] < prompt_tokens
    page = await client.get("/metrics")
    assert 'turngate_prefix_breaks_total{kind="path"} 5.0' in page


@pytest.mark.parametrize(("mode", "verb"), [("move", "moved"), ("strip", "stripped")])
async def test_patterns_let_the_second_sibling_find_the_first_ones_prefix(
    mode: str, verb: str, start: Start
) -> None:
    client = await start(volatile_spans=mode, volatile_patterns=["^Working directory: .*\n"])
    told = [await client.ask(*first(run)) for run in RUNS[:2]]
    cached, receipt = told[1]
    assert cached > 0.9 * receipt["prompt_tokens"]
    assert any(verb in note for note in receipt["notes"])
    assert told[0][1]["family"] == told[1][1]["family"]


async def test_what_breaks_often_is_learned_and_a_sessions_turns_stay_one_session(start: Start) -> None:
    client = await start(volatile_spans="move")
    begun = [await client.ask(*first(run)) for run in RUNS]
    cached, receipt = begun[-1]
    assert cached > 0.9 * receipt["prompt_tokens"]
    for run, (_, earlier) in zip(RUNS, begun, strict=True):
        turn = [*first(run), {"role": "assistant", "content": "Done."}, {"role": "user", "content": "Thanks."}]
        cached, receipt = await client.ask(*turn)
        assert (receipt["session"], receipt["turn"]) == (earlier["session"], 2)
        assert cached > 0.9 * earlier["prompt_tokens"]


async def test_a_clock_in_the_system_prompt_breaks_each_later_turn(start: Start) -> None:
    client = await start()
    history, sessions = [{"role": "user", "content": "Fix it."}], set()
    for turn in range(4):
        system = {"role": "system", "content": f"It is 12:0{turn}.\n{RULES}"}
        cached, receipt = await client.ask(system, *history)
        assert cached < 32
        sessions.add(receipt["session"])
        answer = {"role": "assistant", "content": f"I have done step {turn}."}
        history += [answer, {"role": "user", "content": f"Go on with {turn + 1}."}]
    assert len(sessions) == 1
    (row,) = (await client.get("/v1/turngate/families"))["families"]
    assert (row["prefix_breaks"]["turns"], row["prefix_breaks"]["last"]["kind"]) == (3, "date")
    assert 'turngate_prefix_breaks_total{kind="date"} 3.0' in await client.get("/metrics")


async def test_doctor_tells_them_of_a_running_gateway(start: Start, capsys: pytest.CaptureFixture[str]) -> None:
    client = await start()
    for run in RUNS:
        await client.ask(*first(run))
    assert main.parser().parse_args(["doctor", "--gateway", client.url]).gateway == client.url
    assert await doctor.examine_prompts(Settings(), client.url) == 0
    said = capsys.readouterr().out
    assert "5 of 6 sessions break their siblings' prefix" in said
    assert "/srv" not in said
    assert await doctor.examine_prompts(Settings(), "http://127.0.0.1:1") == 1
    assert "nothing answers at http://127.0.0.1:1" in capsys.readouterr().err
