"""How well the sessions of a synthetic fleet are recognised.

Sessions of equal content are interchangeable: at each place of their runs, their requests are assigned so that a
recognised session stays with one run. F1 is that of pairs of requests: of one session or not.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from benchmarks.clients.trace_replay import HeadersOnly
from gateway.access.keys import Caller
from gateway.dialects import BY_PATH
from gateway.exchange import Exchange, Payload, Recognition, Timings
from gateway.sessions.identity import Identity
from policies.types import TurnKind
from tests.sessions.fleets import Event, Fleet, Request, requests


@dataclass
class Seen:
    """A request and what it was taken for."""

    request: Request
    recognition: Recognition
    epoch: int
    """How often the gateway was restarted before."""
    owner: str = ""
    """The run that it is counted for."""

    @property
    def session(self) -> str:
        return f"{self.epoch} {self.recognition.session_id}"

    @property
    def parent(self) -> str | None:
        return f"{self.epoch} {parent_id}" if (parent_id := self.recognition.parent_id) is not None else None


@dataclass
class FleetScore:
    requests: int = 0
    runs: int = 0
    sessions: int = 0
    """Recognised ones."""
    joined: int = 0
    merged: int = 0
    split: int = 0
    wrong_turns: int = 0
    """Requests in a session that is mostly another run's."""
    merged_tenants: int = 0
    children: int = 0
    found_parents: int = 0
    wrong_parents: int = 0
    sides: int = 0
    side_turns: int = 0
    """Side requests that were taken for turns of an agent."""
    turns: int = 0
    missed_turns: int = 0
    """Later turns that were not taken for an agent's."""

    @property
    def f1(self) -> float:
        whole = 2 * self.joined + self.merged + self.split
        return 2 * self.joined / whole if whole else 1.0

    def __add__(self, other: FleetScore) -> FleetScore:
        names = self.__dataclass_fields__
        return FleetScore(**{name: getattr(self, name) + getattr(other, name) for name in names})


def replay(fleet: Fleet) -> list[Seen]:
    """Send a fleet's requests to one gateway."""
    identity, epoch = Identity(secret=b"fleet"), 0
    opened: dict[int, tuple[Identity, Exchange]] = {}
    seen: list[Seen] = []
    events = list(requests(fleet))
    for number, event in enumerate(events):
        if fleet.restarts and number == len(events) // 2:
            identity, epoch = Identity(secret=b"fleet"), 1
        if event.is_answer:
            of, exchange = opened.pop(id(event.request))
            exchange.reply = event.request.reply or exchange.reply
            of.answered(exchange, event.request.reply is not None, event.at)
            continue
        exchange = _exchange(number, event)
        opened[id(event.request)] = identity, exchange
        script = exchange.dialect.script(exchange.payload.body)
        seen.append(Seen(event.request, identity.recognise(exchange, script, event.at), epoch))
    return seen


def _exchange(number: int, event: Event) -> Exchange:
    request = event.request
    return Exchange(
        id=str(number),
        request=HeadersOnly(request.headers),
        dialect=BY_PATH["/v1/chat/completions"],
        timings=Timings(event.at),
        payload=Payload(body=request.body, requested_model=request.body["model"]),
        caller=Caller(request.agent.tenant, may_prioritise=False),
    )


def assign(seen: Iterable[Seen]) -> None:
    """Count each request for a run, so that recognised sessions stay with one where runs are interchangeable.

    Each run is answered once at each place. A request that failed is counted for the run whose equal request was
    answered in its session, if there is one: nothing tells twins apart that have no answer yet.
    """
    twins: defaultdict[tuple[int, str], dict[str, list[Seen]]] = defaultdict(dict)
    """Answered requests of interchangeable runs, by their place."""
    answered: dict[tuple[str, str, str], Seen] = {}
    failed = []
    for one in seen:
        request = one.request
        one.owner = f"{request.agent.label} {one.epoch}"
        if request.reply is None:
            failed.append(one)
            continue
        twins[one.epoch, request.agent.content].setdefault(request.place, []).append(one)
        answered[one.session, request.agent.task, request.place] = one
    for by_place in twins.values():
        _assign_twins([by_place[place] for place in sorted(by_place, key=_number)])
    for one in failed:
        twin = answered.get((one.session, one.request.agent.task, one.request.place))
        one.owner = twin.owner if twin is not None else one.owner


