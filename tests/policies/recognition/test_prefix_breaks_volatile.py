"""Laws of learning what is volatile."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from policies.recognition.chains import block_chain, common
from policies.recognition.prefix_breaks import LEARNED_AFTER, Breaks, Cuts, Volatile
from tests.policies.recognition.siblings import LINES, Agent, path_line

OWNER = 1
KINDS = frozenset(LINES)


class Sent:
    """Sessions that begin one after the other, each with its volatile lines cut as far as they are known."""

    def __init__(self, agent: Agent, kinds: frozenset[str] = KINDS) -> None:
        self.agent = agent
        self.breaks, self.volatile = Breaks(), Volatile(kinds)

    def begin(self, system: bytes) -> bytes:
        """The parts that are cut out of a system text."""
        sent = without(system, self.volatile.cuts(OWNER, system, is_first=True))
        found = self.breaks.saw("family", OWNER, self.agent.tools, sent, self.agent.messages())
        if found is not None and found.broken is not None:
            for gap in found.broken.gaps:
                self.volatile.learn(gap)
        return sent


def without(text: bytes, cuts: Cuts) -> bytes:
    for start, end in reversed(cuts):
        text = text[:start] + text[end:]
    return text


def hit_rate(systems: list[bytes], agent: Agent) -> float:
    """Share of the blocks of all prompts but the first that an earlier sibling has sent."""
    chains = [block_chain(b"key", (system, *agent.tools, *agent.messages())) for system in systems]
    hits = [max(common(chain, earlier) for earlier in chains[:n]) for n, chain in enumerate(chains) if n]
    return sum(hits) / sum(map(len, chains[1:]))


@pytest.mark.parametrize("kind", LINES)
def test_cutting_a_line_near_the_top_lets_siblings_share_the_rest(kind: str) -> None:
    noise = Random(1)
    agent = Agent(noise)
    systems = [agent.system(LINES[kind](noise)) for _ in range(100)]
    sent = Sent(agent)
    cut = [sent.begin(system) for system in systems]
    assert hit_rate(systems, agent) < 0.1
    assert hit_rate(cut, agent) > 0.9
    assert cut[-1] == agent.system()


def test_several_places_are_cut_and_so_is_the_end() -> None:
    noise = Random(2)
    agent = Agent(noise)
    stable = agent.rules

    def system() -> bytes:
        id_ = f"Id {noise.getrandbits(64):016x}"
        return f"{path_line(noise)}{stable}\n{id_}\n{stable[:3000]}\n{path_line(noise)}".encode()

    sent = Sent(agent)
    for _ in range(LEARNED_AFTER + 1):
        sent.begin(system())
    assert sent.begin(system()) == f"{stable}\n{stable[:3000]}\n".encode()


def test_what_has_changed_less_often_stays() -> None:
    noise = Random(3)
    agent = Agent(noise)
    sent = Sent(agent)
    for _ in range(LEARNED_AFTER):
        release = agent.system(path_line(noise))
        assert sent.begin(release) == release


@pytest.mark.parametrize("line", [path_line, lambda noise: f"{'You speak ' * 60}{noise.random()}\n"])
def test_only_kinds_that_are_named_are_cut(line: Callable[[Random], str]) -> None:
    noise = Random(4)
    agent = Agent(noise)
    sent = Sent(agent, frozenset(("date", "id")))
    for _ in range(10):
        system = agent.system(line(noise))
        assert sent.begin(system) == system


def test_all_turns_of_a_session_are_cut_alike() -> None:
    noise = Random(5)
    agent = Agent(noise)
    sent = Sent(agent)
    begun_before = agent.system(path_line(noise))
    sent.begin(begun_before)
    for _ in range(LEARNED_AFTER):
        sent.begin(agent.system(path_line(noise)))
    begun_after = agent.system(path_line(noise))
    sent.begin(begun_after)
    volatile = sent.volatile
    assert volatile.cuts(OWNER, begun_before, is_first=False) == ()
    assert without(begun_after, volatile.cuts(OWNER, begun_after, is_first=False)) == agent.system()
    assert volatile.cuts(OWNER, agent.system(path_line(noise)), is_first=False) == ()


def test_what_one_tenant_shows_changes_nothing_for_another() -> None:
    noise = Random(6)
    agent = Agent(noise)
    sent = Sent(agent)
    for _ in range(10):
        sent.begin(agent.system(path_line(noise)))
    assert sent.volatile.cuts(OWNER + 1, agent.system(path_line(noise)), is_first=True) == ()
