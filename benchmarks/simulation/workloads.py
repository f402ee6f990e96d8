"""Fleets of agents for the simulator: runs that share prefixes, grow, wait for tools, and start sub-agents."""

from __future__ import annotations

import math
import random
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b

from gateway.cli.demo_fleet import FleetShape, PlannedSession, draw
from policies.types import TurnKind

_INDEX_BITS = 24


class Text:
    """What a prompt is made of: parts, each up to a token position, by the name of its author. Two texts agree
    exactly as far as the names and ends of their parts do."""

    def __init__(self, *parts: tuple[int, str]) -> None:
        """`parts`: (end in tokens, author), ends ascending."""
        self.parts = parts
        self._chains: dict[float, array[int]] = {}

    def upto(self, num_tokens: int, *more: tuple[int, str]) -> Text:
        """The first tokens of this text, then other parts."""
        kept = []
        for end, author in self.parts:
            kept.append((min(end, num_tokens), author))
            if end >= num_tokens:
                break
        return Text(*kept, *more)

    def shared(self, other: Text) -> int:
        """Tokens that two texts have in common."""
        common = 0
        for (end, author), (other_end, other_author) in zip(self.parts, other.parts, strict=False):
            if author != other_author:
                break
            common = min(end, other_end)
            if end != other_end:
                break
        return common

    def chain(self, block_tokens: float) -> array[int]:
        """One id per whole block of all of the text; a block belongs to the author of its last token."""
        chain = self._chains.get(block_tokens)
        if chain is None:
            chain = self._chains[block_tokens] = array("Q")
            for end, author in self.parts:
                first = int.from_bytes(blake2b(author.encode(), digest_size=5).digest()) << _INDEX_BITS
                chain.extend(range(first + len(chain), first + int(end / block_tokens)))
        return chain


@dataclass(frozen=True, slots=True)
class ModelCall:
    """One model call and what follows it."""

    text: Text
    """Of all of its history, this prompt and later ones."""
    prompt_tokens: int
    output_tokens: int
    gap_s: float = 0.0
    """Tool time after the answer."""
    children: tuple[AgentRun, ...] = ()
    """Sub-agents that the answer starts; the next call waits for all of them and for the tool."""


@dataclass(frozen=True, slots=True)
class AgentRun:
    """One session. `arrives_at` counts from the start of the fleet, a sub-agent's from its parent's answer."""

    id: str
    family_id: str
    arrives_at: float
    calls: tuple[ModelCall, ...]
    label: str = ""
    """Class in the report."""
    tenant: str = "t"
    first_kind: TurnKind = TurnKind.AGENT
    """SINGLE for clients without tools: identity cannot tell their first call from a lone question."""
    side: tuple[ModelCall, ...] = ()
    """Requests for titles and the like, sent together with the first call."""
    parent_id: str | None = None
    names_parent: bool = True
    """Whether a gateway learns the parent: from a header, or since the prompt continues the parent's."""
    deadline_s: float | None = None
    """Time after which it does not want a call to begin any more. None: it says none."""

    @property
    def peak_tokens(self) -> int:
        return max(call.prompt_tokens + call.output_tokens for call in self.calls)


def everyone(runs: Sequence[AgentRun]) -> Iterator[AgentRun]:
    """The runs and all of their sub-agents."""
    for run in runs:
        yield run
        for call in run.calls:
            yield from everyone(call.children)


def plain(shape: FleetShape, seed: int) -> list[AgentRun]:
    """The fleet that the demo and the fleet benchmark play with clients that offer no tools."""
    return [_plain(session) for session in draw(shape, seed)]


def _plain(session: PlannedSession) -> AgentRun:
    last = session.turns[-1]
    text = Text((session.shared_tokens, session.family_id), (last.prompt_tokens + last.output_tokens, session.id))
    calls = tuple(ModelCall(text, turn.prompt_tokens, turn.output_tokens, turn.gap_s) for turn in session.turns)
    return AgentRun(session.id, session.family_id, session.arrives_at, calls, first_kind=TurnKind.SINGLE)


@dataclass(frozen=True, slots=True)
class Kind:
    """A class of agent runs; tokens and seconds. Lognormals are given by median and sigma."""

    name: str
    turns: tuple[float, float]
    most_turns: int
    shared_tokens: int
    """Prompt prefix that all of the class have in common."""
    private_tokens: tuple[int, int]
    append_tokens: tuple[float, float]
    output_tokens: tuple[float, float] = (214.0, 1.34)
    gap_s: tuple[float, float] = (0.33, 1.2)
    most_append_tokens: int = 30_000
    most_context_tokens: int = 1 << 30
    """A run ends before its context passes it."""


