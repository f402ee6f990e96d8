"""Laws of replay: what a live gateway decided, a fresh Scheduler decides again."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest

from benchmarks.simulation.replay import replay
from gateway.app import App
from gateway.cli.demo_fleet import Fleet, FleetShape, ModelClient, draw
from gateway.config.settings import Settings
from gateway.telemetry import factlog
from gateway.telemetry.factlog import FactLog
from gateway.transport.aiohttp_upstream import AiohttpUpstream
from policies.types import Dispatch, Reason, Tick

SHAPE = FleetShape(12, (2, 3), 800, 200, 200, (10, 20), (0.01, 0.05))


@pytest.fixture
async def recorded(tmp_path: Path) -> Path:
    """The log of a fleet that a gateway served from an engine with too little cache for it."""
    file = tmp_path / "facts.jsonl"
    settings = Settings.model_validate(
        {
            "listen": {"port": 0},
            "engines": ["embedded"],
            "embedded": {"speed": 20, "capacity_tokens": 4_096},
            "logging": {"facts": str(file)},
            "policy": {"ceiling": 0.9},
        }
    )
    app, upstream = App(settings), AiohttpUpstream()
    try:
        await app.start()
        model = ModelClient(upstream, f"http://127.0.0.1:{app.port}", "embedded")
        await Fleet(model, lambda: None).run(draw(SHAPE, 1))
    finally:
        await upstream.close()
        await app.stop()
    return file


async def test_the_log_of_a_live_run_replays_to_identical_decisions(recorded: Path) -> None:
    report = replay(recorded)
    assert report.is_same, report
    dispatched = [d for _, _, decisions in factlog.read(recorded) for d in decisions if isinstance(d, Dispatch)]
    assert len(dispatched) == sum(len(session.turns) for session in draw(SHAPE, 1))
    reasons = {dispatch.reason for dispatch in dispatched}
    assert Reason.ADMITTED in reasons, "a turn must have waited in the run, else it shows little"
    header = orjson.loads(recorded.read_bytes().splitlines()[0])
    assert header["settings"]["policy"]["ceiling"] == 0.9


async def test_a_decision_that_differs_is_shown_with_its_fact(recorded: Path) -> None:
    lines = [orjson.loads(line) for line in recorded.read_bytes().splitlines()]
    number = next(number for number, line in enumerate(lines[1:], 1) if line["decisions"])
    lines[number]["decisions"] = []
    recorded.write_bytes(b"\n".join(map(orjson.dumps, lines)))
    report = replay(recorded)
    assert report.num_facts == number
    assert "recorded []" in str(report)


def test_a_log_without_a_header_says_so(tmp_path: Path) -> None:
    file = tmp_path / "facts.jsonl"
    log = FactLog(file)
    log.record(1.0, Tick(), [])
    log.close()
    file.write_bytes(b"\n".join(file.read_bytes().splitlines()[1:]))
    with pytest.raises(ValueError, match="without a header"):
        replay(file)


def test_each_start_of_a_gateway_is_replayed_by_itself(tmp_path: Path) -> None:
    file = tmp_path / "facts.jsonl"
    for now in (100.0, 5.0):
        log = FactLog(file)
        log.record(now, Tick(), [])
        log.close()
    report = replay(file)
    assert report.is_same
    assert report.num_facts == 2
