"""Synthetic fleets of agents with known truth: how each client writes its prompts, and how requests meet.

Pure and seeded. An agent is a generator: it yields requests and goes on when they are answered; `requests` lets
the agents of a fleet take turns at random. The model answers as at temperature 0: equal prompts get equal answers,
with the same ids of calls where these count within a conversation (`functions.read:0`).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, TypeAlias

from gateway.core.reply import Reply, ToolCall, ToolCalls

Json: TypeAlias = dict[str, Any]
Messages: TypeAlias = list[Json]

TOOLS = [
    {
        "type": "function",
        "function": {"name": name, "description": f"It can {name} files. " * 12, "parameters": {}},
    }
    for name in ("read", "write", "task")
]
RULES = " ".join(f"Rule {n}: do as you are told, and say what you did." for n in range(24))
ELIDED = "Old environment output: (omitted)"


@dataclass(frozen=True)
class Agent:
    """One run of an agent. Those with equal `content` send equal requests, and are interchangeable."""

    label: str
    content: str
    task: str
    num_turns: int
    client: Client
    parent: Agent | None = None
    history: tuple[Json, ...] = ()
    """Of an agent that forks."""
    tenant: str = ""


@dataclass(frozen=True)
class Client:
    """How a kind of agent writes its prompts."""

    ids: str = "index"
    """Of calls: `index` counts in the conversation, `random`; `none`: it has no tools and reads text."""
    shown: Callable[[Messages, int], Messages] = lambda history, turn: history
    """The history as it is sent."""
    system: Callable[[int], str] = lambda tick: RULES
    model: Callable[[int], str] = lambda turn: "model"
    speaks: bool = False
    """Whether the model writes text beside its calls."""
    shares_files: bool = True
    """Whether agents of different tasks read some of the same files."""
    has_title: bool = False
    has_last_call: bool = False
    compacts_every: int = 0
    num_children: int = 0
    forks_at: int = 0
    fail_rate: float = 0.0
    says_retry: bool = False


@dataclass
class Request:
    """What a client sends, and the truth about it."""

    agent: Agent
    place: str
    """Of the request in its run. Requests at one place of agents with equal content have equal bodies."""
    body: Json
    reply: Reply | None
    """None: it fails, and is sent again."""
    is_side: bool = False
    headers: Json = field(default_factory=dict)
    is_waited_for: bool = True


@dataclass
class Start:
    """Agents start beside this one. `waits`: it goes on when all have ended."""

    agents: Sequence[Agent]
    waits: bool = True


Steps: TypeAlias = Generator[Request | Start, None, None]


# ---- the agent


def steps(agent: Agent, noise: Random) -> Steps:
    """Run one agent to its end."""
    client, history = agent.client, list(agent.history) or [user(agent.task)]
    first = sum(message["role"] == "assistant" for message in history)
    if client.has_title and not agent.history:
        yield title(agent)
    for turn in range(first, first + agent.num_turns):
        is_last = turn == first + agent.num_turns - 1
        reply, said = answer(agent, turn, is_last, noise)
        if is_last and client.has_last_call:
            yield last_call(agent, history, turn)
            return
        yield from ask(agent, history, turn, reply, noise)
        if client.forks_at == turn + 1 and agent.parent is None:
            fork = fork_of(agent, tuple(history), noise)
            yield Start([fork], waits=False)
        if client.num_children and turn == 1:
            yield Start(children_of(agent))
        history += [said, *results(agent, turn, said)]
        if client.compacts_every and turn % client.compacts_every == client.compacts_every - 1 and not is_last:
            summary = (
                f"Summary of {agent.content}: {turn + 1} steps of {agent.task[:40]} are done, more are to come."
            )
            yield compaction(agent, history, turn, summary)
            history = [user("What did we do so far?"), {"role": "assistant", "content": summary}, user("Go on.")]


def ask(agent: Agent, history: Messages, turn: int, reply: Reply, noise: Random) -> Steps:
    client = agent.client
    tick = noise.randrange(10**6)
    body: Json = {
        "model": client.model(turn),
        "messages": [{"role": "system", "content": client.system(tick)}, *client.shown(list(history), turn)],
    }
    if client.ids != "none":
        body["tools"] = TOOLS
    for attempt in range(3):
        fails = attempt < 2 and noise.random() < client.fail_rate
        headers = {"x-stainless-retry-count": str(attempt)} if attempt and client.says_retry else {}
        yield Request(agent, f"turn {turn}", body, None if fails else reply, headers=headers)
        if not fails:
            return


def user(text: str) -> Json:
    return {"role": "user", "content": text}


def answer(agent: Agent, turn: int, is_last: bool, noise: Random) -> tuple[Reply, Json]:
    """Return what the model says, and the message that the client keeps of it."""
    ids = agent.client.ids
    random_id = f"call_{noise.getrandbits(64):016x}"
    task = agent.task[:24]
    if is_last:
        text = f"All {turn} steps of {task} are done now."
        return replied(text), {"role": "assistant", "content": text}
    if ids == "none":
        text = f"Thought: step {turn} of {task} is to read on.\nAction: read part {turn}"
        return replied(text), {"role": "assistant", "content": text}
    call_id = random_id if ids == "random" else f"functions.read:{turn}"
    calls = [(call_id, "read", f'{{"path":"part-{turn % 7}.py"}}')]
    if agent.client.num_children and turn == 1:
        errands = [child.task for child in children_of(agent)]
        calls = [
            (f"{call_id}.{n}", "task", f'{{"description":"look at a part","prompt":"{errand}"}}')
            for n, errand in enumerate(errands)
        ]
    text = f"Step {turn} of {task}: I read part {turn} for {agent.task[:6]} now." if agent.client.speaks else ""
    said = {
        "role": "assistant",
        "content": text,
        "tool_calls": [
            {"id": call, "type": "function", "function": {"name": name, "arguments": arguments}}
            for call, name, arguments in calls
        ],
    }
    return replied(text, [ToolCall(*call) for call in calls]), said


def replied(text: str, calls: Sequence[ToolCall] = ()) -> Reply:
    reply = Reply(tool_calls=ToolCalls(ToolCall, calls), is_complete=True)
    reply.written.append(text)
    return reply


def results(agent: Agent, turn: int, said: Json) -> Messages:
    reads_its_own = turn % 2 or not agent.client.shares_files
    of = agent.task[:8] if reads_its_own else "all"
    part = f"part {turn % 7} of the files of {of}\n" + f"line {turn % 7} of some code; " * 6
    calls = said.get("tool_calls", ())
    if not calls:
        return [user(f"Observation: {part}")]
    return [{"role": "tool", "tool_call_id": call["id"], "content": part} for call in calls]


def children_of(agent: Agent) -> list[Agent]:
    tasks = [f"Look at part {n} for those who work on {agent.task} and tell what is in it." for n in range(2)]
    client = replace(agent.client, num_children=0, system=lambda tick: f"You are a sub-agent. {RULES}")
    return [
        Agent(f"{agent.label}/{n}", f"{agent.content}/{n}", task, 3, client, agent, tenant=agent.tenant)
        for n, task in enumerate(tasks[: agent.client.num_children])
    ]


def fork_of(agent: Agent, history: tuple[Json, ...], noise: Random) -> Agent:
    """Return another continuation of what the agent has sent: another answer of the model."""
    call_id = f"call_{noise.getrandbits(64):016x}"
    text = f"Let me try another way, the {call_id} one."
    history += ({"role": "assistant", "content": text}, user(f"Do so with {call_id} in mind."))
    client = replace(agent.client, forks_at=0, has_title=False)
    return Agent(f"{agent.label}/fork", call_id, agent.task, 3, client, agent, history, agent.tenant)


def side(agent: Agent, place: str, system: str, messages: Messages, text: str, *, waits: bool = True) -> Request:
    body = {"model": agent.client.model(0), "messages": [{"role": "system", "content": system}, *messages]}
    return Request(agent, place, body, replied(text), is_side=True, is_waited_for=waits)


def title(agent: Agent) -> Request:
    """OpenCode's request for a title, beside the first turn."""
    messages = [user("Generate a title for this conversation:\n"), user(agent.task)]
    return side(agent, "title", "You write titles. " * 40, messages, f"Title of {agent.task[:24]}", waits=False)