def _number(place: str) -> int:
    """Return the turn of a place; places of one turn stay in their order."""
    return int(place.rpartition(" ")[2]) if " " in place else -1


def _assign_twins(places: Sequence[Sequence[Seen]]) -> None:
    """Count the requests of runs that are interchangeable. A restart of the gateway cuts them: where fewer go on,
    any of those that came so far may be these; where more do, others begin."""
    runs = dict.fromkeys(one.owner for group in places for one in group)
    run_of: dict[str, str] = {}
    """Of a recognised session."""
    latest: list[str] = []
    for group in places:
        free = dict.fromkeys(latest)
        known = {*free, *run_of.values()}
        begins = iter(sorted(runs.keys() - free.keys(), key=lambda run: run in known))
        while len(free) < len(group):
            free[next(begins)] = None
        others = []
        for one in group:
            run = run_of.get(one.session)
            if run in free:
                del free[run]
                one.owner = run
            else:
                others.append(one)
        taken = set(run_of.values())
        for one in others:
            one.owner = next((run for run in free if run not in taken), next(iter(free)))
            del free[one.owner]
            taken.add(run_of.setdefault(one.session, one.owner))
        latest = [one.owner for one in group]


def score(seen: list[Seen]) -> FleetScore:
    assign(seen)
    result = FleetScore(requests=len(seen))
    both = Counter((one.owner, one.session) for one in seen)
    runs = Counter(one.owner for one in seen)
    sessions = Counter(one.session for one in seen)
    result.runs, result.sessions = len(runs), len(sessions)
    result.joined = sum(map(_pairs, both.values()))
    result.split = sum(map(_pairs, runs.values())) - result.joined
    result.merged = sum(map(_pairs, sessions.values())) - result.joined
    most: Counter[str] = Counter()
    for (_, session), count in both.items():
        most[session] = max(most[session], count)
    result.wrong_turns = len(seen) - sum(most.values())
    _score_tenants(seen, result)
    _score_parents(seen, result)
    _score_kinds(seen, result)
    return result


def _pairs(count: int) -> int:
    return count * (count - 1) // 2


def _score_tenants(seen: list[Seen], result: FleetScore) -> None:
    tenants: defaultdict[str, set[str]] = defaultdict(set)
    for one in seen:
        tenants[one.session].add(one.request.agent.tenant)
    result.merged_tenants = sum(len(of) > 1 for of in tenants.values())


def _score_parents(seen: list[Seen], result: FleetScore) -> None:
    """Parents of equal tasks are interchangeable: their children have equal tasks too."""
    tasks_of: defaultdict[str, set[str]] = defaultdict(set)
    for one in seen:
        tasks_of[one.session].add(one.request.agent.task)
    for one in seen:
        agent, parent_id = one.request.agent, one.parent
        if agent.parent is None or agent.history or one.request.place != "turn 0" or one.recognition.is_retry:
            continue
        result.children += 1
        if parent_id is not None:
            is_right = agent.parent.task in tasks_of[parent_id]
            result.found_parents += is_right
            result.wrong_parents += not is_right


def _score_kinds(seen: list[Seen], result: FleetScore) -> None:
    """A first turn without tools may be any kind: only what follows shows it. An early title is a session's."""
    for one in seen:
        kind, request = one.recognition.kind, one.request
        if request.is_side:
            result.sides += 1
            result.side_turns += kind is TurnKind.AGENT
        elif request.place != "turn 0":
            result.turns += 1
            result.missed_turns += kind is not TurnKind.AGENT
