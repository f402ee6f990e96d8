from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

from tool_runtime import tools
from tool_runtime.loading import builtin_names, load

MODULE = """
from tool_runtime.define import define, tool
from tool_runtime.types import Effect

@tool(effect=Effect.READ_ONLY)
def look(): ...

def plain(): ...

both = [look, define(plain, name="other")]
number = 5

def build(settings):
    return define(plain, name=settings["name"])
"""
METADATA = "Metadata-Version: 2.1\nName: offering\nVersion: 1\n"
ENTRY_POINTS = "[turngate.tools]\noffered = offering:both\nbroken = offering:nothing\n"


@pytest.fixture(autouse=True)
def offering(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An installed package that offers tools."""
    (tmp_path / "offering.py").write_text(MODULE)
    info = tmp_path / "offering-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(METADATA)
    (info / "entry_points.txt").write_text(ENTRY_POINTS)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    sys.modules.pop("offering", None)


@pytest.mark.parametrize(
    ("name", "settings", "names"),
    [
        ("offering:look", {}, ["look"]),
        ("offering:both", {}, ["look", "other"]),
        ("offering:plain", {}, ["plain"]),
        ("offering:build", {"name": "made"}, ["made"]),
        ("offered", {}, ["look", "other"]),
    ],
)
def test_a_name_finds_its_tools(name: str, settings: dict[str, str], names: list[str]) -> None:
    assert [tool.name for tool in load(name, settings)] == names


@pytest.mark.parametrize(
    ("name", "settings", "said"),
    [
        ("nowhere:x", {}, "nowhere:x cannot be imported: No module named 'nowhere'"),
        ("offering:x", {}, "offering:x: offering has no 'x'"),
        ("offering:number", {}, "neither a tool nor a list of tools, but int"),
        ("offering:look", {"a": 1}, "takes no settings"),
        ("broken", {}, "broken cannot be imported"),
        ("nothing", {}, "there is no tool 'nothing'; known are"),
        ("../tools", {}, "there is no tool"),
    ],
)
def test_a_wrong_name_says_what_is_wrong(name: str, settings: dict[str, int], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        load(name, settings)


@pytest.mark.parametrize("name", builtin_names())
def test_every_built_in_builds_a_tool_from_settings(name: str) -> None:
    assert callable(import_module(f"{tools.__name__}.{name}").build)
