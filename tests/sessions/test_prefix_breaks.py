"""Laws of the cost of prefix breaks, and of the tenant that sees it."""

from __future__ import annotations

from random import Random
from typing import Any

import orjson
import pytest

from gateway.config.settings import IdentitySettings
from gateway.dialects.base import Script
from gateway.exchange import Exchange, Recognition
from gateway.sessions.prefix_breaks import PrefixBreaks
from gateway.telemetry.metrics import Metrics
from policies.types import TurnKind, Usage
from tests.policies.recognition.siblings import Agent, path_line
from tests.telemetry.observed import exchange


def first_turn(agent: Agent, noise: Random, usage: Usage, **changes: Any) -> tuple[Exchange, Script]:
    script = Script(agent.tools, agent.system(path_line(noise)), agent.messages(), True, ())
    chars = len(script.system) + sum(map(len, (*script.tools, *script.messages)))
    fields: dict[str, Any] = {
        "turn_index": 0,
        "kind": TurnKind.AGENT,
        "is_retry": False,
        "family_id": "f1",
    } | changes
    made = exchange(
        recognition=Recognition("s", parent_id=None, source="new", confidence=1, blocks=(), chars=chars, **fields),
    )
    made.reply.usage = usage
    return made, script


def record(breaks: PrefixBreaks, *turns: tuple[Exchange, Script]) -> None:
    for made, script in turns:
        made.prefix_break = breaks.recognised(made, script, tools_first=False)
        breaks.finished(made)


@pytest.fixture
def breaks() -> PrefixBreaks:
    return PrefixBreaks(IdentitySettings(), Metrics())


def test_waste_is_what_siblings_share_behind_the_break_and_was_not_cached(breaks: PrefixBreaks) -> None:
    noise = Random(1)
    agent = Agent(noise)
    usages = [Usage(4000, 0, 1), Usage(4000, 0, 1), Usage(4000, 3000, 1), Usage(4000, None, 1)]
    record(breaks, *(first_turn(agent, noise, usage) for usage in usages))
    (row,) = breaks.joined([], "a")
    found = row["prefix_breaks"]
    chars = len(agent.system()) + sum(map(len, agent.tools))
    behind = found["last"]["shared_chars"]
    assert 0.9 * chars < behind < chars
    assert (found["sessions"], found["breaks"]) == (4, 3)
    assert 2 * 3700 + 1000 < found["wasted_tokens"] <= 2 * 4000 + 1000
    assert found["last"]["kind"] == "path"
    assert 0 < found["last"]["at_share"] < 0.01


def test_metrics_count_breaks_and_their_tokens(breaks: PrefixBreaks) -> None:
    metrics = Metrics()
    breaks = PrefixBreaks(IdentitySettings(), metrics)
    noise = Random(1)
    agent = Agent(noise)
    record(breaks, *(first_turn(agent, noise, Usage(4000, 3000, 1)) for _ in range(3)))
    page = metrics.exposition().decode()
    assert 'turngate_prefix_breaks_total{kind="path"} 2.0' in page
    assert 'turngate_prefix_break_tokens_total{kind="path"} 2000.0' in page


@pytest.mark.parametrize("changes", [{"turn_index": 1}, {"kind": TurnKind.SIDE}, {"is_retry": True}])
def test_only_first_turns_are_compared(changes: dict[str, Any], breaks: PrefixBreaks) -> None:
    noise = Random(1)
    agent = Agent(noise)
    record(breaks, *(first_turn(agent, noise, Usage(4000, 0, 1), **changes) for _ in range(3)))
    assert breaks.joined([], "a") == []


def test_what_no_engine_has_begun_to_answer_has_wasted_nothing(breaks: PrefixBreaks) -> None:
    noise = Random(1)
    agent = Agent(noise)
    for _ in range(3):
        made, script = first_turn(agent, noise, Usage())
        made.timings.first_byte_at = None
        record(breaks, (made, script))
    assert breaks.joined([], "a") == []


def test_a_tenant_reads_its_own_families_only_and_no_content(breaks: PrefixBreaks) -> None:
    noise = Random(1)
    agent = Agent(noise)
    record(breaks, *(first_turn(agent, noise, Usage(4000, 0, 1)) for _ in range(3)))
    rows: list[dict[str, Any]] = [{"family": "f1", "turns": 3, "sessions": {}, "states": {}}, {"family": "f2"}]
    joined = breaks.joined(rows, "a")
    assert [row["family"] for row in joined] == ["f1", "f2"]
    assert b"/srv" not in orjson.dumps(joined)
    assert "prefix_breaks" in joined[0]
    assert breaks.joined([{"family": "f1"}], "b") == [{"family": "f1"}]
