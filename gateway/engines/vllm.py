"""vLLM: priority (lower goes first), session header, data-parallel ranks, capacity from `cache_config_info`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

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
    EngineAdapter,
    Outgoing,
    OutgoingRequest,
    PolledPool,
    Repair,
    Report,
    typed_messages,
)
from gateway.engines.pages import (
    MOST_DIGITS,
    Sample,
    is_at_least,
    json_object,
    json_page,
    read_models,
    samples,
    total,
)
from policies.types import NO_LIMITS, QueueLimits

PRIORITY_HEADER = "X-Vllm-Priority"
RANK_HEADER = "X-data-parallel-rank"
SESSION_HEADER = "X-Session-ID"
_SESSION_NAME = SESSION_HEADER.lower()
_PRIORITY_NAME, _RANK_NAME = PRIORITY_HEADER.lower(), RANK_HEADER.lower()

# The header is read since vLLM pull request 51089; 0.32 is the oldest release that was seen to order by it. It
# overrides the body and also reaches /v1/messages, whose body has no `priority`.
_PRIORITY_HEADER_SINCE = (0, 32, 0)
# Older releases ignore the rank and balance by themselves (said of 0.18 in public trackers). Seen on 0.32 with two
# ranks: every call lands where it is sent on these paths; /v1/responses does not read the header.
_RANK_SINCE = (0, 18, 0)
_RANK_PATHS = frozenset((CHAT, COMPLETIONS, MESSAGES))

_SALT_PATHS = frozenset((CHAT, COMPLETIONS, RESPONSES))

SERVER_INFO = "/server_info?config_format=json"
"""Its own settings, which it shows with VLLM_SERVER_DEV_MODE=1 alone."""
_QUEUE_FULL = ("is currently busy and cannot accept new requests", "reached its prefill token backlog limit")
"""Texts of its 503s under --max-num-queued-reqs and --max-num-queued-tokens."""

_CONFIG = "vllm:cache_config_info"
_RUNNING = "vllm:num_requests_running"
_WAITING = "vllm:num_requests_waiting"
_WAITING_WHY = "vllm:num_requests_waiting_by_reason"
_QUERIES = "vllm:prefix_cache_queries_total"
_HITS = "vllm:prefix_cache_hits_total"
_METRICS = frozenset((_CONFIG, _RUNNING, _WAITING, _WAITING_WHY, _QUERIES, _HITS))


class Vllm(EngineAdapter):
    """The adapter of vLLM."""

    kind = "vllm"
    metrics_paths = ("/metrics", "/v1/models")
    probe_paths = ("/version", "/openapi.json", "/kv_event_sources", SERVER_INFO)
    prefix_cache_flag = "--enable-prefix-caching"
    cached_tokens_flag = "--enable-prompt-tokens-details"
    capacity_flag = "leave /metrics on and reachable"
    tool_flags = "--enable-auto-tool-choice --tool-call-parser NAME, the name being that of the model's format"
    priority_words: Mapping[bool | None, str] = {
        **EngineAdapter.priority_words,
        None: "used if it has --scheduling-policy priority, which vLLM does not state",
    }
    names_responses = True
    claim_keys = frozenset(("priority",))
    claim_headers = frozenset((_PRIORITY_NAME, _RANK_NAME))

    def abilities(self) -> Abilities:
        return Abilities(lower_goes_first=True)

    def learn(self, pages: Mapping[str, str], abilities: Abilities) -> None:
        super().learn(pages, abilities)
        abilities.version = fields.text(json_page(pages, "/version"), "version") or ""
        abilities.can_address_pools = is_at_least(abilities.version, _RANK_SINCE)
        abilities.kv_event_ports = _kv_event_ports(json_page(pages, "/kv_event_sources"))
        if order := fields.text(_scheduling(pages), "policy"):
            abilities.honours_priority = order == "priority"

    def rendering(self, model: str, messages: list[Json], tools: list[Json]) -> tuple[str, Json] | None:
        body: Json = {"model": model, "messages": messages, "tools": tools, "return_token_strs": True}
        return "/tokenize", body

    def rendered(self, model: str, answer: str) -> str:
        return "".join(str(part) for part in fields.items(json_object(answer), "token_strs"))

    def salted_paths(self, abilities: Abilities) -> frozenset[str]:
        return _SALT_PATHS

    def outgoing(self, request: OutgoingRequest, abilities: Abilities) -> Outgoing:
        path, hints, pool = request.path, request.hints, request.pool
        if path not in CONVERSATIONS:
            return Outgoing()
        honoured, dropped = self.claims(request)
        headers: list[tuple[str, str]] = []
        put: Json = {}
        names = []
        if hints.session_id and not (_SESSION_NAME in request.headers or "session_id" in request.body):
            headers.append((SESSION_HEADER, hints.session_id))
            names.append("session")
        has_own = honoured.keys or _PRIORITY_NAME in honoured.headers
        if hints.urgency and not has_own and _takes_priority(abilities):
            if is_at_least(abilities.version, _PRIORITY_HEADER_SINCE):
                headers.append((PRIORITY_HEADER, str(-hints.urgency)))
                names.append("priority")
            elif path != MESSAGES:
                put["priority"] = -hints.urgency
                names.append("priority")
        if request.response_id and "request_id" not in abilities.refused_fields:
            put["request_id"] = request.response_id
        pin = RANK_HEADER if pool and path in _RANK_PATHS and _RANK_NAME not in honoured.headers else ""
        if pin:
            headers.append((pin, pool))
        return Outgoing(tuple(headers), put, dropped.keys.difference(put), tuple(names), dropped.headers, pin=pin)

    def repaired(self, path: str, body: Json, abilities: Abilities) -> Repair:
        return typed_messages(path, body) | _without_grammars(body) if path == RESPONSES else NO_REPAIR

    def refused_fields(self, status: int, message: str, sent: Outgoing) -> frozenset[str]:
        found = super().refused_fields(status, message, sent)
        if status == 400 and sent.pin and "data_parallel_rank" in message:
            found |= {sent.pin}
        return found

    def is_queue_full(self, message: str) -> bool:
        return any(text in message for text in _QUEUE_FULL)

    def parse_report(self, pages: Mapping[str, str]) -> Report:
        models, lengths = read_models(pages)
        found = samples(pages.get("/metrics", ""), _METRICS)
        caching = [s.labels.get("enable_prefix_caching") for s in found if s.name == _CONFIG]
        return Report(
            models,
            lengths,
            _pools(found, _scheduling(pages)) or ((PolledPool(""),) if models else ()),
            total(found, _QUERIES),
            total(found, _HITS),
            caches_prefixes=None if not caching or None in caching else "False" not in caching,
        )

    def advice(self, report: Report, abilities: Abilities) -> Iterator[Advice]:
        yield from super().advice(report, abilities)
        if abilities.honours_priority is False:
            yield Advice("its own queue ignores the gateway's order", "--scheduling-policy priority")
        block_tokens = max((pool.block_tokens or 0 for pool in report.pools), default=0)
        if block_tokens > 64:
            yield Advice(f"blocks of {block_tokens} tokens: up to that many are lost per turn", "--block-size 32")


def _kv_event_ports(sources: Json) -> tuple[tuple[int, int | None], ...]:
    """One per data-parallel rank. At a host by name vLLM connects to one subscriber, which is not this gateway."""
    ports = []
    for rank in sorted(sources, key=_number):
        stated = fields.obj(sources, rank)
        port = _any_port(fields.text(stated, "endpoint"))
        if port is not None:
            ports.append((port, _any_port(fields.text(stated, "replay_endpoint"))))
    return tuple(ports)


def _any_port(endpoint: str | None) -> int | None:
    """The port of `tcp://*:5557`."""
    host, _, port = (endpoint or "").rpartition(":")
    return _count(port) if host == "tcp://*" else None


def _without_grammars(body: Json) -> Repair:
    """Free custom tools of their grammar: vLLM 0.32 runs them, but not under one (Codex's `apply_patch`)."""
    tools = body.get("tools")
    if not isinstance(tools, list) or not any(map(_has_grammar, tools)):
        return NO_REPAIR
    free = [{**tool, "format": {"type": "text"}} if _has_grammar(tool) else tool for tool in tools]
    return Repair({"tools": free}, ("tools: custom tools lost their grammar",))


def _has_grammar(tool: Any) -> bool:
    is_custom = isinstance(tool, dict) and tool.get("type") == "custom"
    return is_custom and fields.obj(tool, "format").get("type") == "grammar"


def _takes_priority(abilities: Abilities) -> bool:
    return abilities.honours_priority is not False and "priority" not in abilities.refused_fields


def _scheduling(pages: Mapping[str, str]) -> Json:
    """The settings of its scheduler; empty where it does not show them."""
    return fields.obj(fields.obj(json_page(pages, SERVER_INFO), "vllm_config"), "scheduler_config")


def _limits(scheduling: Json, num_ranks: int) -> QueueLimits:
    """Of one rank. They hold for all together, in the API server."""

    def part(key: str) -> int | None:
        limit = fields.integer(scheduling, key)
        return None if limit is None else max(1, limit // num_ranks)

    return QueueLimits(calls=part("max_num_queued_reqs"), prompt_tokens=part("max_num_queued_tokens"))


def _pools(found: list[Sample], scheduling: Json) -> tuple[PolledPool, ...]:
    """One per data-parallel rank, by the `engine` label."""
    ranks = sorted({s.labels.get("engine", "") for s in found if s.name in (_CONFIG, _RUNNING)}, key=_number)
    if len(ranks) > MOST_POOLS:
        return ()
    by_rank: dict[str, list[Sample]] = {rank: [] for rank in ranks}
    for sample in found:
        by_rank.setdefault(sample.labels.get("engine", ""), []).append(sample)
    pools = []
    for rank in ranks:
        mine = by_rank[rank]
        config = next((s.labels for s in mine if s.name == _CONFIG), {})
        running, waiting = total(mine, _RUNNING), _waiting(mine)
        pools.append(
            PolledPool(
                rank if len(ranks) > 1 else "",
                capacity_tokens=_capacity(config),
                block_tokens=_count(config.get("block_size")),
                running=None if running is None else int(running),
                waiting=None if waiting is None else int(waiting),
                limits=_limits(scheduling, len(ranks)) if scheduling else NO_LIMITS,
            )
        )
    return tuple(pools)


def _waiting(found: list[Sample]) -> float | None:
    """Requests that wait for room. Newer releases count those that wait for a grammar, or the like, apart."""
    for_room = [s for s in found if s.name == _WAITING_WHY and s.labels.get("reason") == "capacity"]
    return total(for_room, _WAITING_WHY) if for_room else total(found, _WAITING)


def _capacity(config: Mapping[str, str]) -> int | None:
    """The stated `kv_cache_size_tokens`, else blocks times their size, which is wrong for hybrid models."""
    if size := _count(config.get("kv_cache_size_tokens")):
        return size
    blocks, tokens = _count(config.get("num_gpu_blocks")), _count(config.get("block_size"))
    return blocks * tokens if blocks and tokens else None


def _count(label: str | None) -> int | None:
    return int(label) if label is not None and label.isdecimal() and len(label) <= MOST_DIGITS else None


def _number(rank: str) -> tuple[int, str]:
    return (int(rank) if rank.isdecimal() and len(rank) <= MOST_DIGITS else -1, rank)


# ---- the embedded engine: it speaks as vLLM does, and states its slots, which vLLM does not

_SLOTS = "embedded:max_num_seqs"


class EmbeddedAdapter(Vllm):
    """The adapter of the gateway's own engine."""

    kind = "embedded"

    def parse_report(self, pages: Mapping[str, str]) -> Report:
        report = super().parse_report(pages)
        slots = total(samples(pages.get("/metrics", ""), (_SLOTS,)), _SLOTS)
        if slots is None:
            return report
        return replace(report, pools=tuple(replace(pool, slots=int(slots)) for pool in report.pools))
