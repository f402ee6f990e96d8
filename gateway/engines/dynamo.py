"""NVIDIA Dynamo: priorities by header, `nvext.agent_hints`, and the workers behind one frontend as pools.

Dynamo refuses unknown fields with 400 at every level: a body gets only fields that 1.3 to 1.6 were seen to take.
Worker ids are 64-bit numbers: they are kept as text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import orjson

from gateway.core import fields
from gateway.core.fields import Json
from gateway.engines.base import (
    CHAT,
    COMPLETIONS,
    CONVERSATIONS,
    MESSAGES,
    MOST_POOLS,
    NO_REPAIR,
    RESPONSES,
    Abilities,
    Advice,
    Claims,
    EngineAdapter,
    Outgoing,
    OutgoingRequest,
    PolledPool,
    Repair,
    Report,
    typed_messages,
)
from gateway.engines.pages import MOST_DIGITS, Sample, json_page, read_models, samples, total
from policies.types import NO_LIMITS, Hints, QueueLimits

PRIORITY_HEADER = "x-dynamo-request-priority"
TIER_HEADER = "x-dynamo-request-strict-priority"
WORKER_HEADER = "x-dynamo-worker-instance-id"
SESSION_HEADER = "x-dynamo-session-id"
PARENT_HEADER = "x-dynamo-parent-session-id"
_RANK_HEADERS = frozenset((PRIORITY_HEADER, TIER_HEADER))
_RANK_KEYS = frozenset(("priority", "strict_priority", "latency_sensitivity"))
_PLACE_HEADERS = frozenset(
    (
        WORKER_HEADER,
        "x-dynamo-prefill-instance-id",
        "x-dynamo-dp-rank",
        "x-dynamo-prefill-dp-rank",
        "x-worker-instance-id",
        "x-prefill-instance-id",
        "x-dp-rank",
    )
)
_PLACE_KEYS = frozenset(("backend_instance_id", "decode_worker_id", "prefill_worker_id", "dp_rank"))
# Session headers that Dynamo reads itself: a client that sends one of them gets no second identity.
_SESSION_SCHEMAS = (SESSION_HEADER, "x-session-id", "x-claude-code-session-id")

_REFUSED_TOOLS = frozenset(("custom", "tool_search", "web_search"))
"""Types of tools that its parser of `/v1/responses` does not know (1.6.1); Codex always offers `web_search`."""

MAX_CREDIT_S = 60
"""Queue credit of a session's last turn. Bounded, so that a request that waited longer than this goes first."""
SGLANG_GAP = 10
"""Dynamo passes the credit on as the worker's priority, and SGLang preempts what runs for one that is higher by
more than this (the default of its `--priority-scheduling-preemption-threshold`)."""
_URGENCY_PER_TIER = 20

_BLOCKS = "dynamo_frontend_model_total_kv_blocks"
_BLOCK_TOKENS = "dynamo_frontend_model_kv_cache_block_size"
_SLOTS = "dynamo_frontend_model_max_num_seqs"
_ROUTER_QUEUE = "dynamo_frontend_router_queue_pending_requests"
_PROMPT = "dynamo_frontend_input_sequence_tokens_sum"
_CACHED = "dynamo_frontend_cached_tokens_sum"
_BATCHED_TOKENS = "dynamo_frontend_model_max_num_batched_tokens"
_ACTIVE_BLOCKS = "dynamo_frontend_worker_active_decode_blocks"
_METRICS = frozenset(
    (
        *(_BLOCKS, _BLOCK_TOKENS, _SLOTS, _BATCHED_TOKENS, _ROUTER_QUEUE, _PROMPT, _CACHED),
        _ACTIVE_BLOCKS,
    )
)
_QUEUE_FULL = "service temporarily overloaded"
"""Text of its 529 while a worker is above a threshold of /busy_threshold. On 1.6.1 a call that is sent to a busy
worker gets it even if another one is free."""
_WORKER = "dynamo_component_uptime_seconds"
_RUNNING = ("vllm:num_requests_running", "sglang:num_running_reqs", "trtllm:num_requests_running")
_WAITING = ("vllm:num_requests_waiting", "sglang:num_queue_reqs", "trtllm:num_requests_waiting")
_WORKER_METRICS = frozenset((_WORKER, *_RUNNING, *_WAITING))

