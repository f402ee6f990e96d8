"""What prefix breaks cost recorded agents, what moving volatile spans saves, and what looking for them takes."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, cast

import orjson

from benchmarks.clients.trace_replay import Gateway
from gateway.dialects import BY_PATH
from gateway.dialects.base import Script
from gateway.exchange import Exchange, Timings
from gateway.rewrite import Rewrite, owner_of
from gateway.settings import Identity
from gateway.transport import Request
from policies.breaks import Breaks
from policies.chains import Chain, block_chain, common
from policies.types import TurnKind
from tests.policies.siblings import Agent, path_line
from tests.traces import client_names, read_trace

RESULTS = Path(__file__).parent / "results"
HEAD = """# Prefix breaks

`python -m benchmarks.prefix_breaks`

First prompts of recorded agents, most in a directory of their own, in the order of the recordings. *Shared*: part
of their 512-character blocks that an earlier one has sent (system text before tools); the first session of each
counts as a miss. *Moved*: learned spans are moved behind the first user message (`identity.volatile_spans: move`),
which takes three breaks to begin.

| client | first prompts | breaks | kinds | characters wasted each | shared | moved | the last five |
|---|---|---|---|---|---|---|---|
"""


@dataclass
class Shared:
    """Blocks of first prompts, and those that an earlier one had sent."""

    chains: list[Chain] = field(default_factory=list)
    rates: list[tuple[int, int]] = field(default_factory=list)

    def add(self, script: Script) -> None:
        chain = block_chain(b"key", (script.system, *script.tools, *script.messages))
        self.rates.append((max((common(chain, earlier) for earlier in self.chains), default=0), len(chain)))
        self.chains.append(chain)

    def rate(self, last: int = 0) -> float:
        rates = self.rates[-last:]
        return sum(hits for hits, _ in rates) / max(1, sum(size for _, size in rates))


def first_prompts(client: str) -> Iterator[tuple[Exchange, str]]:
    """First turns and their families."""
    gateway = Gateway(with_headers=True)
    for request in read_trace(client):
        dialect = BY_PATH.get(request.path)
        if dialect is None or not dialect.is_conversation:
            continue
        who = gateway.send(request)
        if who.turn_index == 0 and who.kind is not TurnKind.SIDE and not who.is_retry:
            raw = orjson.dumps(request.body)
            yield (
                Exchange("x", cast(Request, None), dialect, "", Timings(0.0), raw, orjson.loads(raw)),
                who.family_id,
            )


def row(client: str) -> str:
    defaults = Identity()
    rewrite = Rewrite(True, defaults.volatile_patterns, defaults.volatile_learned)
    as_sent, as_moved = Breaks(), Breaks()
    shared, moved = Shared(), Shared()
    broken = []
    for exchange, family in first_prompts(client):
        for is_moved, breaks, blocks in ((False, as_sent, shared), (True, as_moved, moved)):
            if is_moved:
                rewrite.apply(exchange)
            script = exchange.dialect.script(exchange.body)
            blocks.add(script)
            found = breaks.saw(family, owner_of(exchange), script.tools, script.system, script.messages)
            if found is not None and is_moved:
                rewrite.learn(found)
            elif found is not None and found.broken is not None:
                broken.append(found.broken)
    wasted = sum(one.shared_chars for one in broken) // max(1, len(broken))
    kinds = ", ".join(sorted({f"{one.kind} in {one.part}" for one in broken}))
    return (
        f"| {client} | {len(shared.rates)} | {len(broken)} | {kinds} | {wasted:,}"
        f" | {shared.rate():.2f} | {moved.rate():.2f} | {shared.rate(5):.2f} -> {moved.rate(5):.2f} |"
    )


def cost_us(size: int, *, is_family_known: bool, is_broken: bool, rounds: int = 200) -> list[float]:
    """Microseconds of looking at one first prompt of about `size` characters, sorted."""
    noise, breaks = Random(7), Breaks()  # of which the first CHECKED_ALL are all looked at
    agent = Agent(noise, num_tools=max(0, (size - 12_000) // 1_000))
    spent = []
    for number in range(rounds):
        # New objects each time, as they come from a parser: Python remembers the hash of a text.
        prompt: Sequence[Any] = orjson.loads(
            orjson.dumps(
                [part.decode() for part in (agent.system(path_line(noise) if is_broken else ""), *agent.tools)]
            )
        )
        system, *tools = [part.encode() for part in prompt]
        messages = agent.messages()
        family = "family" if is_family_known else f"family {number}"
        begun = time.perf_counter()
        breaks.saw(family, 1, tools, system, messages)
        spent.append((time.perf_counter() - begun) * 1e6)
    return sorted(spent)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--out", type=Path, default=RESULTS / "prefix-breaks.md")
    out: Path = arguments.parse_args().out
    lines = [row(client) for client in client_names()]
    costs = []
    for what, known, broken in (
        ("no break", True, False),
        ("a break", True, True),
        ("a break that makes a family of each session", False, True),
    ):
        spent = cost_us(60_000, is_family_known=known, is_broken=broken)
        costs.append(f"| {what} | {spent[0]:.0f} | {spent[len(spent) // 2]:.0f} |")
    cost_head = "\n\n| a first prompt of 60 kB with | least, us | median, us (busy machine) |\n|---|---|---|\n"
    out.write_text(HEAD + "\n".join(lines) + cost_head + "\n".join(costs) + "\n", encoding="utf-8")
    print(out.read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
