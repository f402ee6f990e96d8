"""Laws of `turngate tools`, and the refusals of a wrong section `tools`."""

from __future__ import annotations

import pytest

from gateway.cli import main
from gateway.config.settings import ToolSettings
from gateway.core.errors import ConfigError
from gateway.tools.wiring import python_tools
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
    assert main.main(["tools", "list"]) == 0
    assert capsys.readouterr().out.startswith("No tools are configured")


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ({"use": [{"use": "no_such_tool"}]}, "no_such_tool"),
        ({"use": [{"use": "tests.path.toolkit:nothing"}]}, "nothing"),
        ({"use": [{"use": "web_search", "secrets": {"api_key": "env:NOT_THERE"}}]}, "NOT_THERE"),
    ],
)
def test_a_wrong_entry_is_told_before_anything_starts(section: object, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        python_tools(ToolSettings.model_validate(section))


def test_two_tools_of_one_name_are_refused() -> None:
    entry = {"use": "tests.path.toolkit:build", "options": {"bench": Bench().number}}
    with pytest.raises(ConfigError, match="two tools are called"):
        python_tools(ToolSettings.model_validate({"use": [entry, entry]}))


def test_rules_change_what_a_tool_says_of_itself() -> None:
    entry = {"use": "tests.path.toolkit:build", "options": {"bench": Bench().number}}
    rules = {"names": ["search"], "timeout_s": 3, "ttl_s": 9, "scope": "session", "effect": "read_only"}
    [tool], _ = python_tools(ToolSettings.model_validate({"use": [entry | rules]}))
    assert (tool.limits.timeout_s, tool.limits.ttl_s, tool.limits.scope) == (3, 9, "session")
