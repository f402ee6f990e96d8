"""Small requests of our own to an engine: its pages, and one-token questions."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import orjson

from gateway.core import fields
from gateway.core.errors import EngineFault
from gateway.core.transport import HeaderList, Timeouts, Upstream, UpstreamCut, UpstreamRefused, taken
from gateway.engines import named
from gateway.engines.base import (
    CHAT,
    Abilities,
    Engine,
    EngineAddress,
    Json,
    Outgoing,
    OutgoingRequest,
    PolledPool,
    Report,
)
from gateway.engines.breaker import Breaker, BreakerRules, BreakerState
from gateway.engines.openai import json_object
from policies.types import CacheLost, Fact, Hints, ReplicaId, ReplicaLost, ReplicaReported

MAX_PAGE_BYTES = 16 * 2**20
PROBE_S = 15.0
"""All questions to one engine together: a busy one is not asked further."""


class EngineClient:
    """Small requests of our own to engines."""

    def __init__(self, upstream: Upstream, timeout_s: float) -> None:
        self._upstream = upstream
        self._page_timeouts = Timeouts(timeout_s, timeout_s, timeout_s)
        self._answer_timeouts = Timeouts(timeout_s, PROBE_S, PROBE_S)

    async def page(self, address: EngineAddress, path: str) -> tuple[int, str]:
        """Status and text of a page, by path or by whole URL. Status 0: no answer, the text says why."""
        url = path if "://" in path else address.base_url + path
        try:
            status, body = await self._call("GET", url, _headers(address), None, self._page_timeouts)
        except UpstreamRefused:
            return 0, f"{url} does not accept connections"
        except UpstreamCut as error:
            return 0, f"{url}: {error}"
        return status, body.decode(errors="replace")

    async def post(self, address: EngineAddress, path: str, headers: HeaderList, body: bytes) -> tuple[int, bytes]:
        """Raises UpstreamRefused, UpstreamCut."""
        headers = [*_headers(address), ("Content-Type", "application/json"), *headers]
        return await self._call("POST", address.base_url + path, headers, body, self._answer_timeouts)

    async def _call(
        self, method: str, url: str, headers: HeaderList, body: bytes | None, timeouts: Timeouts
    ) -> tuple[int, bytes]:
        reply = await self._upstream.call(method, url, headers, body, timeouts)
        return reply.status, await taken(reply, MAX_PAGE_BYTES)


def _headers(address: EngineAddress) -> list[tuple[str, str]]:
    key = [("Authorization", f"Bearer {address.api_key}")] if address.api_key else []
    return [("Accept-Encoding", "identity"), *key]


# ---- find out what a running engine honours by asking it a few one-token questions

Ask = Callable[[str, HeaderList, bytes], Awaitable[tuple[int, bytes]]]
"""POST a body (path, headers, body) to the engine -> status and answer. Raises UpstreamRefused, UpstreamCut."""

# What agents send: instructions, a tool schema, code, a listing; it tells how the model's tokenizer cuts them.
_SAMPLE = """You are a coding agent. Read the files that matter, then make the smallest change that passes
the tests. Never guess a path; list the folder first. Keep answers short, and say what you could not check.
{"type": "function", "function": {"name": "read_file", "description": "Read a text file", "parameters":
{"type": "object", "properties": {"path": {"type": "string"}, "offset": {"type": "integer"}},
"required": ["path"]}}}
def load(path: str) -> dict[str, int]:
    with open(path, encoding="utf-8") as lines:
        return {name: int(count) for name, count in (line.split() for line in lines)}
