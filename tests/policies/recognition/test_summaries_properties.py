"""Laws of compacted histories under random interleavings, and bounds of what is kept for them."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from policies.recognition.conversations import Conversation
from policies.recognition.lineage import Lineage, Sighting
from policies.recognition.prompts import SummaryRequest
from policies.recognition.summaries import Summaries
from tests.policies.recognition.compacting import Agent, Desk

steps = st.tuples(
    st.sampled_from(["start", "turn", "turn", "fail", "ask", "restart", "restart"]),
    st.integers(0, 9),
    st.integers(0, 2),
)


@settings(max_examples=200)
@given(st.lists(steps, max_size=60), st.sampled_from(["same words", "own words", "transcripts cut"]))
def test_no_two_agents_are_merged_and_none_is_split_whose_words_are_its_own(
    actions: list[tuple[str, int, int]], world: str
) -> None:
    """Siblings of one task in one directory, in any order; their words may be the same by chance."""
    desk = Desk()
    agents: list[Agent] = []
    seen: list[set[str]] = []
    waiting: dict[int, Sighting] = {}
    for step, (what, which, word) in enumerate(actions):
        n = which % len(agents) if agents else 0
        text = f"The words of {word if world == 'same words' else step}."
        if what == "start" or not agents:
            agents.append(Agent(desk, most_messages=2 if world == "transcripts cut" else 100))
            seen.append({agents[-1].turn(text).session_id})
        elif n in waiting:
            if what == "restart":
                desk.end(waiting.pop(n), text)
                agents[n].restart_from(text)
                seen[n].add(agents[n].turn(f"{text} And so on.").session_id)
        elif what == "ask":
            waiting[n] = agents[n].ask_for_summary()
        elif what in ("turn", "fail"):
            seen[n].add(agents[n].turn(text if what == "turn" else None).session_id)
    for n, ids in enumerate(seen):
        assert not any(ids & other for other in seen[:n]), "merged"
        assert len(ids) == 1 or world != "own words", "split"


def test_the_index_of_clues_holds_nothing_of_the_forgotten() -> None:
    desk = Desk(Lineage(max_sessions=2))
    for n in range(5):
        Agent(desk, task=f"Task number {n} of them").turn(f"I do what is said, {n} times.")
    strands = desk.lineage._conversations
    held: set[Conversation] = set(strands.clued)
    assert held == set(strands._by_age.values())


def test_summaries_are_kept_in_bounded_number() -> None:
    summaries = Summaries(limit=3)
    for n in range(10):
        summaries.keep(SummaryRequest(b"key", 0.0, {}), b"a summary of some length, number %d" % n)
    summaries.keep(SummaryRequest(b"key", 0.0, {}), b"short")
    assert len(summaries) == 3
