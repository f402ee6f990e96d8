"""Laws of recognition under random interleavings of many sessions."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from hypothesis import given, settings
from hypothesis import strategies as st

from policies.recognition.chains import Chain, block_chain, common
from policies.recognition.continuation import Call
from policies.recognition.conversations import Conversation
from policies.recognition.lineage import Lineage, Sighting

TOOLS = (b"bash" * 200,)
SYSTEM = b"You are an agent. " * 60


@dataclass
class Agent:
    """A client with a history; it knows who it is, lineage does not."""

    label: int
    messages: tuple[bytes, ...]
    num_calls: int = 0
    running: Sighting | None = None
    seen: list[Sighting] = field(default_factory=list)


class World:
    def __init__(self) -> None:
        self.lineage = Lineage()
        self.agents: list[Agent] = []
        self.num_answers = 0

    def act(self, what: str, which: int, task: int) -> None:
        if what == "start" or not self.agents:
            self.agents.append(Agent(len(self.agents), (b'["user",{"content":"task %d"}]' % task,)))
            return self.send(self.agents[-1])
        agent = self.agents[which % len(self.agents)]
        if agent.running is None:
            return None
        if what == "fork" and len(agent.messages) > 1:
            self.agents.append(Agent(len(self.agents), agent.messages))
            self.answer(agent)
            return self.extend(self.agents[-1])
        if what == "fail":
            self.lineage.answered(agent.running, False, (), 0.0)
            return self.send(agent)
        return self.answer(agent)

    def send(self, agent: Agent) -> None:
        call = Call(b"key", TOOLS, SYSTEM, agent.messages)
        if len(agent.seen) % 2:  # as a large prompt is: its texts are read beforehand
            call = replace(call, blocks=prepared(self.lineage, call))
        agent.running = self.lineage.recognise(call, 0.0)
        agent.seen.append(agent.running)
        parts = (SYSTEM, *TOOLS, *agent.messages)
        assert list(agent.running.blocks) == list(block_chain(b"key", parts)), (
            "reused blocks differ from fresh ones"
        )

    def answer(self, agent: Agent) -> None:
        assert agent.running is not None
        self.num_answers += 1
        mark = b"call_%012d" % self.num_answers
        self.lineage.answered(agent.running, True, (mark,), 0.0)
        self.extend(agent, mark)

    def extend(self, agent: Agent, mark: bytes = b"an answer from elsewhere") -> None:
        n = b"%d" % len(self.agents)
        agent.messages += (b'["assistant",' + mark + n, b'["tool",' + mark * 30)
        self.send(agent)


def prepared(lineage: Lineage, call: Call) -> Chain | None:
    steps = lineage.prepare(call)
    while True:
        try:
            next(steps)
        except StopIteration as ended:
            chain: Chain | None = ended.value
            return chain


steps = st.tuples(
    st.sampled_from(["start", "answer", "answer", "answer", "fail", "fork"]), st.integers(0, 50), st.integers(0, 2)
)


@settings(max_examples=150)
@given(st.lists(steps, max_size=80))
def test_no_two_agents_are_ever_merged_and_no_agent_is_split(actions: list[tuple[str, int, int]]) -> None:
    """Siblings with equal tasks, forks, failures and retries, in any order, with many requests in flight."""
    world = World()
    for what, which, task in actions:
        world.act(what, which, task)
    owners: dict[str, int] = {}
    for agent in world.agents:
        assert len({one.session_id for one in agent.seen}) == 1
        assert owners.setdefault(agent.seen[0].session_id, agent.label) == agent.label
    assert len({one.family_id for agent in world.agents for one in agent.seen}) <= 1


@settings(max_examples=100)
@given(st.lists(steps, max_size=40), st.integers(1, 5))
def test_memory_stays_bounded_and_the_index_holds_nothing_of_the_forgotten(
    actions: list[tuple[str, int, int]], limit: int
) -> None:
    world = World()
    world.lineage = Lineage(max_sessions=limit)
    for what, which, task in actions:
        world.act(what, which, task)
    strands = world.lineage._conversations
    alive: set[Conversation] = set(strands._by_age.values())
    assert len(alive) <= limit
    assert {*strands.standing, *strands.ended, *strands.recent, *strands.answered, *strands.sent} <= alive


@given(st.lists(st.integers(0, 9)), st.lists(st.integers(0, 9)))
def test_the_common_prefix_of_two_chains_is_found(one: list[int], other: list[int]) -> None:
    """Chains are cumulative: their links are made from all before."""
    chains = [[hash(tuple(part[: n + 1])) for n in range(len(part))] for part in (one, other)]
    plain = next(
        (n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other))
    )
    assert common(*chains) == plain


@given(st.binary(max_size=4_000), st.binary(max_size=4_000), st.integers(0, 8))
def test_a_chain_continued_from_known_blocks_equals_one_made_afresh(head: bytes, tail: bytes, keep: int) -> None:
    before = block_chain(b"key", [head])
    known = before[: min(keep, len(before))]
    assert block_chain(b"key", [head, tail], known) == block_chain(b"key", [head + tail])