_SALT_PATHS = frozenset((CHAT, COMPLETIONS))

_READ_BACK = b',"nvext":{"worker_id":{'
_READ_BACK_VALUE = re.compile(rb"[^{}]*\}\}")


class Dynamo(EngineAdapter):
    """The adapter of Dynamo."""

    kind = "dynamo"
    metrics_paths = ("/health", "/metrics", "/v1/models", "/busy_threshold")
    capacity_flag = "leave /metrics on and reachable"
    tool_flags = "--dyn-tool-call-parser NAME on the worker, the name being that of the model's format"
    priority_words: Mapping[bool | None, str] = {
        **EngineAdapter.priority_words,
        True: "yes, while its router queues (--router-queue-threshold)",
    }
    claim_headers = _RANK_HEADERS | _PLACE_HEADERS

    def abilities(self) -> Abilities:
        return Abilities(can_address_pools=True)

    def learn(self, pages: Mapping[str, str], abilities: Abilities) -> None:
        super().learn(pages, abilities)
        about = fields.obj(json_page(pages, "/openapi.json"), "info")
        abilities.version = fields.text(about, "version") or ""
        if metrics := pages.get("/metrics"):
            # Only --router-mode kv has a queue to order.
            abilities.honours_priority = bool(samples(metrics, (_ROUTER_QUEUE,)))
        workers = (f"\n{page}" for path, page in pages.items() if "://" in path)
        abilities.preemption_gap = SGLANG_GAP if any("\nsglang:" in page for page in workers) else None

    def rendering(self, model: str, messages: list[Json], tools: list[Json]) -> tuple[str, Json] | None:
        body: Json = {"model": model, "messages": messages, "tools": tools, "max_tokens": 1, "stream": True}
        return "/v1/chat/completions", body | {"nvext": {"annotations": ["formatted_prompt"]}}

    def rendered(self, model: str, answer: str) -> str:
        """Read the annotation: an event whose payload is a comment line with a JSON string."""
        _, _, rest = answer.partition("event: formatted_prompt\n: ")
        try:
            return str(orjson.loads(rest.partition("\n")[0]))
        except orjson.JSONDecodeError:
            return ""

    def salted_paths(self, abilities: Abilities) -> frozenset[str]:
        return _SALT_PATHS

    def outgoing(self, request: OutgoingRequest, abilities: Abilities) -> Outgoing:
        path, hints, pool = request.path, request.hints, request.pool
        if path not in CONVERSATIONS:
            return Outgoing()
        honoured, dropped = self.claims(request)
        client_nvext = fields.obj(request.body, "nvext")
        headers = _session_headers(hints, request.headers)
        names = ["session"] if headers else []
        if not _ranks_itself(honoured, client_nvext, request.may_prioritise):
            headers += _priority_headers(hints, abilities.preemption_gap)
            names.append("priority")
        pin = WORKER_HEADER if pool and not _places_itself(honoured, client_nvext, request.may_prioritise) else ""
        if pin:
            headers.append((pin, pool))
        asks_worker = (
            abilities.num_pools > 1 and not pin and path != MESSAGES and "extra_fields" not in client_nvext
        )
        nvext = _nvext(hints, asks_worker, abilities.refused_fields)
        names += nvext.get("agent_hints", ())
        return Outgoing(
            tuple(headers),
            {"nvext": nvext} if nvext else {},
            hint_names=tuple(names),
            drop_headers=dropped.headers,
            pin=pin,
            reads_back="extra_fields" in nvext,
        )

    def repaired(self, path: str, body: Json, abilities: Abilities) -> Repair:
        return typed_messages(path, body) | _without_refused_tools(body) if path == RESPONSES else NO_REPAIR

    def refused_fields(self, status: int, message: str, sent: Outgoing) -> frozenset[str]:
        """As by default, and the pin where its worker is gone: the message is then only `Invalid request`."""
        if status == 400 and sent.pin and message.strip() == "Invalid request":
            return frozenset((sent.pin,))
        return super().refused_fields(status, message, sent)

    def is_queue_full(self, message: str) -> bool:
        return _QUEUE_FULL in message.lower()

    def parse_report(self, pages: Mapping[str, str]) -> Report:
        models, lengths = read_models(pages)
        found = samples(pages.get("/metrics", ""), _METRICS)
        return Report(models, lengths, _pools(pages, found, models), total(found, _PROMPT), total(found, _CACHED))

    def served_by(self, event: Json) -> str | None:
        worker = fields.integer(fields.obj(fields.obj(event, "nvext"), "worker_id"), "decode_worker_id")
        return None if worker is None else str(worker)

    def without_read_back(self, event: bytes) -> bytes:
        """Cut out `nvext`, which Dynamo writes without spaces and never first. An unescaped quote cannot stand
        inside a JSON string, so the match is a key; the last one is the answer's own."""
        start = event.rfind(_READ_BACK)
        end = _READ_BACK_VALUE.match(event, start + len(_READ_BACK)) if start >= 0 else None
        return event[:start] + event[end.end() :] if end else event

    def advice(self, report: Report, abilities: Abilities) -> Iterator[Advice]:
        yield from super().advice(report, abilities)
        if abilities.honours_priority is False:
            problem = "its router has no queue, so the order of turns ends at the gateway"
            yield Advice(problem, "--router-mode kv on the frontend")
        if abilities.paths is not None and MESSAGES not in abilities.paths:
            yield Advice("/v1/messages is not served", "DYN_ENABLE_ANTHROPIC_API=1 on the frontend")
        if len(report.models) > 1:
            problem = "with several models its workers cannot be distinguished"
            yield Advice(problem, "one frontend per model, or accept it")


