"""Laws of the search for prefix breaks."""

from __future__ import annotations

import gc
from collections import deque
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.recognition.prefix_breaks import (
    CHECKED_ALL,
    CHECKED_EVERY,
    MAX_SPAN_CHARS,
    Break,
    Breaks,
    Found,
    kind_of,
)
from tests.policies.recognition.siblings import LINES, Agent, path_line, text

FAMILY = "family"
OWNER = 1


def saw(breaks: Breaks, agent: Agent, volatile: str = "", family: str = FAMILY, owner: int = OWNER) -> Found:
    found = breaks.saw(family, owner, agent.tools, agent.system(volatile), agent.messages())
    assert found is not None
    return found


def broken(breaks: Breaks, agent: Agent, volatile: str) -> Break:
    found = saw(breaks, agent, volatile).broken
    assert found is not None
    return found


@pytest.mark.parametrize("kind", LINES)
def test_every_sibling_with_a_line_of_its_own_is_found(kind: str) -> None:
    noise, breaks = Random(1), Breaks()
    agent = Agent(noise)
    saw(breaks, agent, LINES[kind](noise))
    for _ in range(100):
        found = broken(breaks, agent, LINES[kind](noise))
        assert (found.kind, found.part, found.num_spans) == (kind, "system", 1)
        assert found.at_chars == len("You are a careful agent.\n")


def test_siblings_that_differ_only_in_their_task_are_not() -> None:
    breaks, agent = Breaks(), Agent(Random(2))
    found = [saw(breaks, agent) for _ in range(101)]
    assert [one.broken for one in found] == [None] * 101


def test_a_break_that_gives_every_session_a_family_of_its_own_is_found_in_the_first_ones() -> None:
    noise, breaks = Random(3), Breaks()
    agent = Agent(noise, num_tools=0)
    found = [saw(breaks, agent, path_line(noise), family=f"family {n}") for n in range(101)]
    assert {one.family_id for one in found} == {"family 0"}
    assert all(one.broken for one in found[1:])


def test_other_agents_and_other_tenants_are_no_siblings() -> None:
    noise, breaks = Random(4), Breaks()
    agents = [Agent(noise) for _ in range(5)]
    for n, agent in enumerate(agents * 2):
        assert saw(breaks, agent, family=f"family {n}").broken is None
    found = saw(breaks, agents[0], path_line(noise), family="another", owner=OWNER + 1)
    assert (found.family_id, found.broken) == ("another", None)


def test_sessions_that_take_turns_in_a_few_places_share_their_prefixes() -> None:
    noise, breaks = Random(5), Breaks()
    agent = Agent(noise)
    places = [path_line(noise) for _ in range(3)]
    found = [saw(breaks, agent, place).broken is not None for place in places * 3]
    assert found == [False, True, True] + [False] * 6


@given(
    before=st.integers(0, 20),
    spans=st.lists(st.tuples(st.integers(1, 3), st.integers(30, 50)), min_size=1, max_size=3),
    seed=st.integers(0, 2**32),
    tools_first=st.booleans(),
)
def test_offsets_are_those_of_the_prompt(
    before: int, spans: list[tuple[int, int]], seed: int, tools_first: bool
) -> None:
    noise = Random(seed)

    def lines(count: int) -> list[str]:
        return text(noise, 10_000).split("\n")[:count]

    head, rests = lines(before), [lines(num_lines) for _, num_lines in spans]
    breaks = Breaks()
    tools = (b'{"name":"tool"}',)
    for _ in range(2):
        written = list(head)
        for (length, _), rest in zip(spans, rests, strict=True):
            written += lines(length) + rest
        system = "\n".join(written).encode()
        found = breaks.saw(FAMILY, OWNER, tools, system, (), tools_first)
    shared = [sum(len(line) + 1 for line in rest) for rest in rests]
    at = sum(len(line) + 1 for line in head)
    assert found is not None
    broken = found.broken
    assert broken is not None
    assert broken.at_chars - (len(tools[0]) + 1 if tools_first else 0) == at
    assert broken.span_chars == sum(len(line) + 1 for line in written[before : before + spans[0][0]])
    assert broken.num_spans == len(broken.gaps) == len(spans)
    assert broken.shared_chars == sum(shared) + (0 if tools_first else len(tools[0]) + 1)


def test_a_long_difference_is_another_task_not_a_break() -> None:
    noise, breaks = Random(6), Breaks()
    agent = Agent(noise)
    for _ in range(3):
        assert saw(breaks, agent, text(noise, 2 * MAX_SPAN_CHARS) + "\n").broken is None


def test_after_many_sessions_one_in_some_counts_for_all() -> None:
    breaks, agent = Breaks(), Agent(Random(7))
    weights = []
    for _ in range(CHECKED_ALL + 10 * CHECKED_EVERY):
        if found := breaks.saw(FAMILY, OWNER, agent.tools, agent.system(), agent.messages()):
            weights.append(found.weight)
    assert weights == [1] * CHECKED_ALL + [CHECKED_EVERY] * 10


def test_what_is_kept_is_bounded_and_holds_no_content() -> None:
    noise, breaks = Random(8), Breaks(max_families=3)
    for n in range(10):
        agent = Agent(noise)
        for _ in range(5):
            saw(breaks, agent, path_line(noise), family=f"family {n}")
    kept, todo = 0, deque(gc.get_referents(breaks))
    seen: set[int] = set()
    while todo:
        value = todo.popleft()
        if id(value) in seen or isinstance(value, type):
            continue
        seen.add(id(value))
        assert not isinstance(value, bytes)
        kept += value.__sizeof__()
        todo += gc.get_referents(value)
    assert kept < 3 * 32 * 1024


@pytest.mark.parametrize(
    ("span", "kind"),
    [
        (b"x-amz-request: 1", "header"),
        (b"Today's date: Fri Nov 21 2026", "date"),
        (b"now 2026-11-21 /srv/runs", "date"),
        (b"at 1789999999 it began", "date"),
        (b"  cwd: /home/me/2026-11-21/repo", "path"),
        (b"  cwd: ~/work/repo", "path"),
        (rb"cwd: C:\work\repo", "path"),
        (b"run 7f3a9c1e-12ab-4f00", "id"),
        (b"run_abcdefghijklmnop12", "id"),
        (b"git: c735e87 init", "id"),
        (b"agent 17", "number"),
        (b"You speak French.", "text"),
        (b"2026-11-21 " + b"long " * 200, "text"),
        (b"", "text"),
    ],
)
def test_a_kind_is_guessed_from_what_comes_first(span: bytes, kind: str) -> None:
    assert kind_of(span) == kind