def last_call(agent: Agent, history: Messages, turn: int) -> Request:
    """The last request of smolagents' ToolCallingAgent, whose steps are used up."""
    system = "An agent tried to answer a user query but it got stuck and failed to do so."
    messages = [*history, user(f"Based on the above, please answer the following user task: {agent.task}")]
    return side(agent, f"last {turn}", system, messages, f"The answer to {agent.task[:24]} is known.")


def compaction(agent: Agent, history: Messages, turn: int, summary: str) -> Request:
    text = "\n".join(f"[{message['role']}]: {message['content']}" for message in history)
    return side(agent, f"compaction {turn}", "You sum up. " * 60, [user(f"Sum up:\n{text}")], summary)


# ---- what clients do to a history before they send it


def keep_last(count: int) -> Callable[[Messages, int], Messages]:
    """Elide all but the last observations, as SWE-agent does."""

    def shown(history: Messages, _turn: int) -> Messages:
        seen = [at for at, message in enumerate(history) if at and message["role"] in ("tool", "user")]
        old = set(seen[:-count])
        return [message | {"content": ELIDED} if at in old else message for at, message in enumerate(history)]

    return shown


def window(count: int, with_task: bool) -> Callable[[Messages, int], Messages]:
    """Drop the oldest turns."""

    def shown(history: Messages, _turn: int) -> Messages:
        starts = [at for at, message in enumerate(history) if message["role"] == "assistant"]
        if len(starts) <= count:
            return history
        return history[: int(with_task)] + history[starts[-count] :]

    return shown


