"""Laws of `/ui`, looked at in a real Chromium while a fleet of agents runs; the pictures in docs are made here."""

from __future__ import annotations

import asyncio
import io
import json
import os
import re
from asyncio.subprocess import PIPE
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console

from gateway.cli.demo_fleet import Fleet, FleetShape, ModelClient, draw
from gateway.cli.screen import Screen
from gateway.cli.top import read_snapshot
from gateway.transport.aiohttp_upstream import AiohttpUpstream
from tests.real import parts
from tests.real.gateway import gateway

ROOT = Path(__file__).parents[2]
KEY = "the-key-of-team-a"
CAPACITY_TOKENS = 24_576
"""Of each of two replicas."""
SHAPE = FleetShape(
    num_sessions=24,
    lengths=(6, 9, 12),
    first_tokens=2_000,
    append_tokens=120,
    output_tokens=(40, 120),
    gap_s=(0.5, 4.0),
    arrival_rate_per_s=3,
)
DEADLINE_S = 120.0
HEADERS = [("authorization", f"Bearer {KEY}")]


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Where they go; `make pictures` keeps them."""
    return Path(os.environ.get("TURNGATE_PICTURES", tmp_path)).absolute()


async def test_a_person_sees_the_fleet_and_is_told_when_it_is_gone(
    pictures: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts.require("browser", parts.CHROMIUM_COMMAND, parts.BROWSER_PYTHON)
    picture, upstream = pictures / "ui.png", AiohttpUpstream()
    monkeypatch.setenv("TEAM_A_KEY", KEY)
    keys = [{"key": "env:TEAM_A_KEY", "tenant": "team-a"}]
    engines = [{"url": "embedded", "name": f"gpu{number}"} for number in (1, 2)]
    sizes = {f"{part}__capacity_tokens": CAPACITY_TOKENS for part in ("policy", "embedded")}
    sections = {"engines": engines, "keys": keys, "policy__slots_per_replica": 8} | sizes
    async with gateway(**sections) as running:
        fleet = Fleet(ModelClient(upstream, running.base_url, "embedded"), lambda: None, HEADERS)
        agents = asyncio.create_task(fleet.run(draw(SHAPE, seed=2), DEADLINE_S))
        command: list[str | Path] = [parts.BROWSER_PYTHON, ROOT / "tests/real/inside/look.py"]
        command += [parts.CHROMIUM_COMMAND, parts.CHROMIUM_LIBRARIES, f"{running.base_url}/ui", KEY, picture]
        looking = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE)
        assert looking.stdin is not None
        assert looking.stdout is not None
        try:
            async with asyncio.timeout(DEADLINE_S):
                steps = [json.loads(await looking.stdout.readline()) for _ in range(4)]
                snapshot = await read_snapshot(upstream, running.base_url, KEY, DEADLINE_S, 100)
                draw_top(snapshot, pictures / "top.svg")
                await running.server.kill()
                looking.stdin.write(b"\n")
                steps.append(json.loads(await looking.stdout.readline()))
                assert await looking.wait() == 0
        finally:
            if looking.returncode is None:
                looking.kill()
            agents.cancel()
            await asyncio.gather(agents, return_exceptions=True)
            await upstream.close()
    told = {step["step"]: step for step in steps}
    is_locked_without_a_key(told["locked"])
    shows_the_fleet(told["open"], running.base_url)
    sorts_and_filters(told["sorted"])
    says_why(told["why"])
    says_that_it_is_old(told["gone"], running.base_url)
    assert picture.read_bytes().startswith(b"\x89PNG")


def draw_top(told: dict[str, Any], picture: Path) -> None:
    """`turngate top` of the same moment."""
    console = Console(record=True, width=88, height=26, file=io.StringIO(), force_terminal=True)
    console.print(Screen(told, "http://127.0.0.1:8080", "phase", height=26))
    no_fonts = re.sub(r"@font-face \{\{.*?\}\}\s*", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
    svg = console.export_svg(title="turngate top", code_format=no_fonts, unique_id="top")
    picture.write_text(re.sub(r"<!--.*?-->|[ \t]+$", "", svg, flags=re.MULTILINE))


def is_locked_without_a_key(step: dict[str, Any]) -> None:
    assert step["rows"] == 0
    assert "key" in step["problem"]


def shows_the_fleet(step: dict[str, Any], base_url: str) -> None:
    assert "waiting" in step["counts"]
    assert step["names"][:4] == ["session", "family", "phase", "for"]  # a client sees no tenants
    assert len(step["sessions"]) == len(set(step["sessions"])) > 5
    assert len(step["replicas"]) == step["gauges"] == 2
    assert "ceiling 24.1k of 24.6k" in step["replicas"][0]
    assert {"waiting", "prefill", "decode"} <= set(step["bars"])
    policy = step["headers"]["content-security-policy"]
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert "unsafe" not in policy


def sorts_and_filters(step: dict[str, Any]) -> None:
    assert step["turns"] == sorted(step["turns"], reverse=True)
    assert step["filtered"] == [step["first"]]


def says_why(step: dict[str, Any]) -> None:
    assert step["of"].startswith(step["name"])
    assert step["turns"] > 0
    assert step["remedy"]
    assert step["shades"] == ["rgb(255, 255, 255)", "rgb(20, 23, 26)"]  # by the person's own setting


def says_that_it_is_old(step: dict[str, Any], base_url: str) -> None:
    """And the page has asked nobody else, and broken none of its own rules."""
    assert "does not answer" in step["problem"]
    assert step["rows"] > 0
    assert {urlsplit(url).netloc for url in step["asked"]} == {urlsplit(base_url).netloc}
    complaints = [said for said in step["said"] if "status of 401" not in said and "ERR_CONNECTION" not in said]
    assert complaints == []
