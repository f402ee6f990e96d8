"""Laws of the section `tools`: tools come out of it, or a refusal."""

from __future__ import annotations

import pytest

from gateway.config.settings import ToolSettings
from gateway.core.errors import ConfigError
from gateway.tools.wiring import python_tools
from tests.path.toolkit import Bench


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ({"use": [{"use": "no_such_tool"}]}, "no_such_tool"),
        ({"use": [{"use": "tests.path.toolkit:nothing"}]}, "nothing"),
        ({"use": [{"use": "web_search", "secrets": {"api_key": "env:NOT_THERE"}}]}, "NOT_THERE"),
    ],
)
def test_a_wrong_entry_is_refused_before_anything_starts(section: object, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        python_tools(ToolSettings.model_validate(section))


def test_two_tools_of_one_name_are_refused() -> None:
    entry = {"use": "tests.path.toolkit:build", "options": {"bench": Bench().number}}
    with pytest.raises(ConfigError, match="two tools are called"):
        python_tools(ToolSettings.model_validate({"use": [entry, entry]}))


def test_rules_override_the_limits_of_a_tool() -> None:
    entry = {"use": "tests.path.toolkit:build", "options": {"bench": Bench().number}}
    rules = {"names": ["search"], "timeout_s": 3, "ttl_s": 9, "scope": "session", "effect": "read_only"}
    [(tool, _)] = python_tools(ToolSettings.model_validate({"use": [entry | rules]})).values()
    assert (tool.limits.timeout_s, tool.limits.ttl_s, tool.limits.scope) == (3, 9, "session")