def ephemeral(texts: Sequence[str], changes: bool) -> Callable[[Messages, int], Messages]:
    """Add user messages at the end that are gone in the next turn."""

    def shown(history: Messages, turn: int) -> Messages:
        return history + [user(f"{text} {turn if changes else ''}") for text in texts]

    return shown


def moving_reminder(history: Messages, turn: int) -> Messages:
    """Write a reminder into the last message."""
    *before, last = history
    return [*before, last | {"content": f"{last['content']}\n<reminder>You have todos.</reminder>"}]


def ended_by_reminder(history: Messages, turn: int) -> Messages:
    """Insert a block before the last message."""
    return [*history[:-1], user(f"<reminder>Step {turn}: you have todos.</reminder>"), history[-1]]


CLOCKS: tuple[Callable[[int], str], ...] = (
    lambda tick: f"It is {tick} s past noon. {RULES}",
    lambda tick: f"{RULES}\nIt is {tick} s past noon.",
    lambda tick: f"{RULES[:600]} Request id {tick:08x}. {RULES[600:]}",
)

PATTERNS: dict[str, Callable[[Random], Client]] = {
    "plain": lambda noise: Client(),
    "text": lambda noise: Client(ids="none"),
    "keep 5": lambda noise: Client(shown=keep_last(5)),
    "keep 2": lambda noise: Client(shown=keep_last(2)),
    "window": lambda noise: Client(shown=window(noise.choice((2, 3)), True)),
    "window, no task": lambda noise: Client(shown=window(noise.choice((2, 3)), False), shares_files=False),
    "ephemeral": lambda noise: Client(
        shown=ephemeral(
            ("You are asked to go on.", "The budget is fine.", "The date is known."), noise.random() < 0.5
        )
    ),
    "moving reminder": lambda noise: Client(shown=noise.choice((moving_reminder, ended_by_reminder))),
    "clock": lambda noise: Client(system=noise.choice(CLOCKS)),
    "model switch": lambda noise: Client(model=lambda turn: "model" if turn < 3 else "other"),
    "sub-agents": lambda noise: Client(num_children=2),
    "title": lambda noise: Client(has_title=True),
    "last call": lambda noise: Client(has_last_call=True),
    "compaction": lambda noise: Client(compacts_every=3, speaks=True),
    "retries": lambda noise: Client(fail_rate=0.3, says_retry=noise.random() < 0.5),
    "forks": lambda noise: Client(forks_at=noise.choice((2, 3, 4))),
}


# ---- the fleet


@dataclass
class Fleet:
    """Runs that begin at random times in their round; a round begins when the last one is over."""

    rounds: list[list[Agent]]
    noise: Random
    spread_s: float = 10.0
    restarts: bool = False
    """The gateway is restarted in the middle and has forgotten all."""


def rows() -> tuple[str, ...]:
    """The rows of the table."""
    return ("reruns", "siblings", *(name for name in PATTERNS if name != "plain"), "tool-less", "restart", "mixed")


