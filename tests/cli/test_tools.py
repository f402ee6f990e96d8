"""Laws of `turngate tools`."""

from __future__ import annotations

import pytest

from gateway.cli import main
from tests.path.toolkit import Bench

OWN = "tools.use=[{{use: 'tests.path.toolkit:build', options: {{bench: {}}}, names: [search]}}]"


def run(*arguments: str) -> int:
    return main.main(["tools", *arguments, "--set", OWN.format(Bench().number)])


def test_the_tools_that_are_configured_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("list") == 0
    assert capsys.readouterr().out == "search: python, offer, read_only. A search.\n"


def test_a_tool_can_be_called_by_hand(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("call", "search", '{"q": "a"}') == 0
    assert capsys.readouterr().out == "search found a\n"
    assert run("call", "write") == 1
    assert "there is no tool 'write'; there are: search" in capsys.readouterr().err
    assert run("call") == 2


def test_without_tools_the_list_says_where_they_are_configured(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["tools"]) == 0
    assert capsys.readouterr().out.startswith("No tools are configured")