BOUNDED = Kind("bounded", (10, 0.15), 16, 8_000, (1_000, 4_000), (5_000, 0.6), (400, 0.6), (1.0, 1.0))
"""After Continuum's SWE-bench runs: about 10 turns and 70k tokens (facts, scheduling 5)."""
HEAVY = Kind("heavy", (5, 1.3), 100, 8_000, (1_000, 4_000), (900, 1.0), (214, 1.0), (1.0, 1.0), 20_000, 150_000)
"""Most are short, few are very long: after k turns, the longer the more are to come."""


def of_kind(kind: Kind, name: str, arrives_at: float, rng: random.Random, scale: float = 1.0) -> AgentRun:
    """One run of a class, all token counts times `scale`."""
    num_turns = min(kind.most_turns, max(1, round(_lognormal(rng, *kind.turns))))
    shared_tokens = round(kind.shared_tokens * scale)
    prompt_tokens = shared_tokens + round(rng.uniform(*kind.private_tokens) * scale)
    sizes = []
    for _ in range(num_turns):
        output_tokens = max(1, round(_lognormal(rng, *kind.output_tokens) * scale))
        append_tokens = min(kind.most_append_tokens, _lognormal(rng, *kind.append_tokens)) * scale
        sizes.append((prompt_tokens, output_tokens, _lognormal(rng, *kind.gap_s)))
        prompt_tokens += output_tokens + max(1, round(append_tokens))
        if prompt_tokens > kind.most_context_tokens * scale:
            break
    text = Text((shared_tokens, kind.name), (sizes[-1][0] + sizes[-1][1], name))
    return AgentRun(name, kind.name, arrives_at, tuple(ModelCall(text, *size) for size in sizes), kind.name)


def mixed(
    kinds: Sequence[Kind], num_runs: int, seed: int, rate_per_s: float | None = None, scale: float = 1.0
) -> list[AgentRun]:
    """Runs of the classes in turn; Poisson arrivals, or all at once."""
    rng = random.Random(seed)
    runs, at = [], 0.0
    for number in range(num_runs):
        at += 0.0 if rate_per_s is None else rng.expovariate(rate_per_s)
        kind = kinds[number % len(kinds)]
        runs.append(of_kind(kind, f"{kind.name}-{number}", at, rng, scale))
    return runs


def siblings(num_runs: int, share: float, peak_tokens: int, seed: int, num_turns: int = 6) -> list[AgentRun]:
    """All at once, of one family whose shared prefix is that share of a run's largest context."""
    rng = random.Random(seed)
    shared_tokens = round(share * peak_tokens)
    step_tokens = (peak_tokens - shared_tokens) // num_turns
    runs = []
    for number in range(num_runs):
        name, prompt_tokens, sizes = f"s{number}", shared_tokens, []
        for _ in range(num_turns):
            added_tokens = round(step_tokens * rng.uniform(0.75, 1.25))
            output_tokens = added_tokens // 4
            prompt_tokens += added_tokens - output_tokens
            sizes.append((prompt_tokens, output_tokens, rng.uniform(0.3, 0.8)))
            prompt_tokens += output_tokens
        text = Text((shared_tokens, "siblings"), (prompt_tokens, name))
        runs.append(AgentRun(name, "siblings", 0.0, tuple(ModelCall(text, *size) for size in sizes)))
    return runs


def with_children(runs: Sequence[AgentRun], share: float, seed: int, num_turns: int = 3) -> list[AgentRun]:
    """That share of the runs starts 1-4 sub-agents after one of its calls; they share its prefix at the fork."""
    rng = random.Random(seed)
    return [_forking(run, rng, num_turns) if rng.random() < share and len(run.calls) > 1 else run for run in runs]


def _forking(run: AgentRun, rng: random.Random, num_turns: int) -> AgentRun:
    at = rng.randrange(len(run.calls) - 1)
    call = run.calls[at]
    fork_tokens = call.prompt_tokens
    children = []
    for number in range(rng.randint(1, 4)):
        name, prompt_tokens, sizes = f"{run.id}/{number}", fork_tokens, []
        for _ in range(num_turns):
            prompt_tokens += rng.randint(100, 400)
            output_tokens = rng.randint(50, 150)
            sizes.append((prompt_tokens, output_tokens, rng.uniform(0.3, 0.8)))
            prompt_tokens += output_tokens
        text = call.text.upto(fork_tokens, (prompt_tokens, name))
        calls = tuple(ModelCall(text, *size) for size in sizes)
        children.append(
            AgentRun(name, run.family_id, 0.0, calls, f"{run.label}/child", run.tenant, parent_id=run.id)
        )
    forked = replace(call, children=tuple(children))
    return replace(run, calls=(*run.calls[:at], forked, *run.calls[at + 1 :]))


def _lognormal(rng: random.Random, median: float, sigma: float) -> float:
    return median * math.exp(rng.gauss(0.0, sigma))
