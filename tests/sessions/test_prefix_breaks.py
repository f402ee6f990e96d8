"""Laws of the cost of prefix breaks, and of the tenant that sees it."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import orjson
import pytest

from gateway.config.settings import IdentitySettings
from gateway.dialects.base import Script
from gateway.exchange import Exchange, Recognition
from gateway.sessions.prefix_breaks import PrefixBreaks
from gateway.telemetry.metrics import Metrics
from policies.recognition.prompts import SystemChange
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


CLOCK = "It is 12:0{}.\n"


def later_turn(agent: Agent, turn: int, usage: Usage, num_messages: int = 1) -> tuple[Exchange, Script]:
    """Return the turn of a session whose system text tells the time."""
    change = SystemChange(turn, num_messages) if turn else None
    changes = {"turn_index": turn, "system_hash": turn + 1, "system_change": change}
    made, script = first_turn(agent, Random(1), usage, **changes)
    script = Script(agent.tools, agent.system(CLOCK.format(turn)), script.messages, True, ())
    return made, script


def test_a_system_text_that_changes_within_a_session_breaks_its_own_prefix(breaks: PrefixBreaks) -> None:
    agent = Agent(Random(1))
    record(breaks, *(later_turn(agent, turn, Usage(4000, 100, 1)) for turn in range(5)))
    (row,) = breaks.joined([], "a")
    found = row["prefix_breaks"]
    assert (found["sessions"], found["breaks"], found["turns"]) == (1, 0, 4)
    assert 4 * 3500 < found["wasted_tokens"] <= 4 * 3900
    assert (found["last"]["kind"], found["last"]["part"]) == ("date", "system")


def test_a_later_turn_is_compared_as_far_as_the_turn_before_went(breaks: PrefixBreaks) -> None:
    agent = Agent(Random(1), num_tools=0)
    messages = b'["tool",{"content":"' + b"a line of code\\n" * 500 + b'"}]'
    behind = []
    for num_messages in (0, 1):
        (made, script), before = (
            later_turn(agent, 1, Usage(4000, 0, 1), num_messages),
            later_turn(agent, 0, Usage()),
        )
        record(breaks, before, (made, replace(script, messages=(messages,))))
        found = made.prefix_break
        assert found is not None
        assert found.broken is not None
        behind.append(found.broken.shared_chars)
    assert behind[1] - behind[0] == pytest.approx(len(messages), rel=0.1)