-rw-r--r-- 1 user user 4711 Nov 21 10:02 src/app/main.py
"""

_SYSTEM_MARK = "turngatesystemmark"
_TOOL_MARK = "turngatetoolmark"
_TOOL: Json = {
    "type": "function",
    "function": {"name": _TOOL_MARK, "description": "", "parameters": {"type": "object", "properties": {}}},
}
# A prefix hit takes at least one whole block; this is what is asked where the block size is not known.
_DEFAULT_BLOCK_TOKENS = 128
_MAX_BLOCK_TOKENS = 1024


async def probe(engine: Engine, abilities: Abilities, report: Report, ask: Ask) -> None:
    """Write into `abilities` what a handful of tiny requests shows. What cannot be found out stays as it is."""
    if not report.models:
        return
    model = report.models[0]
    if abilities.system_before_tools is None:
        abilities.system_before_tools = await _renders_system_first(engine, abilities, model, ask)
    await _hints_and_cache(engine, abilities, report, model, ask)
    if abilities.takes_tools is None:
        abilities.takes_tools = await _takes_tools(engine, abilities, model, ask)


async def _takes_tools(engine: Engine, abilities: Abilities, model: str, ask: Ask) -> bool | None:
    """vLLM and others refuse requests that offer tools until they are told how the model calls them."""
    body: Json = {
        "model": model,
        "messages": [{"role": "user", "content": "hi"}],
        "tools": [_TOOL],
        "max_tokens": 1,
    }
    status, answer = await _send(body, engine.outgoing(OutgoingRequest(CHAT, body, Hints()), abilities), ask)
    if status == 200:
        return True
    return False if status in (400, 422, 501) and "tool" in _message(answer).lower() else None


async def _renders_system_first(engine: Engine, abilities: Abilities, model: str, ask: Ask) -> bool | None:
    messages: list[Json] = [{"role": "system", "content": _SYSTEM_MARK}, {"role": "user", "content": "hi"}]
    rendering = engine.rendering(model, messages, [_TOOL])
    if rendering is None or (abilities.paths is not None and rendering[0] not in abilities.paths):
        return None
    status, answer = await ask(rendering[0], (), orjson.dumps(rendering[1]))
    text = engine.rendered(answer.decode(errors="replace")) if status == 200 else ""
    system_at, tool_at = text.find(_SYSTEM_MARK), text.find(_TOOL_MARK)
    return None if system_at < 0 or tool_at < 0 else system_at < tool_at


async def _hints_and_cache(engine: Engine, abilities: Abilities, report: Report, model: str, ask: Ask) -> None:
    """The same prompt twice with every hint: a refusal shows which one fails, the second answer what is cached."""
    pools = [pool.name for pool in report.pools]
    block_tokens = max((pool.block_tokens or 0 for pool in report.pools), default=0) or _DEFAULT_BLOCK_TOKENS
    text = _SAMPLE * (1 + 12 * min(block_tokens, _MAX_BLOCK_TOKENS) // len(_SAMPLE))
    body: Json = {"model": model, "messages": [{"role": "user", "content": text}], "max_tokens": 1}
    pool = pools[0] if pools and abilities.can_address_pools else ""
    usage = None
    for _ in range(2):
        status, answer = await _ask_with_hints(engine, abilities, body, pool, ask)
        if status != 200:
            return
        usage = engine.usage(json_object(answer))
    cached_tokens = usage.cached_tokens if usage else None
    if usage is not None and usage.prompt_tokens:
        abilities.tokens_per_char = usage.prompt_tokens / len(text)
    is_one_pool = len(pools) == 1 or pool
    if abilities.reports_cached_tokens is None and (cached_tokens or is_one_pool):
        abilities.reports_cached_tokens = bool(cached_tokens)


async def _ask_with_hints(
    engine: Engine, abilities: Abilities, body: Json, pool: str, ask: Ask
) -> tuple[int, bytes]:
    hints = Hints(urgency=1, remaining_turns=0, expected_output_tokens=1)
    asked = OutgoingRequest(CHAT, body, hints, pool, may_prioritise=True)
    sent = engine.outgoing(asked, abilities)
    status, answer = await _send(body, sent, ask)
    refused = engine.refused_fields(status, _message(answer), sent)
    if not refused:
        return status, answer
    abilities.remember(refused, sent)
    if "priority" in refused:
        abilities.honours_priority = False
    if sent.pin in refused:
        asked = replace(asked, pool="")
    return await _send(body, engine.outgoing(asked, abilities), ask)


async def _send(body: Json, sent: Outgoing, ask: Ask) -> tuple[int, bytes]:
    return await ask(CHAT, sent.headers, orjson.dumps({**body, **sent.body}))


def _message(answer: bytes) -> str:
    """From OpenAI's envelope or Dynamo's bare object."""
    parsed = json_object(answer)
    return fields.text(fields.obj(parsed, "error") or parsed, "message") or ""


# ---- one engine under watch: polls it, probes what it honours, and tells its replicas as facts

LOG = logging.getLogger(__name__)

UP_PAGE = "/v1/models"
"""The page that decides: every kind has it, and an engine that lists no model yet is not ready."""
POLLS_TO_LOSE = 2
"""Failed polls in a row after which an engine counts as dead; one may be a hiccup."""
MAX_COUNTED = 10
_STARTED_AT = "\nprocess_start_time_seconds "
"""Which client libraries of Prometheus tell by themselves."""


@dataclass(slots=True)
class KvEvents:
    """What was heard of an engine's KV events; written by their listener."""

    num_batches: int = 0
    problem: str = ""


