"""SGLang: priority (higher goes first unless flipped), soft session references, load and capacity as JSON."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Mapping

from gateway.core import fields
from gateway.core.fields import Json
from gateway.engines.base import (
    CHAT,
    COMPLETIONS,
    CONVERSATIONS,
    EMBEDDINGS,
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
)
from gateway.engines.pages import Sample, is_at_least, json_object, json_page, read_models, samples, total
from policies.types import QueueLimits

RANK_HEADER = "X-Data-Parallel-Rank"
# Measured on 0.5.19 in SGLang's pull request 38729: these paths pin.
_RANK_SINCE = (0, 5, 19)
_RANK_PATHS = frozenset((CHAT, COMPLETIONS, MESSAGES))
_SALT_PATHS = frozenset((CHAT, COMPLETIONS))
# Measured on 0.5.23: there /v1/responses pins and salts, too.
_RESPONSES_SINCE = (0, 5, 23)
_QUEUE_FULL = (
    "request queue is full",
    "aborted by a higher priority request",
    "request waiting timeout reached",
)
"""Texts of its 503s for calls that it has not begun. Under --max-queued-requests the queue had no place, or gave
the place away; or a call was in it for longer than SGLANG_REQ_WAITING_TIMEOUT, which no page states."""
# In the source of 0.5.23 chat, completions and embeddings use `priority`, /v1/responses takes it without using it,
# /v1/messages ignores it. There this header sets it, where SGLANG_ENABLE_REQUEST_HEADER_OVERRIDES=1.
PRIORITY_HEADER = "x-override-priority"
_PLACE_HEADERS = frozenset((RANK_HEADER.lower(), "x-override-routed-dp-rank"))
_PLACE_KEYS = frozenset(("routed_dp_rank", "data_parallel_rank"))
_RANKED = CONVERSATIONS | {EMBEDDINGS}
_UNRANKED = frozenset((RESPONSES, MESSAGES))
_LEVELS = (0, 10, 20, 40)
"""Urgencies at which the level of a turn rises by one. They are few, as SGLang labels its histograms by priority.
The levels are close, as it preempts running calls for a difference above 10. An agent turn with at most one turn
to follow has the highest level; batches are below the lowest."""
SPAN = len(_LEVELS)
_LEAST, _LARGEST = -(2**63), 2**63 - 1
"""What a request without a priority counts as where there is no `--default-priority-value`: the least number, and
with flipped polarity the largest (`Scheduler._set_or_validate_priority`)."""
_NO_THOUGHTS = "disabled"
_ANY_HOST = ("*", "0.0.0.0", "::", "[::]")  # noqa: S104
_PROMPT = "sglang:prompt_tokens_total"
_CACHED = "sglang:cached_tokens_total"
_HOST = "sglang:hicache_host_total_tokens"


class SGLang(EngineAdapter):
    """The adapter of SGLang."""

    kind = "sglang"
    metrics_paths = ("/v1/loads", "/metrics", "/v1/models")
    probe_paths = ("/openapi.json", "/server_info", "/get_server_info")
    prefix_cache_flag = "no --disable-radix-cache"
    cached_tokens_flag = "--enable-cache-report"
    capacity_flag = "a release with /v1/loads or /server_info"
    tool_flags = "--tool-call-parser NAME, the name being that of the model's format"
    context_flag = "--context-length"
    names_responses = True
    claim_keys = _PLACE_KEYS | {"priority"}
    claim_headers = _PLACE_HEADERS | {PRIORITY_HEADER}

    def abilities(self) -> Abilities:
        # `session_id` needs --enable-session-radix-cache; until that is seen it is not sent.
        return Abilities(refused_fields={"session_id"})

    def learn(self, pages: Mapping[str, str], abilities: Abilities) -> None:
        super().learn(pages, abilities)
        info = _server_info(pages)
        if not info:
            return
        abilities.version = fields.text(info, "version") or ""
        abilities.honours_priority = fields.flag(info, "enable_priority_scheduling")
        abilities.lower_goes_first = fields.flag(info, "schedule_low_priority_values_first")
        abilities.reports_cached_tokens = fields.flag(info, "enable_cache_report")
        abilities.can_address_pools = is_at_least(abilities.version, _RANK_SINCE)
        abilities.unset_priority = fields.integer(info, "default_priority_value")
        abilities.ranks_unset_last = "default_priority_value" in info and info["default_priority_value"] is None
        if not fields.flag(info, "disable_priority_preemption"):
            abilities.preemption_gap = fields.integer(info, "priority_scheduling_preemption_threshold")
        if "reasoning_parser" in info:
            abilities.parses_reasoning = info["reasoning_parser"] is not None
        abilities.kv_event_ports = _kv_event_ports(fields.obj(info, "kv_events"))
        if fields.flag(info, "enable_session_radix_cache"):
            abilities.refused_fields.discard("session_id")

    def rendering(self, model: str, messages: list[Json], tools: list[Json]) -> tuple[str, Json] | None:
        return "/v1/tokenize", {"model": model, "messages": messages, "tools": tools}

    def rendered(self, model: str, answer: str) -> str | tuple[str, Json]:
        parsed = json_object(answer)
        if tokens := fields.items(parsed, "tokens"):
            return "/v1/detokenize", {"model": model, "tokens": tokens, "skip_special_tokens": False}
        return fields.text(parsed, "text") or ""

    def salted_paths(self, abilities: Abilities) -> frozenset[str]:
        return _SALT_PATHS | {RESPONSES} if is_at_least(abilities.version, _RESPONSES_SINCE) else _SALT_PATHS

    def unranked_paths(self, abilities: Abilities) -> frozenset[str]:
        """It states nowhere whether it reads the header that ranks `/v1/messages`."""
        is_ranking = abilities.honours_priority is not False and abilities.preemption_gap != 0
        return _UNRANKED if is_ranking else _RANKED

    def outgoing(self, request: OutgoingRequest, abilities: Abilities) -> Outgoing:
        """Every call gets a priority, 0 too: SGLang takes a call without one for the lowest."""
        path, hints, pool = request.path, request.hints, request.pool
        if path not in _RANKED:
            return Outgoing()
        honoured, dropped = self.claims(request)
        added: Json = {}
        headers: list[tuple[str, str]] = []
        if abilities.honours_priority and not _ranks_itself(request, honoured):
            added["priority"] = _priority(hints.urgency, abilities)
            if path == MESSAGES and "priority" not in abilities.refused_fields:
                headers.append((PRIORITY_HEADER, str(added["priority"])))
        # /v1/messages is translated inside SGLang, which reads no session there.
        if path not in (MESSAGES, EMBEDDINGS) and hints.session_id and "session_id" not in request.body:
            added["session_id"] = hints.session_id
        names = tuple(key.removesuffix("_id") for key in added if key not in abilities.refused_fields)
        if request.response_id:
            added["request_id"] = request.response_id
        added = {key: value for key, value in added.items() if key not in abilities.refused_fields}
        places_itself = honoured.headers & _PLACE_HEADERS or honoured.keys & _PLACE_KEYS
        pins = path in _RANK_PATHS or (path == RESPONSES and is_at_least(abilities.version, _RESPONSES_SINCE))
        pin = RANK_HEADER if pool and pins and not places_itself else ""
        if pin:
            headers.append((pin, pool))
        return Outgoing(
            tuple(headers),
            added,
            dropped.keys.difference(added),
            names,
            dropped.headers,
            pin=pin,
            names_hits=path == MESSAGES and abilities.reports_cached_tokens is True,
        )

    def repaired(self, path: str, body: Json, abilities: Abilities) -> Repair:
        """Claude Code always wants thoughts, and SGLang refuses that wish without a `--reasoning-parser`."""
        if path != MESSAGES or abilities.parses_reasoning is not False:
            return NO_REPAIR
        if fields.text(fields.obj(body, "thinking"), "type") in (None, _NO_THOUGHTS):
            return NO_REPAIR
        return Repair({"thinking": {"type": _NO_THOUGHTS}}, ("thinking: the engine has no --reasoning-parser",))

    def closing(self, session_id: str, abilities: Abilities) -> tuple[str, dict[str, str]] | None:
        """Drop the references of the session radix cache (SGLang's pull request 29173)."""
        return None if "session_id" in abilities.refused_fields else ("/close_session", {"session_id": session_id})

    def is_queue_full(self, message: str) -> bool:
        return any(text in message.lower() for text in _QUEUE_FULL)

    def parse_report(self, pages: Mapping[str, str]) -> Report:
        models, lengths = read_models(pages)
        info = _server_info(pages)
        loads = [row for row in fields.items(json_page(pages, "/v1/loads"), "loads") if isinstance(row, dict)]
        if len(loads) > MOST_POOLS:
            loads = []
        counters = samples(pages.get("/metrics", ""), (_PROMPT, _CACHED, _HOST))
        # A counter appears with its first request, that of hits with the first hit.
        none_yet = 0.0 if fields.flag(info, "enable_metrics") else None
        host_tokens = [s for s in counters if s.name == _HOST]
        pools = tuple(_pool(row, info, host_tokens, is_one_of_many=len(loads) > 1) for row in loads)
        return Report(
            models,
            lengths,
            pools or ((_pool({}, info, host_tokens, is_one_of_many=False),) if models else ()),
            _counted(counters, _PROMPT, none_yet),
            _counted(counters, _CACHED, none_yet),
            caches_prefixes=not fields.flag(info, "disable_radix_cache") if info else None,
            chunks_prefill=None if (chunk := fields.integer(info, "chunked_prefill_size")) is None else chunk > 0,
        )

    def advice(self, report: Report, abilities: Abilities) -> Iterator[Advice]:
        yield from super().advice(report, abilities)
        if not abilities.honours_priority:
            yield Advice("its own queue ignores the gateway's order", "--enable-priority-scheduling")
        elif abilities.ranks_unset_last:
            problem = "requests without a priority go last, those of /v1/messages and /v1/responses among them"
            yield Advice(problem, "--default-priority-value 0")
        if abilities.honours_priority and (gap := abilities.preemption_gap) is not None and gap < SPAN:
            problem = (
                f"it preempts calls for priorities more than {gap} higher, so the gateway uses {gap + 1} levels"
            )
            yield Advice(problem, "--priority-scheduling-preemption-threshold 10")
        if "session_id" in abilities.refused_fields:
            yield Advice("live sessions are evicted like dead ones", "--enable-session-radix-cache")
        if report.prefix_hits_tokens is None:
            yield Advice("prefix hits are not counted", "--enable-metrics")


def _kv_event_ports(stated: Json) -> tuple[tuple[int, int | None], ...]:
    """One per data-parallel rank. At a host by name it connects to one subscriber, which is not this gateway."""
    first, replay = (
        fields.integer(stated, "endpoint_port_base"),
        fields.integer(stated, "replay_endpoint_port_base"),
    )
    if first is None or fields.text(stated, "endpoint_host") not in _ANY_HOST:
        return ()
    ranks = range(fields.integer(stated, "dp_size") or 1)
    return tuple((first + rank, None if replay is None else replay + rank) for rank in ranks)


def _priority(urgency: int, abilities: Abilities) -> int:
    """The level of an urgency, one below that of side requests for batches.

    Levels are counted from what the engine gives a request without a priority, as all of them, and such requests,
    may run beside each other. Where it would preempt one for another they are fewer.
    """
    level = bisect_right(_LEVELS, urgency) - 1
    gap, base = abilities.preemption_gap, abilities.unset_priority
    if gap is not None and gap < SPAN:
        level = math.ceil((level + 1) * gap / SPAN) - 1
    sign = -1 if abilities.lower_goes_first else 1
    if base is None:  # the lowest there is: it is far from all others, which matters to preemption alone
        lowest = _LARGEST if abilities.lower_goes_first else _LEAST
        base = 0 if gap is None else lowest + sign
    return base + sign * level


def _ranks_itself(request: OutgoingRequest, honoured: Claims) -> bool:
    """Whether an entitled client set a priority of its own."""
    return PRIORITY_HEADER in honoured.headers or (
        "priority" in honoured.keys and request.body["priority"] is not None
    )


def _server_info(pages: Mapping[str, str]) -> Json:
    """The newer name first; both say the same."""
    return json_page(pages, "/server_info") or json_page(pages, "/get_server_info")


def _pool(load: Json, info: Json, host_tokens: list[Sample], is_one_of_many: bool) -> PolledPool:
    """One data-parallel rank, from its row of the load page, else from the server's own arguments."""
    rank = str(fields.integer(load, "dp_rank") or 0)
    return PolledPool(
        rank if is_one_of_many else "",
        capacity_tokens=_with_host_tier(_either(load, info, "max_total_num_tokens"), info, host_tokens, rank),
        block_tokens=fields.integer(info, "page_size"),
        slots=_either(load, info, "max_running_requests"),
        running=fields.integer(load, "num_running_reqs"),
        waiting=fields.integer(load, "num_waiting_reqs"),
        limits=QueueLimits(waiting=fields.integer(info, "max_queued_requests")),
        counted_at=fields.number(load, "timestamp"),  # it counts every few steps of its scheduler
    )


def _counted(counters: list[Sample], name: str, none_yet: float | None) -> float | None:
    return none_yet if (counted := total(counters, name)) is None else counted


def _with_host_tier(tokens: int | None, info: Json, host: list[Sample], rank: str) -> int | None:
    """Tokens that can be found again. HiCache writes through by default: its host tier holds a copy of all that
    the device holds, so the larger one counts; with write-back it holds what the device evicted, so both do."""
    sizes = [int(s.value) for s in host if s.labels.get("dp_rank", rank) == rank]  # one per tensor-parallel rank
    if tokens is None or not sizes:
        return tokens
    return (
        tokens + max(sizes) if fields.text(info, "hicache_write_policy") == "write_back" else max(tokens, *sizes)
    )


def _either(first: Json, second: Json, key: str) -> int | None:
    return fields.integer(first, key) or fields.integer(second, key)
