"""Two gateways that share their batches: one Valkey, one directory."""

from __future__ import annotations

from pathlib import Path

import pytest
from aiohttp import web

from tests.path.batches import CHAT, Connect, asks, create, over, plays, rows_of
from tests.path.conftest import Start
from tests.path.fake_engine import Call, FakeEngine, completion
from tests.valkey import valkey as valkey
from tests.valkey import valkey_server as valkey_server


@pytest.fixture
def kept(tmp_path: Path, valkey: str) -> dict[str, str]:
    return {"directory": str(tmp_path / "batches"), "redis": valkey}


async def test_any_gateway_reports_a_batch_and_one_works_on_it(
    start: Start, engine: FakeEngine, kept: dict[str, str], sdk: Connect
) -> None:
    async def play(call: Call) -> web.StreamResponse:
        return await call.reply(200, completion("done"))

    plays(engine, play)
    first, second = sdk(await start(engine, batches=kept)), sdk(await start(engine, batches=kept))
    batch = await create(first, [asks("a"), asks("b")], endpoint=CHAT)
    done = await over(second, batch)
    assert done.status == "completed"
    assert set(await rows_of(second, done.output_file_id)) == {"a", "b"}
    assert [one.id for one in (await second.batches.list()).data] == [batch.id]
    assert len(engine.calls) == 2
