"""Laws of model names."""

from __future__ import annotations

import pytest

from gateway.config.settings import Models
from gateway.core.errors import Refused
from gateway.engines.base import Abilities, EngineAddress, Report
from gateway.engines.kinds import adapter_of
from gateway.engines.poller import RunningEngine
from gateway.request.payload import MAX_NAME_CHARS, engine_model, served_as

ALIASES = {"gpt-5": "large", "gpt-*": "small", "own": "own"}


@pytest.mark.parametrize(
    ("asked", "served", "name"),
    [
        ("gpt-5", {"large", "small"}, "large"),
        ("gpt-5.4-nano", {"large", "small"}, "small"),
        ("small", {"large", "small"}, "small"),
        ("unknown", {"large", "small"}, None),
        ("unknown", {"large"}, "large"),
        ("", {"large"}, "large"),
        ("unknown", set(), "unknown"),
    ],
)
def test_an_alias_wins_then_a_served_name_then_the_only_model(
    asked: str, served: set[str], name: str | None
) -> None:
    assert engine_model(asked, Models(aliases=ALIASES), served) == name


def test_a_single_model_answers_to_its_own_name_alone_where_that_is_configured() -> None:
    assert engine_model("unknown", Models(answer_any_model=False), {"large"}) is None


def test_while_nothing_is_served_only_what_can_be_a_name_goes_through() -> None:
    assert engine_model("m" * MAX_NAME_CHARS, Models(), ()) == "m" * MAX_NAME_CHARS
    assert engine_model("m" * (MAX_NAME_CHARS + 1), Models(), ()) is None


def running(model: str, is_up: bool) -> RunningEngine:
    address = EngineAddress("vllm", f"http://{model}", name=model)
    return RunningEngine(address, adapter_of("vllm"), Abilities(), Report(models=(model,)), is_up)


def test_no_other_model_answers_to_the_name_of_one_whose_engine_is_down() -> None:
    engines = [running("large", False), running("small", True)]
    assert served_as("large", Models(), engines) == "large"  # the gate refuses it until its engine is back
    assert served_as("small", Models(), engines) == "small"
    with pytest.raises(Refused, match="does not exist"):
        served_as("unknown", Models(), engines)
    assert served_as("unknown", Models(), [running("large", False)]) == "unknown"
