"""Fleets that users have, named and random: sessions of several families, of bounded and heavy-tailed lengths,
with tools, pauses, sub-agents and one-shot chats, on one or several engines. The simulator and the fleet benchmark
on real engines play the same ones."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from benchmarks.simulation.simulator import World
from benchmarks.simulation.workloads import AgentRun, ModelCall, Text
from gateway.embedded.model import EngineSpec
from policies.types import TurnKind

Draw: TypeAlias = Callable[[random.Random], float]


def fixed(value: float) -> Draw:
    return lambda _rng: value


def between(least: float, most: float) -> Draw:
    """Uniform."""
    return lambda rng: rng.uniform(least, most)


def one_of(*values: float) -> Draw:
    return lambda rng: rng.choice(values)


def lognormal(median: float, sigma: float, least: float, most: float) -> Draw:
    return lambda rng: min(most, max(least, median * math.exp(rng.gauss(0.0, sigma))))


def now_and_then(share: float, rare: Draw, usual: Draw) -> Draw:
    return lambda rng: rare(rng) if rng.random() < share else usual(rng)


# ---- arrivals

Arrivals: TypeAlias = Callable[[random.Random, int], list[float]]
"""(random numbers, number of sessions) -> times in order."""


def at_once(_rng: random.Random, num: int) -> list[float]:
    return [0.0] * num


def poisson(rate_per_s: float) -> Arrivals:
    def times(rng: random.Random, num: int) -> list[float]:
        at, found = 0.0, []
        for _ in range(num):
            at += rng.expovariate(rate_per_s)
            found.append(at)
        return found

    return times


def bursts(size: int, every_s: float) -> Arrivals:
    return lambda _rng, num: [every_s * (number // size) for number in range(num)]


# ---- sessions


@dataclass(frozen=True, slots=True)
class SubAgents:
    """Sessions that another one starts after one of its answers, and waits for."""

    share: float
    """Of the sessions that start some."""
    num: Draw
    turns: Draw
    shared_tokens: int | None = None
    """Length of their own family's prefix. None: they continue the parent's prompt."""


@dataclass(frozen=True, slots=True)
class Population:
    """Sessions of one sort; tokens and seconds."""

    num_sessions: int
    turns: Draw = fixed(4)
    label: str = "agent"
    num_families: int = 1
    shared_tokens: int = 2_008
    first_tokens: Draw = fixed(400)
    append_tokens: Draw = fixed(400)
    """Tool result that a turn adds, beyond the answer before it."""
    output_tokens: Draw = between(72, 168)
    gap_s: Draw = between(0.3, 0.8)
    arrivals: Arrivals = at_once
    begins_at: float = 0.0
    most_tokens: int = 1 << 30
    """A session ends before its context passes it."""
    sub_agents: SubAgents | None = None

    def draw(self, rng: random.Random) -> list[AgentRun]:
        times = self.arrivals(rng, self.num_sessions)
        return [self._run(f"{self.label}-{n}", n, self.begins_at + at, rng) for n, at in enumerate(times)]

    def _run(self, name: str, number: int, at: float, rng: random.Random) -> AgentRun:
        family = f"{self.label}.{number % self.num_families}"
        calls = _calls(self, name, Text((self.shared_tokens, family)), rng)
        if self.sub_agents is not None and len(calls) > 1 and rng.random() < self.sub_agents.share:
            place = rng.randrange(len(calls) - 1)
            children = _children(self, self.sub_agents, name, family, calls[place], rng)
            calls[place] = replace(calls[place], children=children)
        return AgentRun(name, family, at, tuple(calls), self.label, first_kind=TurnKind.SINGLE)


def _calls(population: Population, name: str, prefix: Text, rng: random.Random) -> list[ModelCall]:
    """The calls of one session behind a prefix."""
    prompt_tokens = prefix.parts[-1][0] + max(1, round(population.first_tokens(rng)))
    sizes: list[tuple[int, int, float]] = []
    for _ in range(max(1, round(population.turns(rng)))):
        output_tokens = max(1, round(population.output_tokens(rng)))
        if sizes and prompt_tokens + output_tokens > population.most_tokens:
            break
        sizes.append((prompt_tokens, output_tokens, population.gap_s(rng)))
        prompt_tokens += output_tokens + max(1, round(population.append_tokens(rng)))
    text = prefix.upto(prefix.parts[-1][0], (sizes[-1][0] + sizes[-1][1], name))
    return [ModelCall(text, *size) for size in sizes]


def _children(
    population: Population, asked: SubAgents, name: str, family: str, call: ModelCall, rng: random.Random
) -> tuple[AgentRun, ...]:
    children = []
    for number in range(round(asked.num(rng))):
        own, prefix, family_id = f"{name}/{number}", call.text.upto(call.prompt_tokens), family
        if asked.shared_tokens is not None:
            family_id = f"{population.label}.sub"
            prefix = Text((asked.shared_tokens, family_id))
        calls = _calls(replace(population, turns=asked.turns), own, prefix, rng)
        child = AgentRun(own, family_id, 0.0, tuple(calls), f"{population.label}/sub", first_kind=TurnKind.SINGLE)
        children.append(replace(child, parent_id=name, names_parent=asked.shared_tokens is None))
    return tuple(children)


# ---- fleets


@dataclass(frozen=True, slots=True)
class AgentFleet:
    """Populations against engines of one size."""

    populations: Sequence[Population]
    world: World
    note: str = ""

    def draw(self, seed: int) -> list[AgentRun]:
        """The sessions of one fleet; equal seeds give equal fleets."""
        rng = random.Random(seed)
        return [run for population in self.populations for run in population.draw(rng)]


def _world(num_blocks: int, num_replicas: int = 1) -> World:
    """Dynamo with its mocker, as the fleet benchmark runs it on two cores: texts of 4.5 characters per token, and
    a probe at the start whose sample has 3.24."""
    return World(
        EngineSpec(num_blocks),
        num_replicas,
        chars_per_token=4.5,
        sample_chars_per_token=3.24,
        frontend_s=0.007,
    )


BASE = _world(2_500)
"""40,000 tokens of KV cache: about 20 of the 40 sessions of the base fleet."""
R_PER_S = 40 / 45.0
"""Sessions per second that the base engine finishes when all go straight."""
HEAVY_TURNS = lognormal(4.0, 0.9, 1, 30)
CHAT = Population(60, fixed(1), "chat", 1, 60, between(40, 60), output_tokens=between(60, 120))

FLEETS: dict[str, AgentFleet] = {
    "ctl": AgentFleet([Population(40)], _world(8_192), "everything fits"),
    "base": AgentFleet([Population(40)], BASE),
    "b43": AgentFleet([Population(43)], BASE),
    "n80": AgentFleet([Population(80)], BASE),
    "n120": AgentFleet([Population(120)], BASE),
    "mixed": AgentFleet([Population(40, one_of(2, 4, 8))], BASE),
    "declared": AgentFleet([Population(40, one_of(2, 4, 8))], replace(BASE, declares_turns=True)),
    "30x8": AgentFleet([Population(30, fixed(8))], BASE),
    "long": AgentFleet([Population(40, output_tokens=between(400, 700))], BASE, "long answers"),
    "slow": AgentFleet([Population(40, gap_s=between(4, 9))], BASE, "slow tools"),
    "little": AgentFleet([Population(40)], _world(1_250), "a little pool"),
    "w2": AgentFleet([Population(40)], _world(1_250, 2)),
    "w4": AgentFleet([Population(40)], _world(900, 4)),
    "w4x80": AgentFleet([Population(80)], _world(900, 4)),
    "sub": AgentFleet([Population(24, sub_agents=SubAgents(0.6, between(1, 3), fixed(3)))], BASE),
    "subf": AgentFleet(
        [Population(16, fixed(5), shared_tokens=10_000, sub_agents=SubAgents(0.8, between(1, 3), fixed(3), 500))],
        BASE,
        "parents with a prompt of 40 KB, sub-agents with one of 2 KB",
    ),
    "cpu16": AgentFleet(
        [
            Population(
                16,
                first_tokens=fixed(600),
                append_tokens=fixed(600),
                output_tokens=between(36, 84),
                gap_s=fixed(0.5),
            )
        ],
        _world(1_200),
    ),
    "open1.15": AgentFleet([Population(200, arrivals=poisson(1.15 * R_PER_S))], BASE),
    "open1.5": AgentFleet([Population(200, arrivals=poisson(1.5 * R_PER_S))], BASE),
    "heavy": AgentFleet([Population(40, HEAVY_TURNS, gap_s=lognormal(2.0, 1.5, 0.2, 60))], BASE),
    "classes": AgentFleet(
        [
            Population(
                60,
                fixed(8),
                "bounded",
                1,
                800,
                between(100, 400),
                lognormal(500, 0.6, 50, 3_000),
                lognormal(40, 0.6, 5, 400),
                lognormal(1, 1, 0.1, 30),
                poisson(0.35),
            ),
            Population(
                60,
                lognormal(5, 1.3, 1, 100),
                "tailed",
                1,
                800,
                between(100, 400),
                lognormal(90, 1, 5, 2_000),
                lognormal(21, 1, 2, 200),
                lognormal(1, 1, 0.1, 30),
                poisson(0.35),
                most_tokens=15_000,
            ),
        ],
        _world(2_500),
        "two classes, one bounded and one with a heavy tail",
    ),
    "bursts": AgentFleet([Population(160, arrivals=bursts(20, 30))], _world(8_192), "bursts that fit"),
    "burst30": AgentFleet([Population(120, arrivals=bursts(30, 30))], BASE, "bursts that do not fit"),
    "chat": AgentFleet([Population(40), replace(CHAT, arrivals=poisson(2.0))], BASE, "chats of a new family"),
    "chatwarm": AgentFleet(
        [Population(40, begins_at=20.0), replace(CHAT, arrivals=poisson(1.0))], BASE, "chats that are known"
    ),
    "giant": AgentFleet(
        [Population(30), Population(1, fixed(6), "giant", 1, 2_008, fixed(20_000), fixed(1_500))], BASE
    ),
    "pauses": AgentFleet(
        [Population(40, gap_s=now_and_then(0.35, between(15, 60), between(0.3, 0.8)))], BASE, "human pauses"
    ),
    "fam4lo": AgentFleet(
        [Population(80, num_families=8, shared_tokens=1_000, arrivals=poisson(0.8))], _world(900, 4)
    ),
    "fam4hi": AgentFleet(
        [Population(160, num_families=8, shared_tokens=1_000, arrivals=poisson(2.0))], _world(900, 4)
    ),
}


CODING = AgentFleet(
    [
        Population(
            500,
            lognormal(43, 0.5, 4, 150),
            "coding",
            4,
            20_000,
            lognormal(3_000, 0.6, 200, 20_000),
            lognormal(1_300, 1.1, 50, 30_000),
            lognormal(444, 0.5, 20, 3_000),
            lognormal(2.0, 1.2, 0.1, 60),
            poisson(0.3),
            most_tokens=250_000,
        )
    ],
    _world(62_500, 8),
)
"""Coding agents on eight large engines: a median of 43 turns, and of 142,000 tokens at the end (vLLM issue 57103).
A simulation takes minutes."""


# ---- random shapes


def random_fleet(number: int) -> AgentFleet:
    """The shape of that number: equal numbers give equal shapes. Two of three have a demand of 1.2 to 4 times the
    capacity, counted as the union of the largest contexts of all sessions that are likely to be there at once."""
    rng = random.Random(f"shape {number}")
    num_workers = rng.choice((1, 1, 1, 1, 2, 4))
    pool_tokens = round(_log_uniform(rng, 12_000, 200_000))
    most_tokens = round(rng.uniform(0.15, 0.5) * pool_tokens)
    population = _random_population(rng, pool_tokens, most_tokens)
    demand = _log_uniform(rng, 1.2, 4.0) if number % 3 else _log_uniform(rng, 0.3, 1.2)
    sessions = population.draw(random.Random(number))[:60]
    private = sum(run.peak_tokens for run in sessions) / len(sessions) - population.shared_tokens
    shared = population.num_families * population.shared_tokens
    num = (demand * num_workers * pool_tokens - shared * num_workers) / max(1.0, private)
    population = replace(population, num_sessions=min(160, max(4, round(num))))
    population = replace(population, arrivals=_random_arrivals(rng, population, sessions))
    populations = [population]
    if rng.random() < 0.15:
        rate = _log_uniform(rng, 0.2, 3.0)
        populations.append(replace(CHAT, num_sessions=rng.randint(10, 60), arrivals=poisson(rate)))
    return AgentFleet(populations, _world(pool_tokens // 16, num_workers), f"demand {demand:.1f}")


def _random_population(rng: random.Random, pool_tokens: int, most_tokens: int) -> Population:
    shared_tokens = round(min(0.5 * most_tokens, _log_uniform(rng, 60, 20_000)))
    room_tokens = most_tokens - shared_tokens
    turns = rng.choice(
        (fixed(rng.randint(2, 12)), one_of(2, 4, 8), between(1, 12), lognormal(rng.uniform(2, 6), 0.9, 1, 40))
    )
    gap_median_s, sigma = _log_uniform(rng, 0.1, 12.0), rng.choice((0.0, 0.4, 1.0, 1.5))
    gap_s = lognormal(gap_median_s, sigma, 0.05, 90)
    if rng.random() < 0.15:
        gap_s = now_and_then(rng.uniform(0.1, 0.5), between(15, 60), gap_s)
    first, append = _log_uniform(rng, 50, 4_000), _log_uniform(rng, 50, 2_000)
    output, spread = _log_uniform(rng, 15, 600), rng.choice((0.0, 0.3, 0.8))
    return Population(
        60,
        turns,
        num_families=rng.choice((1, 1, 1, 2, 4, 8)) if shared_tokens * 8 < pool_tokens / 4 else 1,
        shared_tokens=shared_tokens,
        first_tokens=lognormal(first, spread, 10, max(20, room_tokens / 2)),
        append_tokens=lognormal(append, spread, 10, max(20, room_tokens / 3)),
        output_tokens=lognormal(output, 0.4, 4, 1_500),
        gap_s=gap_s,
        most_tokens=most_tokens,
        sub_agents=_random_sub_agents(rng, shared_tokens) if rng.random() < 0.2 else None,
    )


def _random_sub_agents(rng: random.Random, shared_tokens: int) -> SubAgents:
    own = rng.choice((None, round(_log_uniform(rng, 60, max(100, shared_tokens)))))
    return SubAgents(rng.uniform(0.2, 0.8), between(1, 3), between(1, 4), own)


def _random_arrivals(rng: random.Random, population: Population, sessions: Sequence[AgentRun]) -> Arrivals:
    """All at once, at random, or in bursts, within half of the time that the sessions take in any case."""
    work_s = sum(_least_s(run, population.shared_tokens) for run in sessions) / len(sessions)
    alone_s = sum(sum(call.gap_s + 0.02 * call.output_tokens for call in run.calls) for run in sessions) / len(
        sessions
    )
    within_s = rng.uniform(0.05, 0.5) * (population.num_sessions * work_s + alone_s)
    num_bursts = rng.randint(2, 6)
    size = max(2, population.num_sessions // num_bursts)
    spread = poisson(population.num_sessions / within_s), bursts(size, within_s / num_bursts)
    return rng.choice((at_once, at_once, *spread))


def _least_s(run: AgentRun, shared_tokens: int) -> float:
    """Time in which an engine computes the session's own tokens once."""
    return EngineSpec(1).timing.prefill_s(run.peak_tokens - shared_tokens)


def _log_uniform(rng: random.Random, least: float, most: float) -> float:
    return math.exp(rng.uniform(math.log(least), math.log(most)))