def fleet(row: str, num_agents: int, seed: int) -> Fleet:
    """Return a fleet of so many agents at once."""
    noise = Random(f"{row} {num_agents} {seed}")
    num_rounds = 3 if row == "reruns" else noise.choice((1, 2))
    copies = 2 if row == "siblings" else noise.choice((1, 1, 2))
    num_turns = noise.randint(5, 12 if num_agents < 64 else 8)
    ids = noise.choice(("index", "random"))
    made = [_client(row, n, noise, ids) for n in range(num_agents)]
    tenants = ("one", "other") if noise.random() < 0.2 else ("one",)
    rounds = [
        [
            _agent(f"{r}.{n}.{tenant}", n // copies, made[n // copies * copies], num_turns, tenant)
            for n in range(num_agents)
            for tenant in tenants
        ]
        for r in range(num_rounds)
    ]
    return Fleet(rounds, noise, spread_s=noise.choice((0.0, 10.0, 60.0)), restarts=row == "restart")


def _client(row: str, n: int, noise: Random, ids: str) -> Client:
    name = row
    if row == "mixed":
        name = noise.choice(list(PATTERNS))
    elif row == "tool-less":
        name = "plain" if n % 4 < 2 else "text"
    elif row in ("reruns", "siblings", "restart"):
        name = noise.choice(("plain", "text"))
    client = PATTERNS[name](noise)
    if client.ids != "none" and row not in ("reruns", "siblings"):
        client = replace(client, ids=ids, speaks=client.speaks or noise.random() < 0.5)
    if row == "mixed" and noise.random() < 0.3:
        client = replace(client, fail_rate=0.1, says_retry=noise.random() < 0.5)
    return client


def _agent(label: str, task: int, client: Client, num_turns: int, tenant: str) -> Agent:
    text = f"Task {task}: find out what module {task * 7919 % 1000} does and write it down."
    content = label if client.ids == "random" else f"{task} {tenant}"
    return Agent(label, content, text, num_turns, client, tenant=tenant)


@dataclass
class Event:
    """A request is sent, or answered."""

    at: float
    request: Request
    is_answer: bool


@dataclass(order=True)
class _Entry:
    at: float
    serial: int
    action: Callable[[float], None] = field(compare=False)


class _Run:
    """Agents in virtual time."""

    def __init__(self, noise: Random) -> None:
        self.noise = noise
        self.heap: list[_Entry] = []
        self.events: list[Event] = []
        self.num_pushed = 0

    def at(self, when: float, action: Callable[[float], None]) -> None:
        self.num_pushed += 1
        heapq.heappush(self.heap, _Entry(when, self.num_pushed, action))

    def start(self, agent: Agent, when: float, ended: Callable[[float], None] = lambda now: None) -> None:
        run = steps(agent, Random(f"{agent.label} {self.noise.random()}"))
        self.at(when, lambda now: self.go_on(run, now, ended))

    def go_on(self, run: Steps, now: float, ended: Callable[[float], None]) -> None:
        step = next(run, None)
        if step is None:
            return ended(now)
        if isinstance(step, Start):
            return self.start_others(step, run, now, ended)
        self.events.append(Event(now, step, False))
        took, tool = self.noise.uniform(0.5, 10.0), self.noise.uniform(0.01, 5.0)

        def answered(then: float) -> None:
            self.events.append(Event(then, step, True))
            if step.is_waited_for:
                self.at(then + tool, lambda now: self.go_on(run, now, ended))

        self.at(now + took, answered)
        if not step.is_waited_for:
            self.at(now + self.noise.uniform(0.0, 2.0), lambda now: self.go_on(run, now, ended))
        return None

    def start_others(self, step: Start, run: Steps, now: float, ended: Callable[[float], None]) -> None:
        left = len(step.agents) if step.waits else 0

        def one_ended(then: float) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                self.go_on(run, then, ended)

        for agent in step.agents:
            self.start(agent, now + self.noise.uniform(0.01, 1.0), one_ended)
        if not step.waits or not step.agents:
            self.at(now + 0.001, lambda then: self.go_on(run, then, ended))


def requests(given: Fleet) -> Iterator[Event]:
    """Return what a gateway sees of a fleet, in order of time."""
    now = 0.0
    for agents in given.rounds:
        run = _Run(given.noise)
        for agent in agents:
            run.start(agent, now + given.noise.uniform(0.0, given.spread_s))
        while run.heap:
            entry = heapq.heappop(run.heap)
            now = entry.at
            entry.action(now)
        yield from run.events
        now += 60.0
