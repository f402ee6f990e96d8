"""Laws of engine kinds: names, and what holds for every kind."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.engines.base import CHAT, EngineAdapter, Outgoing, OutgoingRequest
from gateway.engines.kinds import KINDS, adapter_of
from gateway.engines.openai import OpenAI
from gateway.engines.pages import is_at_least
from policies.types import Hints

MODELS = '{"data":[{"id":"m"}]}'


@pytest.fixture(params=sorted(KINDS))
def engine(request: pytest.FixtureRequest) -> EngineAdapter:
    return adapter_of(request.param)


def test_a_kind_of_ones_own_is_named_by_import_path() -> None:
    assert adapter_of("gateway.engines.openai:OpenAI").kind == "openai"


@pytest.mark.parametrize("kind", ["vlm", "gateway.engines.openai:Nothing", "no.such.module:Kind"])
def test_a_kind_that_is_not_there_is_named_in_the_error(kind: str) -> None:
    with pytest.raises(ValueError, match=kind):
        adapter_of(kind)


def test_a_served_model_is_enough_for_one_pool(engine: EngineAdapter) -> None:
    report = engine.parse_report({"/v1/models": MODELS})
    assert (report.models, len(report.pools)) == (("m",), 1)
    assert report.pools[0].name == ""


@given(
    st.dictionaries(st.sampled_from(["/v1/models", "/metrics", "/health", "/v1/loads", "/server_info"]), st.text())
)
def test_no_page_breaks_a_poll(pages: dict[str, str]) -> None:
    for kind in KINDS:
        engine = adapter_of(kind)
        engine.parse_report(pages)
        engine.learn(pages, engine.abilities())


def test_nothing_of_ours_means_nothing_refused(engine: EngineAdapter) -> None:
    assert engine.refused_fields(400, "unknown field `priority`", Outgoing()) == frozenset()


def test_every_advice_says_what_to_do(engine: EngineAdapter) -> None:
    advice = engine.advice(engine.parse_report({"/v1/models": MODELS}), engine.abilities())
    assert all(found.problem and found.remedy for found in advice)


def test_a_plain_server_gets_the_clients_request_as_it_is() -> None:
    hints = Hints(urgency=100, session_id="s", expected_output_tokens=5)
    assert OpenAI().outgoing(OutgoingRequest(CHAT, {"priority": 1}, hints), OpenAI().abilities()) == Outgoing()


@pytest.mark.parametrize(
    ("version", "is_later"),
    [
        ("0.32.0", True),
        ("0.32.1+cpu", True),
        ("v1.0", True),
        ("0.31.9", False),
        ("0.9.2", False),
        ("dev", False),
        ("", False),
    ],
)
def test_versions_compare_by_number(version: str, is_later: bool) -> None:
    assert is_at_least(version, (0, 32, 0)) is is_later
