"""What the documents name exists: files, metrics, keys of the configuration, commands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gateway.cli import main
from gateway.config import loading
from gateway.config.settings import Settings, ToolSourceSettings
from tests.real import parts
from tool_runtime.types import NEVER, Limits, Scope

ROOT = Path(__file__).parents[2]
DOCS = sorted([*(ROOT / folder / "README.md" for folder in (".", "benchmarks")), *(ROOT / "docs").rglob("*.md")])
FILES = (".py", ".md", ".yaml")
SOURCE = "".join(path.read_text() for path in (ROOT / "gateway").rglob("*.py"))
SECTIONS = {path.partition(".")[0] for path, _ in loading.leaf_keys() if "." in path}


@pytest.fixture(params=DOCS, ids=lambda path: path.name)
def document(request: pytest.FixtureRequest) -> tuple[Path, str]:
    path: Path = request.param
    return path, path.read_text()


def test_links_lead_to_files(document: tuple[Path, str]) -> None:
    path, text = document
    links = [link.partition("#")[0] for link in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in link]
    assert [link for link in links if link and not (path.parent / link).exists()] == []


def test_keys_of_the_configuration_exist(document: tuple[Path, str]) -> None:
    path, text = document
    if path.name == "life-of-a-request.md":
        return  # it names functions
    known = {key for key, _ in loading.leaf_keys()}
    named = set(re.findall(r"`([a-z_]+\.[a-z_]+)(?::[^`]*)?`", text)) - known
    assert {key for key in named if key.partition(".")[0] in SECTIONS and not key.endswith(FILES)} == set()


def test_metrics_exist(document: tuple[Path, str]) -> None:
    _, text = document
    named = {name.removesuffix("_total") for name in re.findall(r"\bturngate_[a-z_]*[a-z]\b", text)}
    assert {name for name in named if not is_metric(name)} == set()


def is_metric(name: str) -> bool:
    """Those of tools and of batches add a word of their own."""
    short = name.removeprefix("turngate_")
    return any(f'{part}"' in SOURCE for part in (short, short.removeprefix("tool_"), short.removeprefix("batch_")))


def test_every_key_of_a_tool_stands_in_the_documents_and_in_the_dump_with_its_default() -> None:
    text = (ROOT / "docs/tools.md").read_text().partition("## Two modes")[0]
    rows = dict(re.findall(r"^\| `([a-z_]+)` \| ([^|]+) \|", text, re.MULTILINE))
    dumped = loading.dump(Settings())
    assert set(ToolSourceSettings.model_fields) == rows.keys()
    assert [key for key in rows if dumped.count(f"#   {key}: ") < 2] == []  # of tools.use and of tools.mcp
    known = {name: getattr(Limits(), name) for name in rows if hasattr(Limits(), name)}
    said = {"no limit": None, "`tenant`": Scope.TENANT, "`never`": NEVER}
    assert {name: said.get(rows[name], rows[name]) for name in known} == {
        name: value if value is None or isinstance(value, str) else f"{value:.0f}" for name, value in known.items()
    }


def test_commands_exist(document: tuple[Path, str]) -> None:
    path, text = document
    if path.name == "extending.md":
        return  # it adds one, which test_extending.py runs
    choices = main.parser()._subparsers._group_actions[0].choices  # type: ignore[union-attr]
    named = set(re.findall(r"(?:^|`|bin/)turngate ([a-z]+)", text, re.MULTILINE))
    assert named <= set(choices or ())


def test_clients_are_said_to_be_tested_in_the_versions_that_are_installed() -> None:
    table = (ROOT / "docs" / "agents.md").read_text().partition("## What is tested")[2].partition("\n## ")[0]
    names = ["CLAUDE_CODE", "CODEX", "OPENCODE", "QWEN_CODE", "PI", "AIDER", "SMOLAGENTS", "AI_SDK"]
    names += ["AI_SDK_COMPATIBLE", "OPENAI_NODE", "LANGCHAIN_OPENAI", "PYDANTIC_AI", "AIDER_LITELLM"]
    installed = {getattr(parts, f"{name}_VERSION") for name in names}
    assert set(re.findall(r"\d+\.\d+\.\d+", table)) == installed