def _without_refused_tools(body: Json) -> Repair:
    """Leave out tools of types that Dynamo does not have: they are not offered to the model."""
    tools = body.get("tools")
    if not isinstance(tools, list):
        return NO_REPAIR
    kept = [tool for tool in tools if _type_of(tool) not in _REFUSED_TOOLS]
    gone = sorted({str(_type_of(tool)) for tool in tools} & _REFUSED_TOOLS)
    return Repair({"tools": kept}, (f"tools: {', '.join(gone)} left out",)) if gone else NO_REPAIR


def _type_of(tool: Any) -> Any:
    return tool.get("type") if isinstance(tool, dict) else None


def _session_headers(hints: Hints, client_headers: Mapping[str, str]) -> list[tuple[str, str]]:
    if not hints.session_id or any(name in client_headers for name in _SESSION_SCHEMAS):
        return []
    parent = [(PARENT_HEADER, hints.parent_id)] if hints.parent_id else []
    return [(SESSION_HEADER, hints.session_id), *parent]


def _priority_headers(hints: Hints, gap: int | None) -> list[tuple[str, str]]:
    """The tier comes first; seconds of queue credit order the requests of one tier. Both are sent at 0 too, as
    they override those of the body. Batches, whose urgency is below 0, have no credit."""
    credit_s = 0
    if hints.remaining_turns is not None and hints.urgency >= 0:
        most_s = MAX_CREDIT_S if gap is None else min(gap, MAX_CREDIT_S)
        credit_s = round(most_s / (1 + max(0.0, hints.remaining_turns)))
    return [(TIER_HEADER, str(max(0, hints.urgency) // _URGENCY_PER_TIER)), (PRIORITY_HEADER, str(credit_s))]


def _ranks_itself(honoured: Claims, nvext: Json, may_prioritise: bool) -> bool:
    """Whether an entitled client set a priority of its own, in a header or in the body."""
    keys = fields.obj(nvext, "agent_hints").keys() & _RANK_KEYS if may_prioritise else ()
    return bool(keys or honoured.headers & _RANK_HEADERS)


def _places_itself(honoured: Claims, nvext: Json, may_prioritise: bool) -> bool:
    """Whether an entitled client chose a worker itself. For other clients the header overrides the body."""
    keys = nvext.keys() & _PLACE_KEYS if may_prioritise else ()
    return bool(keys or honoured.headers & _PLACE_HEADERS)


def _nvext(hints: Hints, asks_worker: bool, refused: set[str]) -> Json:
    nvext: Json = {}
    agent: Json = {}
    if hints.expected_output_tokens:
        agent["osl"] = hints.expected_output_tokens
    if hints.prefills_next:
        agent["speculative_prefill"] = True
    agent = {name: value for name, value in agent.items() if f"nvext.agent_hints.{name}" not in refused}
    if agent and not refused & {"nvext", "nvext.agent_hints"}:
        nvext["agent_hints"] = agent
    if asks_worker and not refused & {"nvext", "nvext.extra_fields"}:
        nvext["extra_fields"] = ["worker_id"]
    return nvext


def _pools(pages: Mapping[str, str], found: list[Sample], models: tuple[str, ...]) -> tuple[PolledPool, ...]:
    """One pool per worker; the model's gauges hold for each worker (seen on 1.6.1 with four of them).

    Workers of several models, or of split prefill and decode, look alike: they are one pool without a size.
    """
    if not models:
        return ()
    workers = _workers(pages)
    if len(models) > 1 or not workers:
        return (PolledPool(""),)
    block_tokens, blocks, slots = (total(found, name) for name in (_BLOCK_TOKENS, _BLOCKS, _SLOTS))
    loads = dict(_load(page) for path, page in pages.items() if "://" in path)
    pools = []
    for worker in workers:
        hexadecimal = f"{int(worker):x}" if worker.isdecimal() and len(worker) <= MOST_DIGITS else worker
        running, waiting = loads.get(hexadecimal, (None, None))
        pools.append(
            PolledPool(
                worker if len(workers) > 1 else "",
                capacity_tokens=int(block_tokens * blocks) if block_tokens and blocks else None,
                block_tokens=int(block_tokens) if block_tokens else None,
                slots=int(slots) if slots else None,
                running=running,
                waiting=waiting,
                limits=_limits(_thresholds(pages, models[0]), found, worker),
            )
        )
    return tuple(pools)


def _thresholds(pages: Mapping[str, str], model: str) -> Json:
    """Above which the router takes a worker for busy; empty where it has none."""
    rows = fields.items(json_page(pages, "/busy_threshold"), "thresholds")
    return next((row for row in rows if isinstance(row, dict) and row.get("model") == model), {})


def _limits(thresholds: Json, found: list[Sample], worker: str) -> QueueLimits:
    if not thresholds:
        return NO_LIMITS
    blocks, batched = total(found, _BLOCKS), total(found, _BATCHED_TOKENS)
    mine = [sample for sample in found if sample.labels.get("worker_id") == worker]
    limits = [fields.number(thresholds, "active_prefill_tokens_threshold")]
    if batched and (part := fields.number(thresholds, "active_prefill_tokens_threshold_frac")) is not None:
        limits.append(part * batched)
    prefill_tokens = min((limit for limit in limits if limit is not None), default=None)
    part = fields.number(thresholds, "active_decode_blocks_threshold")
    is_full = part is not None and blocks is not None and (total(mine, _ACTIVE_BLOCKS) or 0) > part * blocks
    return QueueLimits(
        prefill_tokens=None if prefill_tokens is None else max(0, int(prefill_tokens)), is_full=is_full
    )


def _workers(pages: Mapping[str, str]) -> list[str]:
    """Ids of the instances that generate; empty when they are of more than one component."""
    components: dict[str, set[str]] = {}
    for row in fields.items(json_page(pages, "/health"), "instances"):
        if isinstance(row, dict) and row.get("endpoint") == "generate":
            name = f"{row.get('namespace')}/{row.get('component')}"
            components.setdefault(name, set()).add(str(row.get("instance_id")))
    workers = next(iter(components.values())) if len(components) == 1 else ()
    return sorted(workers) if len(workers) <= MOST_POOLS else []


def _load(page: str) -> tuple[str, tuple[int | None, int | None]]:
    """Worker id in hexadecimal, requests running and waiting, from a worker's own page."""
    found = samples(page, _WORKER_METRICS)
    worker = next((sample.labels.get("worker_id", "") for sample in found if sample.name == _WORKER), "")
    return worker, (_first(found, _RUNNING), _first(found, _WAITING))


def _first(found: list[Sample], names: tuple[str, ...]) -> int | None:
    return next((int(sample.value) for sample in found if sample.name in names), None)
