"""Laws of `turngate doctor`: its report on the machine, on the clocks of engines, and on prefix breaks."""

from __future__ import annotations

import resource
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from gateway.cli import doctor
from gateway.cli.doctor import Machine, skew_s
from gateway.config.settings import Settings
from gateway.engines.base import Abilities, EngineAddress, Report
from gateway.engines.kinds import adapter_of
from gateway.engines.poller import RunningEngine
from gateway.transport.aiohttp_upstream import AiohttpUpstream

GOOD = Machine("3.13.1", 65_536, (), 2**40)
KEY = {"key": "env:A"}


def problems(found: Machine, skews_s: dict[str, float | None] | None = None, **sections: Any) -> list[str]:
    settings = Settings.model_validate(sections)
    return [f"{each.problem}; {each.remedy}" for each in doctor.advice(found, settings, skews_s or {})]


def test_a_machine_that_allows_all_gets_no_advice() -> None:
    assert problems(GOOD, {"e1": 0.0, "e2": None, "e3": -2.0}) == []
    assert problems(replace(GOOD, open_files=-1)) == []


def test_open_files_are_held_against_what_may_wait() -> None:
    (found,) = problems(replace(GOOD, open_files=1_024))
    assert found.startswith("1,024 open files serve 384 clients at once, and limits.queue_turns lets 10,000 wait")
    assert "LimitNOFILE=12304" in found
    assert problems(replace(GOOD, open_files=1_024), limits={"queue_turns": 256}) == []
    assert problems(replace(GOOD, open_files=20_000)) == []


def test_the_limit_that_counts_is_the_one_to_which_serve_raises_its_own() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert doctor.look_at_machine(Settings()).open_files == (-1 if hard == resource.RLIM_INFINITY else hard)


@pytest.mark.parametrize(("skew_s", "side"), [(61.0, "61 s ahead of"), (-3.4, "3 s behind")])
def test_a_wrong_clock_is_told_with_its_side(skew_s: float, side: str) -> None:
    (found,) = problems(GOOD, {"e1": skew_s})
    assert f"the clock of e1 is {side} this machine's" in found
    assert "NTP" in found


def test_a_full_disk_counts_where_batches_are_kept() -> None:
    (found,) = problems(replace(GOOD, free_bytes=2**20), batches={"directory": "/var/lib/turngate"})
    assert "1 MiB are free where batches are kept (/var/lib/turngate)" in found


def test_an_open_port_is_pointed_out() -> None:
    (found,) = problems(GOOD, listen={"host": "0.0.0.0", "open": True})
    assert "every host that reaches this port may use the engines" in found
    assert problems(GOOD, listen={"host": "0.0.0.0", "open": True}, keys=[KEY]) == []


def test_a_missing_extra_names_its_command() -> None:
    assert problems(replace(GOOD, missing_extras=("fast",))) == [
        "it runs without the faster event loop, reader and hash; pip install 'turngate[fast]'"
    ]


def test_this_machine_can_be_looked_at(tmp_path: Path) -> None:
    found = doctor.look_at_machine(
        Settings.model_validate({"batches": {"directory": str(tmp_path / "not" / "there")}})
    )
    assert found.open_files == -1 or found.open_files > 0
    assert found.free_bytes is not None
    assert "open files" in doctor.machine_as_text(found, Settings(), {})


# ---- clocks of engines

NOW = 1_763_725_000.0
DATE = "Fri, 21 Nov 2025 11:36:40 GMT"
"""The same moment."""


@dataclass
class Dated:
    """An engine that answers with a Date of the test's choice."""

    date: str | None = DATE
    port: int = 0

    async def answer(self, request: web.BaseRequest) -> web.Response:
        return web.Response(headers={"Date": self.date} if self.date is not None else {"Date": ""})


@pytest.fixture
async def dated() -> AsyncIterator[Dated]:
    server = Dated()
    runner = web.ServerRunner(web.Server(server.answer))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    server.port = runner.addresses[0][1]
    yield server
    await runner.cleanup()


async def skew_of(port: int, now: float) -> float | None:
    upstream, address = AiohttpUpstream(), EngineAddress("vllm", f"http://127.0.0.1:{port}")
    engine = RunningEngine(address, adapter_of("vllm"), Abilities(), Report(), is_up=True, problem="")
    try:
        return await skew_s(upstream, engine, 5.0, lambda: now)
    finally:
        await upstream.close()


@pytest.mark.parametrize(("own", "skew"), [(NOW, 0.0), (NOW + 0.9, 0.0), (NOW - 30.0, 30.0), (NOW + 31.0, -30.0)])
async def test_the_skew_is_the_least_that_fits_a_date_of_whole_seconds(
    dated: Dated, own: float, skew: float
) -> None:
    assert await skew_of(dated.port, own) == skew


@pytest.mark.parametrize("date", ["", "yesterday"])
async def test_an_engine_that_does_not_tell_the_time_has_no_skew(dated: Dated, date: str) -> None:
    dated.date = date
    assert await skew_of(dated.port, NOW) is None


async def test_an_engine_that_does_not_answer_has_no_skew() -> None:
    assert await skew_of(1, NOW) is None


# ---- prefix breaks


def test_the_report_of_prefix_breaks_names_the_most_expensive_first() -> None:
    last = {
        "kind": "path",
        "part": "system",
        "at_chars": 1200,
        "at_share": 0.1,
        "span_chars": 40,
        "shared_chars": 9000,
    }
    cost = {"sessions": 10, "breaks": 9, "wasted_tokens_per_break": 1, "last": last}
    rows = [
        {"family": name, "prefix_breaks": cost | {"wasted_tokens": tokens}}
        for name, tokens in (("a", 5), ("b", 9000))
    ]
    text = doctor.breaks_as_text([*rows, {"family": "c"}])
    assert text.startswith("family b: 9 of 10 sessions")
    assert "9,000 tokens wasted" in text
    assert "40 characters in the system, 1,200 from the start (10%), like a path" in text
    assert doctor.breaks_as_text([]).startswith("No prefix breaks")
