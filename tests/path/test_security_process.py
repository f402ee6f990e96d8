"""Keys and prompts are in nothing that a process of the gateway writes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.path.broken import BROKEN, SECRET, sent
from tests.path.fake_engine import FakeEngine
from tests.path.killed import GatewayProcess


@pytest.mark.parametrize("transport", ["aiohttp", "fast"])
async def test_nothing_that_a_process_writes_holds_a_key_or_a_prompt(
    engine: FakeEngine, tmp_path: Path, transport: str
) -> None:
    await engine.start()
    log = tmp_path / "log"
    gateway = GatewayProcess(
        engine, tmp_path / "batches", "--set", "logging.level=debug", "--set", f"transport={transport}"
    )
    with log.open("wb") as gateway.stderr:
        await gateway.start()
        for raw in BROKEN.values():
            await sent(gateway.port, raw)
            await sent(gateway.port, raw, ends=True)
        await gateway.stop()
        await engine.stop()
    assert SECRET not in log.read_text(errors="replace")
    assert "outcome=" in log.read_text(errors="replace")
