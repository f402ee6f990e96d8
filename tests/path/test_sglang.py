"""Law: SGLang takes a call without a priority for the lowest there is, so none goes there without one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from gateway.engines.base import CHAT, COMPLETIONS, EMBEDDINGS, MESSAGES, RESPONSES
from tests.engines.recorded import pages
from tests.path.batches import Connect, asks, create, over
from tests.path.conftest import Gateway, Start
from tests.path.fake_engine import Call, FakeEngine
from tests.path.secured import by, keys
from tests.path.test_lists import echoes

SAID = [{"role": "user", "content": "hi"}]
ASKED: dict[str, dict[str, Any]] = {
    CHAT: {"messages": SAID},
    COMPLETIONS: {"prompt": "hi"},
    RESPONSES: {"input": "hi"},
    MESSAGES: {"messages": SAID, "max_tokens": 9},
    EMBEDDINGS: {"input": "hi"},
}
SERVER = orjson.loads(pages("sglang-0.5.23")["/server_info"])


@pytest.fixture
def engine() -> FakeEngine:
    """As 0.5.23 described itself, but for what it does not serve here."""
    info = SERVER | {"default_priority_value": 0, "enable_session_radix_cache": False, "max_running_requests": 64}
    return FakeEngine(
        more_pages={"/server_info": orjson.dumps(info)}, lacks=frozenset(["/v1/loads", "/get_server_info"])
    )


def priority(call: Call) -> int:
    value = call.body["priority"]
    assert type(value) is int
    return value


async def asked(gateway: Gateway, path: str, headers: dict[str, str], **more: Any) -> Call:
    num = len(gateway.engines[0].calls)
    await gateway.ask({"model": "m"} | ASKED[path] | more, path, **headers)
    return await gateway.engines[0].has_seen(num + 1)


@pytest.mark.parametrize("path", ASKED)
async def test_every_call_has_a_priority_and_nobody_may_choose_it(
    start: Start, engine: FakeEngine, path: str
) -> None:
    keyed = [*keys("one", "low", urgency=0), *keys("vip", may_prioritise=True)]
    keyed[1]["urgency"] = -20
    gateway = await start(engine, kind="sglang", keys=keyed)
    own = {"X-Override-Priority": "99"}
    assert -1 <= priority(await asked(gateway, path, {**by("one")})) <= 3
    claimed = await asked(gateway, path, {**by("one"), **own}, priority=99)
    assert priority(claimed) <= 3
    assert claimed.headers.get("X-Override-Priority") != "99"
    assert priority(await asked(gateway, path, {**by("low")})) == -1
    assert priority(await asked(gateway, path, {**by("vip")}, priority=99)) == 99


async def test_no_prompt_of_a_list_is_without(start: Start, engine: FakeEngine) -> None:
    engine.plays = [echoes] * 100
    gateway = await start(engine, kind="sglang")
    prompts = [f"prompt {number}" for number in range(20)]
    answer = await gateway.ask({"model": "m", "prompt": prompts, "max_tokens": 4}, COMPLETIONS)
    assert answer.status == 200
    assert len(engine.calls) > 2
    assert all(priority(call) >= 0 for call in engine.calls)


async def test_lines_of_batches_go_last(start: Start, engine: FakeEngine, tmp_path: Path, sdk: Connect) -> None:
    gateway = await start(engine, kind="sglang", batches={"directory": str(tmp_path)})
    client = sdk(gateway)
    done = await over(client, await create(client, [asks(f"line {number}") for number in range(3)]))
    assert done.status == "completed"
    assert [priority(call) for call in engine.calls] == [-1] * 3


async def test_probes_have_one_too(start: Start, engine: FakeEngine) -> None:
    await start(engine, kind="sglang", probing={"hints": True, "interval_s": 3600})
    probes = [
        call for call in engine.calls if not call.path.endswith("tokenize")
    ]  # which takes no turn in its queue
    assert len(probes) >= 3
    assert {call.path for call in probes} == {CHAT}
    assert all(priority(call) >= 0 for call in probes)
