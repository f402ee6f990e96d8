"""What prefix breaks cost recorded agents, what moving volatile spans saves, and what looking for them takes.

python -m benchmarks.clients.prefix_breaks
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, cast

import orjson

from benchmarks.clients.trace_replay import TraceReplay
from benchmarks.results import command_parser, write
from gateway.config.settings import IdentitySettings
from gateway.core.transport import Request
from gateway.dialects import BY_PATH
from gateway.dialects.base import Script
from gateway.exchange import Exchange, Payload, Timings
from gateway.sessions.prefix_breaks import Rewrite, owner_of
from policies.recognition.chains import Chain, block_chain, common
from policies.recognition.prefix_breaks import Breaks
from policies.types import TurnKind
from tests.policies.recognition.siblings import Agent, path_line
from tests.traces import client_names, read_trace

ABOUT = """\
First prompts of recorded agents, most in a directory of their own, in the order of the recordings. *Shared*: part
of their 512-character blocks that an earlier one has sent (system text before tools); the first session of each
counts as a miss. *Moved*: learned spans are moved behind the first user message (`identity.volatile_spans: move`),
which takes three breaks to begin.

| client | first prompts | breaks | kinds | characters wasted each | shared | moved | the last five |
|---|---|---|---|---|---|---|---|
"""
COSTS = """

| a first prompt of 60 kB with | least, us | median, us (busy machine) |
|---|---|---|
"""
CASES = {
    "no break": (True, False),
    "a break": (True, True),
    "a break that makes a family of each session": (False, True),
}
"""Whether the family is known, and whether the prefix is broken."""


@dataclass(frozen=True)
class ClientBreaks:
    """What the first prompts of one client share, as sent and with learned spans moved."""

    client: str
    num_prompts: int
    num_breaks: int
    kinds: str
    wasted_chars: int
    """Each."""
    shared: float
    moved: float
    shared_of_last_five: float
    moved_of_last_five: float

    def __str__(self) -> str:
        return (
            f"| {self.client} | {self.num_prompts} | {self.num_breaks} | {self.kinds} | {self.wasted_chars:,}"
            f" | {self.shared:.2f} | {self.moved:.2f}"
            f" | {self.shared_of_last_five:.2f} -> {self.moved_of_last_five:.2f} |"
        )


@dataclass
class SharedBlocks:
    """Blocks of first prompts, and those that an earlier one had sent."""

    chains: list[Chain] = field(default_factory=list)
    rates: list[tuple[int, int]] = field(default_factory=list)

    def record(self, script: Script) -> None:
        chain = block_chain(b"key", (script.system, *script.tools, *script.messages))
        self.rates.append((max((common(chain, earlier) for earlier in self.chains), default=0), len(chain)))
        self.chains.append(chain)

    def rate(self, last: int = 0) -> float:
        rates = self.rates[-last:]
        return sum(hits for hits, _ in rates) / max(1, sum(size for _, size in rates))


def first_prompts(client: str) -> Iterator[tuple[Exchange, str]]:
    """First turns and their families."""
    gateway = TraceReplay(with_headers=True)
    for request in read_trace(client):
        dialect = BY_PATH.get(request.path)
        if dialect is None or not dialect.is_conversation:
            continue
        recognition = gateway.send(request)
        if recognition.turn_index == 0 and recognition.kind is not TurnKind.SIDE and not recognition.is_retry:
            raw = orjson.dumps(request.body)
            yield (
                Exchange("x", cast(Request, None), dialect, Timings(0.0), payload=Payload(raw, orjson.loads(raw))),
                recognition.family_id,
            )


def client_breaks(client: str) -> ClientBreaks:
    defaults = IdentitySettings()
    rewrite = Rewrite(True, defaults.volatile_patterns, defaults.volatile_learned)
    as_sent, as_moved = Breaks(), Breaks()
    shared, moved = SharedBlocks(), SharedBlocks()
    broken = []
    for exchange, family in first_prompts(client):
        for is_moved, breaks, blocks in ((False, as_sent, shared), (True, as_moved, moved)):
            if is_moved:
                exchange.payload = rewrite.apply(exchange)
            script = exchange.dialect.script(exchange.payload.body)
            blocks.record(script)
            prefix_break = breaks.saw(family, owner_of(exchange), script.tools, script.system, script.messages)
            if prefix_break is not None and is_moved:
                rewrite.learn(prefix_break)
            elif prefix_break is not None and prefix_break.broken is not None:
                broken.append(prefix_break.broken)
    return ClientBreaks(
        client,
        len(shared.rates),
        len(broken),
        ", ".join(sorted({f"{one.kind} in {one.part}" for one in broken})),
        sum(one.shared_chars for one in broken) // max(1, len(broken)),
        shared.rate(),
        moved.rate(),
        shared.rate(5),
        moved.rate(5),
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
    parser = command_parser(__doc__, __file__)
    options = parser.parse_args()
    clients = [client_breaks(client) for client in client_names()]
    spent_us = {
        name: cost_us(60_000, is_family_known=known, is_broken=broken) for name, (known, broken) in CASES.items()
    }
    costs = {name: {"least_us": spent[0], "median_us": spent[len(spent) // 2]} for name, spent in spent_us.items()}
    rows = [f"| {name} | {cost['least_us']:.0f} | {cost['median_us']:.0f} |" for name, cost in costs.items()]
    text = ABOUT + "\n".join(map(str, clients)) + COSTS + "\n".join(rows)
    print(text)
    write(options.results, "prefix-breaks", text, {"clients": clients, "costs": costs})


if __name__ == "__main__":
    main()