@dataclass(slots=True, eq=False)
class RunningEngine:
    """One configured engine and what is known of it now."""

    address: EngineAddress
    engine: Engine
    abilities: Abilities
    """Replaced when the engine comes back: read it where it is needed."""
    report: Report = field(default_factory=Report)
    is_up: bool = False
    problem: str = "not asked yet"
    """Why it is not up, for people; empty when it is."""
    changed_at: float = 0.0
    """Since when it is up or not."""
    kv_events: KvEvents = field(default_factory=KvEvents)

    @property
    def name(self) -> str:
        return self.address.name

    def replica_id(self, pool: str) -> ReplicaId:
        return f"{self.name}/{pool}" if pool else self.name

    @property
    def replica_ids(self) -> list[ReplicaId]:
        return [self.replica_id(pool.name) for pool in self.report.pools]


@dataclass(frozen=True, slots=True)
class PollerContext:
    """What every watch needs."""

    ask: EngineClient
    tell: Callable[[Fact], None]
    faulted: Callable[[str, EngineFault], None]
    """Told the engine's name and what it did wrong."""
    clock: Callable[[], float]
    rules: BreakerRules
    """Of the circuit breakers."""
    probes_hints: bool


class EnginePoller:
    """Polls one engine, and is the only writer of what is known of it."""

    def __init__(self, address: EngineAddress, around: PollerContext) -> None:
        """Raises ValueError for an engine kind that does not exist."""
        kind = named(address.kind)
        self.engine = RunningEngine(address, kind, kind.abilities(), changed_at=around.clock())
        self.num_failed = 0
        """Polls that failed since the last one that worked; not counted on for ever."""
        self._around = around
        self._ask = around.ask
        self._tell = around.tell
        self._clock = around.clock
        self._breakers: dict[ReplicaId, Breaker] = {}
        self._fixed_pages: dict[str, str] = {}
        self._missing: set[str] = set()
        """Pages that this engine does not have; asked for again when it comes back."""
        self._had: frozenset[str] = frozenset()
        """Pages that it gave: one of them less is a fault of it, and not another kind of engine."""
        self._started_at = ""
        """Of its process, as its metrics say. Empty: they do not."""

    def worked(self, replica_id: ReplicaId) -> None:
        """A call began to be answered."""
        breaker = self._breakers.get(replica_id)
        if breaker is not None and breaker.worked(self._clock()) and self.engine.is_up:
            LOG.info("replica %s works again", replica_id)
            self._report(self.engine.report)

    def erred(self, replica_id: ReplicaId, may_open: bool) -> None:
        """A call failed. `may_open`: others can do its work; else it is asked for as long as it is up."""
        breaker = self._breakers.setdefault(replica_id, Breaker(self._around.rules))
        if breaker.failed(self._clock(), may_open) and self.engine.is_up:
            LOG.warning("replica %s fails too often: it is left alone for a while", replica_id)
            self._around.faulted(self.engine.name, EngineFault.OPENED)
            self._tell(ReplicaLost(replica_id))

    def state(self, replica_id: ReplicaId) -> BreakerState:
        breaker = self._breakers.get(replica_id)
        return BreakerState.CLOSED if breaker is None else breaker.state(self._clock())

    async def poll(self) -> None:
        """Ask for its pages once; what they say is told."""
        try:
            problem = await self._poll()
        except UpstreamCut as error:
            problem = str(error)
            self._around.faulted(self.engine.name, EngineFault.POLL)
        except Exception as error:  # a page that no release had so far must not end the watch
            LOG.exception("engine %s: its pages cannot be read", self.engine.name)
            problem = f"its pages cannot be read: {error}"
        self.num_failed = min(self.num_failed + 1, MAX_COUNTED) if problem else 0
        if problem and (not self.engine.is_up or self.num_failed >= POLLS_TO_LOSE):
            self.lose(problem)

    def lose(self, problem: str) -> None:
        engine = self.engine
        engine.problem = problem
        if not engine.is_up:
            return
        engine.is_up = False
        engine.changed_at = self._clock()
        LOG.warning("engine %s is down: %s", engine.name, problem)
        for replica_id in engine.replica_ids:
            self._tell(ReplicaLost(replica_id))

    async def _poll(self) -> str:
        """Returns what is wrong; empty when the engine is up."""
        engine, kind = self.engine, self.engine.engine
        has_come_back = not engine.is_up
        if has_come_back:
            self._missing.clear()
            self._had = frozenset()
        pages = await self._pages((*kind.metrics_paths, *engine.address.metrics_urls))
        if gone := self._had - pages.keys():
            LOG.debug("engine %s: no %s", engine.name, ", ".join(sorted(gone)))
            self._around.faulted(engine.name, EngineFault.PAGE)
            return ""  # it lives: what the page said last holds
        self._had = frozenset(kind.metrics_paths).intersection(pages)
        self._note_restart(pages)
        if has_come_back:
            self._fixed_pages = await self._pages(kind.probe_paths)
            engine.abilities = self._learned(self._fixed_pages | pages)
        report = kind.parse_report(self._fixed_pages | pages)
        if not report.models:
            return f"{UP_PAGE} lists no model yet"
        self._report(report)
        if has_come_back and self._around.probes_hints and not kind.is_rented:
            await self._probe()
            if engine.is_up:  # told again: who hears of a replica reads its engine's abilities
                self._report(report)
        return ""

    async def _pages(self, paths: Sequence[str]) -> dict[str, str]:
        """Those that it has. Raises UpstreamCut when one is missing that must be there."""
        wanted = [path for path in paths if path not in self._missing]
        answers = await asyncio.gather(*(self._ask.page(self.engine.address, path) for path in wanted))
        pages = {}
        for path, (status, text) in zip(wanted, answers, strict=True):
            if status == 200:
                pages[path] = text
            elif path == UP_PAGE:
                raise UpstreamCut(f"GET {path} answered {status}" if status else text)
            elif status in (404, 405, 501) and path not in self._had:
                self._missing.add(path)
        return pages

    def _learned(self, pages: Mapping[str, str]) -> Abilities:
        """From its pages; fields that this version refused before stay refused."""
        kind, before = self.engine.engine, self.engine.abilities
        abilities = kind.abilities()
        defaults = frozenset(abilities.refused_fields)
        kind.learn(pages, abilities)
        if abilities.version == before.version:
            abilities.refused_fields |= before.refused_fields - defaults
        return abilities

    def _report(self, report: Report) -> None:
        engine = self.engine
        engine.abilities.num_pools = len(report.pools)
        if len(report.pools) > 1 and not engine.abilities.can_address_pools:
            report = replace(report, pools=(_pooled(report.pools),))
        known = set(engine.replica_ids) if engine.is_up else set()
        if engine.is_up and report.models != engine.report.models:
            LOG.warning("engine %s serves %s now", engine.name, ", ".join(report.models))
            self._around.faulted(engine.name, EngineFault.MODELS)
        engine.report = report
        if not engine.is_up:
            engine.is_up, engine.problem, engine.changed_at = True, "", self._clock()
            LOG.info("engine %s is up: %s, %s", engine.name, ", ".join(report.models), counted_pools(report))
        for replica_id in sorted(known.difference(engine.replica_ids)):
            self._tell(ReplicaLost(replica_id))
        for pool in report.pools:
            models = frozenset(report.models)
            replica_id = engine.replica_id(pool.name)
            if (state := self.state(replica_id)) is not BreakerState.OPEN:
                self._tell(
                    ReplicaReported(
                        replica_id,
                        models,
                        pool.capacity_tokens,
                        pool.slots,
                        pool.waiting,
                        engine.abilities.tokens_per_char,
                        running=pool.running,
                        is_on_trial=state is BreakerState.HALF_OPEN,
                    )
                )

    def _note_restart(self, pages: Mapping[str, str]) -> None:
        """A process that is another one since the last poll has nothing cached."""
        told = (f"\n{page}".partition(_STARTED_AT)[2].partition("\n")[0] for page in pages.values())
        started_at = next(filter(None, told), "")
        before, self._started_at = self._started_at, started_at
        if self.engine.is_up and before and started_at and started_at != before:
            LOG.warning("engine %s was restarted: its cache is empty", self.engine.name)
            self._around.faulted(self.engine.name, EngineFault.RESTARTED)
            for replica_id in self.engine.replica_ids:
                self._tell(CacheLost(replica_id, None))

    async def _probe(self) -> None:
        engine = self.engine

        async def ask(path: str, headers: HeaderList, body: bytes) -> tuple[int, bytes]:
            return await self._ask.post(engine.address, path, headers, body)

        try:
            async with asyncio.timeout(PROBE_S):
                await probe(engine.engine, engine.abilities, engine.report, ask)
        except (TimeoutError, UpstreamRefused, UpstreamCut) as error:
            LOG.warning("engine %s: hints not probed: %s", engine.name, error or "it was too slow")


def _pooled(pools: Sequence[PolledPool]) -> PolledPool:
    """Pools that cannot be addressed as one: what any of them does not say, the sum does not either."""

    def total(values: list[int | None]) -> int | None:
        known = [value for value in values if value is not None]
        return sum(known) if len(known) == len(values) else None

    return PolledPool(
        "",
        total([pool.capacity_tokens for pool in pools]),
        pools[0].block_tokens,
        total([pool.slots for pool in pools]),
        total([pool.running for pool in pools]),
        total([pool.waiting for pool in pools]),
    )


def counted_pools(report: Report) -> str:
    """For people."""
    return "1 KV pool" if len(report.pools) == 1 else f"{len(report.pools)} KV pools"
