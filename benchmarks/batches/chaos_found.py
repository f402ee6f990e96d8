"""What came of a run of `benchmarks.chaos`, by the results and by what the engine was asked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.batches.recorded_engine import RecordedEngine


@dataclass
class Found:
    """What came of one run. The laws are that `lost`, `doubled`, `wrong`, `backward` and `run_twice` are 0."""

    way: str
    agents: int
    tool_calls: int
    gateway_kills: int = 0
    client_kills: int = 0
    results: int = 0
    lost: int = 0
    doubled: int = 0
    wrong: int = 0
    """Results with another output than their agent's, or tokens that are not those of its turns."""
    calls: int = 0
    repeated: int = 0
    """Calls that were asked before."""
    backward: int = 0
    """Calls for a turn before one that the agent had reached."""
    in_flight: int = 0
    """Calls that the engine was working on when something was killed, over all kills."""
    tokens: int = 0
    """Of every turn once."""
    tokens_repeated: int = 0
    """At most: of calls that were cut, as much as if they had been answered."""
    tokens_anew: int = 0
    """What would have been repeated, had each kill thrown away what was finished."""
    run_twice: int = 0
    """Calls of the tool that ran more than once."""
    unknown: int = 0
    """Calls of the tool that were not run, since they may have been on their way."""
    problems: list[str] = field(default_factory=list)


def checked(found: Found, engine: RecordedEngine, told: Sequence[tuple[int, Any, int]], runs: Path) -> Found:
    """With what results and engine say. `told`: agent, output and tokens of each result; `runs`: a line for each
    time that the tool ran."""
    times = Counter(agent for agent, _, _ in told)
    tokens_of: Counter[int] = Counter()
    for asked, tokens in engine.tokens.items():
        tokens_of[asked.agent] += tokens
    found.results = len(told)
    found.lost = sum(not times[agent] for agent in range(found.agents))
    found.doubled = sum(count - 1 for count in times.values())
    found.wrong = sum((output, tokens) != ({"agent": a}, tokens_of[a]) for a, output, tokens in told)
    found.calls = len(engine.num_asked)
    found.repeated = engine.num_asked.total() - found.calls
    found.backward = engine.num_backward
    found.tokens = sum(engine.tokens.values())
    found.tokens_repeated = sum((count - 1) * engine.tokens[asked] for asked, count in engine.num_asked.items())
    ran = Counter(runs.read_text().split())
    found.run_twice = sum(count > 1 for count in ran.values())
    found.unknown = found.tool_calls - len(ran)
    return found


def table(found: Sequence[Found]) -> str:
    rows: dict[str, Callable[[Found], object]] = {
        "agents": lambda f: f.agents,
        "gateway killed": lambda f: f.gateway_kills,
        "client killed": lambda f: f.client_kills,
        "results": lambda f: f.results,
        "results lost, double, wrong": lambda f: f"{f.lost}, {f.doubled}, {f.wrong}",
        "model calls needed": lambda f: f.calls,
        "calls at the engine when something was killed (more were on their way)": lambda f: f.in_flight,
        "calls repeated": lambda f: f.repeated,
        "calls for a turn that was finished": lambda f: f.backward,
        "tokens needed": lambda f: f"{f.tokens:,}",
        "tokens repeated, at most": partial(_repeated, lambda f: f.tokens_repeated),
        "tokens repeated if each kill began anew": partial(_repeated, lambda f: f.tokens_anew),
        "tool calls that ran twice": lambda f: f.run_twice,
        "tool calls told as of unknown outcome": lambda f: f.unknown,
    }
    lines = ["| | " + " | ".join(f.way for f in found) + " |", "|---" * (1 + len(found)) + "|"]
    lines += [f"| {name} | " + " | ".join(str(cell(f)) for f in found) + " |" for name, cell in rows.items()]
    return "\n".join(lines)


def _repeated(tokens_of: Callable[[Found], int], found: Found) -> str:
    return f"{tokens_of(found):,} ({tokens_of(found) / found.tokens:.0%})"
