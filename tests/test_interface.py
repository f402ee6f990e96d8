"""What users and their dashboards rely on stays: configuration keys, flags, routes and metric names."""

from __future__ import annotations

import argparse
import ast
import json
import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import aiohttp
import pytest

import batch_agent.cli
from gateway.api import routes
from gateway.app import App
from gateway.cli.main import parser
from gateway.config import loading
from gateway.config.settings import Settings

ROOT = Path(__file__).parent.parent
PRODUCT = ("gateway", "policies", "tool_runtime", "batch_agent")
RECORDED = json.loads((ROOT / "tests/data/interface.json").read_text(encoding="utf-8"))
"""What release 0.1 offers. A name leaves it only with a line under *Removed* in CHANGELOG.md."""


def flags(command: argparse.ArgumentParser, prefix: str = "") -> Iterator[str]:
    """Every flag and positional argument of a command and of those below it, as `serve --engine`."""
    for action in command._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, below in action.choices.items():
                yield from flags(below, f"{prefix}{name} ")
        else:
            yield from (prefix + flag for flag in action.option_strings or [action.dest])


def offered() -> dict[str, set[str]]:
    """What this tree offers, by kind; metrics apart."""
    paths = routes.document()["paths"]
    turngate = {f"turngate {flag}" for flag in flags(parser())}
    return {
        "keys": {key for key, _ in loading.leaf_keys()},
        "flags": turngate | {f"batch-agent {flag}" for flag in flags(batch_agent.cli.parser())},
        "routes": {f"{method.upper()} {path}" for path, methods in paths.items() for method in methods},
    }


def metrics_in_source() -> Iterator[str]:
    """Names that stand in the source as one string, such as those of members of a cluster."""
    for package in PRODUCT:
        for path in (ROOT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Constant) and re.fullmatch(r"turngate_[a-z_]*[a-z]", str(node.value)):
                    yield str(node.value)


@pytest.fixture
async def metrics(tmp_path: Path) -> AsyncIterator[set[str]]:
    """Names in the source, and those on the page of a gateway that has batches and a tool."""
    tree = {
        "listen": {"port": 0},
        "engines": ["embedded"],
        "batches": {"directory": str(tmp_path)},
        "tools": {"use": [{"use": "http_get", "options": {"hosts": ["example.com"]}}]},
    }
    app = App(Settings.model_validate(tree))
    try:
        await app.start()
        async with aiohttp.ClientSession() as client, client.get(f"http://127.0.0.1:{app.port}/metrics") as page:
            names = set(re.findall(r"^# TYPE (turngate_\w+) ", await page.text(), re.MULTILINE))
        yield names | set(metrics_in_source())
    finally:
        await app.stop()


@pytest.mark.parametrize("kind", ["keys", "flags", "routes"])
def test_no_key_flag_or_route_disappears(kind: str) -> None:
    assert len(RECORDED[kind]) > 10
    assert set(RECORDED[kind]) - offered()[kind] == set()


async def test_no_metric_disappears(metrics: set[str]) -> None:
    assert len(RECORDED["metrics"]) > 30
    assert set(RECORDED["metrics"]) - metrics == set()
