"""The contract of an engine adapter: pure translation between the gateway and one kind of engine, without I/O."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Protocol

from gateway.core import fields
from gateway.core.fields import Json
from gateway.core.transport import Body, HeaderList, Timeouts, Upstream, UpstreamReply
from gateway.engines.pages import json_page, read_models
from policies.types import NO_LIMITS, Hints, QueueLimits, Usage, value

MODELS_PAGE = "/v1/models"
"""The page that decides: every kind has it, and an engine that lists no model yet is not ready."""
METRICS_PAGE = "/metrics"
CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
RESPONSES = "/v1/responses"
MESSAGES = "/v1/messages"
EMBEDDINGS = "/v1/embeddings"
CONVERSATIONS = frozenset((CHAT, COMPLETIONS, RESPONSES, MESSAGES))
"""The paths whose calls carry hints."""
PLACING_KEYS = frozenset(
    (
        *("routed_dp_rank", "data_parallel_rank", "disagg_prefill_dp_rank"),
        *("kv_transfer_params", "ec_transfer_params", "bootstrap_host", "bootstrap_port", "bootstrap_room"),
        "priority",
    )
)
"""Top-level keys by which a client would choose its rank, a worker, or the host from which that fetches KV: vLLM's
and SGLang's request models. Other servers may stand behind an address of any kind, so they hold for all kinds."""
PLACING_MEMBERS: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "nvext": frozenset(
            (
                *("backend_instance_id", "decode_worker_id", "prefill_worker_id", "dp_rank", "prefill_dp_rank"),
                *("priority", "strict_priority", "latency_sensitivity"),
            )
        ),
        "vllm_xargs": frozenset(("kv_transfer_params", "ec_transfer_params")),
    }
)
"""Members of an object, and of the objects in it, to the same end: Dynamo's, and those of vLLM's arguments that it
puts beside its own."""
PLACING_HEADERS = frozenset(
    (
        *("x-vllm-priority", "x-data-parallel-rank", "x-dp-rank"),
        *("x-worker-instance-id", "x-prefill-instance-id", "x-dynamo-dp-rank", "x-dynamo-prefill-dp-rank"),
        *("x-dynamo-worker-instance-id", "x-dynamo-prefill-instance-id"),
        *("x-dynamo-request-priority", "x-dynamo-request-strict-priority", "x-dynamo-routing-mode"),
        *("x-prefill-dp-rank", "x-smg-target-worker", "x-smg-priority", "x-smg-tenant-id"),
    )
)
"""Headers to the same end, in lower case, with dashes."""
PLACING_PREFIXES = ("x-override-", "x-gateway-", "x-llm-d-", "x-prefiller-", "x-encoder-", "x-data-parallel-")
"""Of such headers: SGLang's, that set any field of a body (SGLANG_ENABLE_REQUEST_HEADER_OVERRIDES), and those of
llm-d and its sidecars, which name a tenant, an objective, or the host of a prefill."""


@dataclass(frozen=True, slots=True)
class KvEventSource:
    """Where one engine process, or one data-parallel rank of it, publishes what its KV cache holds."""

    url: str
    """`tcp://host:port` to connect to; with `*` as the host, or behind an `@`, to listen on."""
    replay_url: str | None = None


@dataclass(frozen=True, slots=True)
class EngineAddress:
    """Where an engine listens, from configuration: `kind://host:port[/path]`."""

    kind: str
    base_url: str
    """`http://host:port`, without a trailing slash or `/v1`."""
    api_key: str | None = None
    metrics_urls: tuple[str, ...] = ()
    """Further metrics pages, such as a Dynamo worker's system port."""
    name: str = ""
    """Unique among the configured engines."""
    kv_events: tuple[KvEventSource, ...] | None = None
    """None: where the engine states them."""
    resolves_all: bool = False
    """Whether its host is a name for several engines, one at each address that it resolves to."""


MOST_POOLS = 1_024
"""Behind one address. A page that tells of more is taken for one of a single pool."""


@dataclass(frozen=True, slots=True)
class PolledPool:
    """One KV pool that a poll found behind an address: a process, a data-parallel rank, or a Dynamo worker."""

    name: str
    """Empty when the address is the pool; else a worker id or rank, kept as text (ids do not fit a double)."""
    capacity_tokens: int | None = None
    block_tokens: int | None = None
    slots: int | None = None
    running: int | None = None
    waiting: int | None = None
    limits: QueueLimits = NO_LIMITS
    """Of its own queue, as far as it states them."""
    counted_at: float | None = None
    """When the engine counted what runs and waits, by its own clock. None: it counts as it is asked."""


@dataclass(frozen=True, slots=True)
class Report:
    """What one poll of an engine said."""

    models: tuple[str, ...] = ()
    max_model_len: Mapping[str, int] = field(default_factory=dict)
    pools: tuple[PolledPool, ...] = ()
    prefix_queries_tokens: float | None = None
    """Prompt tokens looked up in the prefix cache since the engine started."""
    prefix_hits_tokens: float | None = None
    caches_prefixes: bool | None = None
    """Whether the engine keeps prefixes at all. None: not known."""
    chunks_prefill: bool | None = None
    """Whether other requests decode while the engine prefills a long prompt. None: not known."""


@dataclass(slots=True)
class Abilities:
    """What a running engine was seen to honour. Starts from its kind's defaults, and is corrected by probes and by
    the engine's own 400s: a field that it refused once is never sent to it again."""

    version: str = ""
    paths: frozenset[str] | None = None
    """API paths that it serves. None: not known, try."""
    refused_fields: set[str] = field(default_factory=set)
    honours_priority: bool | None = None
    reports_cached_tokens: bool | None = None
    tokens_per_char: float | None = None
    """Of a text such as agents send, by the served model's tokenizer."""
    can_address_pools: bool = False
    system_before_tools: bool | None = None
    """Order in which the served model's template renders. None: not known."""
    takes_tools: bool | None = None
    """Whether the served model may call tools when a request offers some. None: not known."""
    num_pools: int = 1
    """KV pools behind the address, as last reported, addressable or not."""
    lower_goes_first: bool = False
    """Polarity of `priority`."""
    unset_priority: int | None = None
    """What a request without a priority counts as. None: no number is set."""
    ranks_unset_last: bool = False
    """Whether a request without a priority goes after every request that has one."""
    preemption_gap: int | None = None
    """The engine preempts a running request for one whose priority is higher by more than this. None: it never
    does, or it is not known."""
    parses_reasoning: bool | None = None
    """Whether it takes apart an answer's thoughts. None: not known."""
    kv_event_ports: tuple[tuple[int, int | None], ...] = ()
    """Where it publishes KV events, one per data-parallel rank, by its own account: the port, and that of the
    replay."""
    looks_like: str = ""
    """The kind that its metrics show, where that is another one than its address says."""

    def remember_refusal(self, refused: frozenset[str], sent: Outgoing) -> None:
        """Never send `refused` again. Call it only once the same request without them was accepted, so that a
        client's own mistake costs no hint. A refused pin is not remembered: its worker has gone."""
        self.refused_fields |= refused - {sent.pin}


@value
class Claims:
    """What a client's request says about its own rank and place."""

    keys: frozenset[str] = frozenset()
    """Top-level body keys."""
    headers: frozenset[str] = frozenset()
    """Lower-case names."""


NO_CLAIMS = Claims()


@dataclass(slots=True)
class OutgoingRequest:
    """One model call as its client sent it, with the Scheduler's decisions about it."""

    path: str
    body: Json
    hints: Hints
    pool: str = ""
    """Name of the pool to address, empty when there is one."""
    may_prioritise: bool = False
    """Whether the client may set its own priority and placement."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """The client's own, case-insensitive."""
    response_id: str = ""
    """The id under which an engine that `names_responses` stores the response. Empty: it is not stored, or its
    client has named it."""


@value
class Outgoing:
    """What to add to a request on its way to the engine. Body values are spliced, never re-serialised."""

    headers: tuple[tuple[str, str], ...] = ()
    body: Mapping[str, Any] = field(default_factory=dict)
    """Top-level keys to set. A mapping value under a key that the client also sent as an object is merged into
    it; the client's own keys win."""
    drop: frozenset[str] = frozenset()
    """Top-level keys of the client that this engine would refuse or must not see."""
    hint_names: tuple[str, ...] = ()
    """Names of the hints that this carries, for metrics."""
    drop_headers: frozenset[str] = frozenset()
    """Lower-case names of headers by which a client without the permission would jump queues or pick workers."""
    pin: str = ""
    """Name of the header that addresses the pool. Empty: the engine chooses."""
    names_hits: bool = False
    """The answer names its cached tokens, and names none where there are none."""
    reads_back: bool = False
    """The answer will say more than the client asked for: send it through `EngineAdapter.without_read_back`."""


@dataclass(frozen=True, slots=True)
class Repair:
    """What an engine would refuse of a client's body, in words that it takes. Empty: nothing is broken."""

    body: Mapping[str, Any] = field(default_factory=dict)
    """Top-level keys to replace."""
    notes: tuple[str, ...] = ()
    """What was done, for the receipt; no content."""

    def __or__(self, other: Repair) -> Repair:
        """Both; they must be about different keys."""
        if not other.body:
            return self
        return Repair({**self.body, **other.body}, self.notes + other.notes)


NO_REPAIR = Repair()


@dataclass(frozen=True, slots=True)
class Advice:
    """Something that an operator can change at an engine."""

    problem: str
    """What does not work as it is."""
    remedy: str
    """The flag to set, or what to do without."""


class ProviderClient(Protocol):
    """Calls one rented address as if it spoke OpenAI's dialect."""

    async def call(
        self, method: str, path: str, headers: HeaderList, body: Body | None, timeouts: Timeouts
    ) -> UpstreamReply:
        """As `Upstream.call`, with a path of OpenAI's API."""
        ...


class EngineAdapter:
    """One engine kind. Stateless: what is learned about a running engine is in its Abilities.

    The defaults are those of any OpenAI-compatible server that says nothing of its cache and takes no hints: slots
    and order work, capacity is not known, and placement is blind.
    """

    kind: str = ""
    metrics_paths: tuple[str, ...] = ("/v1/models",)
    """Pages that hold its load and capacity, polled in order. `/v1/models` says whether the engine is up."""
    probe_paths: tuple[str, ...] = ("/openapi.json",)
    """Pages that do not change while the engine runs, read once."""
    service_url: str = ""
    """Base URL of the service that `kind://` alone means. Empty: there is none."""
    key_variable: str = ""
    """Environment variable of the service's own tools that holds its key. It is read for `service_url` alone,
    where the configuration names no key."""
    throttles: bool = False
    """Whether the engine shows its limit by refusing calls (429, 529). Its calls then go through
    `providers.upstream`, which obeys."""
    hides_sessions: bool = False
    """Whether it gets no session ids of clients, as it need not be the operator's own."""
    package: tuple[str, str] | None = None
    """An optional package that it needs, and the extra of this distribution that installs it."""
    tool_flags: str = "a model, and a server, that know tool calls"
    """What makes the engine take requests that offer tools."""
    prefix_cache_flag: str = ""
    cached_tokens_flag: str = ""
    capacity_flag: str = ""
    """What makes it keep prefixes, count cached tokens in answers, and state its KV capacity. Empty: nothing."""
    priority_words: Mapping[bool | None, str] = MappingProxyType({True: "yes", False: "no", None: "not known"})
    """Whether it honours priorities, for people."""
    context_flag: str = "--max-model-len"
    """What sets the length of its context."""
    names_responses: bool = False
    """Whether it stores a response under the id that the request gives it (`request_id`)."""
    claim_keys: frozenset[str] = frozenset()
    claim_headers: frozenset[str] = frozenset()
    """Body keys and lower-case headers by which a client would jump queues or pick workers."""

    # ---- the address, and what runs there

    def is_rented(self, address: EngineAddress) -> bool:
        """Whether each token costs money there. Then the cache is the provider's own business, no request of the
        gateway's own is sent that costs tokens, and pages are read rarely."""
        return False

    def service_at(self, rest: str) -> str:
        """Base URL of the service that `kind://rest` names. Empty: `rest` is the host and port of an engine."""
        return self.service_url if not rest else ""

    def client(
        self, upstream: Upstream, address: EngineAddress, wall_clock: Callable[[], float]
    ) -> ProviderClient | None:
        """Translator of the calls to a rented address; None where they go as they are. Raises ConfigError."""
        return None

    def abilities(self) -> Abilities:
        """The kind's defaults, before any probe."""
        return Abilities(honours_priority=False)

    def learn(self, pages: Mapping[str, str], abilities: Abilities) -> None:
        """Write into `abilities` what its pages (path -> text) say about version, paths and flags."""
        if paths := fields.obj(json_page(pages, "/openapi.json"), "paths"):
            abilities.paths = frozenset(paths)
        abilities.looks_like = _other_kind(pages.get(METRICS_PAGE, ""), self.kind)

    def parse_report(self, pages: Mapping[str, str]) -> Report:
        """Read polled pages (path -> text); a value that no page states stays None."""
        models, lengths = read_models(pages)
        return Report(models, lengths, (PolledPool(""),) if models else ())

    def rendering(self, model: str, messages: list[Json], tools: list[Json]) -> tuple[str, Json] | None:
        """Path and body that make the engine show a rendered prompt; None when it cannot."""
        return None

    def rendered(self, model: str, answer: str) -> str | tuple[str, Json]:
        """The prompt text in the answer to `rendering`; empty when it is not there. Path and body of a second
        question where only that shows the text."""
        return ""

    def advice(self, report: Report, abilities: Abilities) -> Iterator[Advice]:
        """What would make it work better with the gateway."""
        if report.caches_prefixes is False and self.prefix_cache_flag:
            yield Advice("prefix caching is off: every turn computes its whole prompt", self.prefix_cache_flag)
        elif abilities.reports_cached_tokens is False and self.cached_tokens_flag:
            yield Advice("evictions cannot be seen: replies lack cached_tokens", self.cached_tokens_flag)
        if self.capacity_flag and not any(pool.capacity_tokens for pool in report.pools):
            yield Advice("KV capacity is not known", self.capacity_flag)
        if abilities.num_pools > len(report.pools) > 0:
            yield Advice(f"its {abilities.num_pools} KV pools cannot be addressed and count as one", _NEWER)
        if abilities.takes_tools is False:
            yield Advice("it refuses requests that offer tools: no agent can work", self.tool_flags)
        if report.chunks_prefill is False:
            yield Advice("all other requests wait while it prefills a long prompt", "no --chunked-prefill-size -1")
        longest = max(report.max_model_len.values(), default=0)
        sizes = [pool.capacity_tokens for pool in report.pools if pool.capacity_tokens is not None]
        if sizes and min(sizes) < _LEAST_CONTEXTS * longest:
            fit = f"{min(sizes) / longest:.1f}"
            yield Advice(
                f"a KV pool holds only {fit} contexts of full length ({longest:,} tokens)",
                f"more memory for KV, an FP8 KV cache, or a shorter {self.context_flag}; "
                "short contexts are no problem",
            )

    # ---- one call

    def salted_paths(self, abilities: Abilities) -> frozenset[str]:
        """Where it keeps requests apart in its prefix cache by their `cache_salt`."""
        return frozenset()

    def unranked_paths(self, abilities: Abilities) -> frozenset[str]:
        """Where its own queue is not known to use the rank of a call, so that the gateway keeps the order."""
        return _NO_PATHS

    def outgoing(self, request: OutgoingRequest, abilities: Abilities) -> Outgoing:
        """Hints and placement for one call. A client's own values are never overwritten."""
        return Outgoing()

    def claims(self, request: OutgoingRequest) -> tuple[Claims, Claims]:
        """Claims of the client's request that are honoured, and those that are dropped."""
        if self.claim_keys.isdisjoint(request.body) and self.claim_headers.isdisjoint(request.headers):
            return NO_CLAIMS, NO_CLAIMS
        made = Claims(self.claim_keys.intersection(request.body), self.claim_headers.intersection(request.headers))
        return (made, NO_CLAIMS) if request.may_prioritise else (NO_CLAIMS, made)

    def repaired(self, path: str, body: Json, abilities: Abilities) -> Repair:
        """What must change in a client's body because this kind is known to refuse it as it is."""
        return NO_REPAIR

    def closing(self, session_id: str, abilities: Abilities) -> tuple[str, dict[str, str]] | None:
        """Path and body of the call that releases a session; None where there is no such call."""
        return None

    # ---- one answer

    def refused_fields(self, status: int, message: str, sent: Outgoing) -> frozenset[str]:
        """Fields of `sent` that an error answer complains about; empty when the error is about the client's own.
        Names under a key are dotted, such as `nvext.agent_hints.osl`."""
        if status not in _REFUSAL_STATUSES:
            return frozenset()
        return frozenset(name for name in _dotted(sent.body) if names_field(message, name.rpartition(".")[2]))

    def is_queue_full(self, message: str) -> bool:
        """Whether a refusal for lack of room says that the engine's queue had no place for the call."""
        return False

    def served_by(self, event: Json) -> str | None:
        """Name of the pool that computed the answer; None when the answer does not say."""
        return None

    def without_read_back(self, event: bytes) -> bytes:
        """A raw stream event, or a whole raw answer, less what only the gateway asked for; all other bytes as they
        are."""
        return event

    def usage(self, event: Json) -> Usage | None:
        """Usage in one answer body or stream event of any dialect; None when it has none."""
        return usage_of(event)


_NO_PATHS: frozenset[str] = frozenset()
_NEWER = "a release that reads X-Data-Parallel-Rank, or one engine per rank"
_LEAST_CONTEXTS = 2
_METRICS_OF = {"vllm": "vllm:", "sglang": "sglang:", "dynamo": "dynamo_", "turngate": "turngate_"}
"""How the names of each kind's metrics begin."""


def _other_kind(metrics: str, kind: str) -> str:
    """The kind that a metrics page shows. Empty: `kind` itself, or one without metrics that are known here."""
    if kind not in _METRICS_OF:
        return ""
    found = _kinds_in(metrics)
    return found[0] if found and kind not in found else ""


def _kinds_in(metrics: str) -> list[str]:
    page = f"\n{metrics}"
    return [kind for kind, prefix in _METRICS_OF.items() if f"\n{prefix}" in page]


def shown_kind(pages: Mapping[str, str]) -> str:
    """The kind that an engine shows by its metrics, or as the owner of its models. Empty: it shows none."""
    found = [*_kinds_in(pages.get(METRICS_PAGE, "")), *_owners(pages)]
    return next((kind for kind in found if kind != "turngate"), "")


def _owners(pages: Mapping[str, str]) -> Iterator[str]:
    for model in fields.items(json_page(pages, MODELS_PAGE), "data"):
        owner = fields.text(model, "owned_by") if isinstance(model, dict) else None
        if owner in _METRICS_OF:
            yield owner


# ---- which field an engine refuses, from the text of its 400

_REFUSAL_STATUSES = frozenset((400, 422))
# Where engines put the name of a refused field: pydantic (`body.x`), serde (unknown field `x`), Dynamo
# (Unsupported parameter(s): `x`, `y`), vLLM (Got x 5 but ...). A name elsewhere, such as in a list of what was
# expected or in the client's own text that the engine repeats, is no complaint about it.
_BEFORE = (
    r"(?:body[.'\", ]+|unknown field |unsupported parameter\(s\): (?:`\w+`, )*|got |unexpected keyword argument )"
)
_EXPECTED = re.compile(r"expected one of.*", re.DOTALL)


def names_field(message: str, name: str) -> bool:
    """Whether an error text complains about the request field `name`."""
    complaint = rf"{_BEFORE}[`'\"]?{re.escape(name)}\b"
    return re.search(complaint, _EXPECTED.sub("", message), re.IGNORECASE) is not None


def _dotted(body: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Every key that the gateway sets, dotted, parents first."""
    found = []
    for key, added in body.items():
        found.append(prefix + key)
        if isinstance(added, Mapping):
            found += _dotted(added, f"{prefix}{key}.")
    return found


# ---- a repair that several kinds need


def typed_messages(path: str, body: Json) -> Repair:
    """Give an assistant's list of parts the type `message`. It is optional in OpenAI's API and OpenCode leaves it
    out; vLLM 0.32 and Dynamo 1.6 then match no item type."""
    items = body.get("input")
    if path != RESPONSES or not isinstance(items, list) or not any(map(_lacks_type, items)):
        return NO_REPAIR
    typed = [{"type": "message", **item} if _lacks_type(item) else item for item in items]
    return Repair({"input": typed}, ("input: assistant messages were given their type",))


def _lacks_type(item: Any) -> bool:
    if not isinstance(item, dict) or item.get("type") is not None:
        return False
    return item.get("role") == "assistant" and isinstance(item.get("content"), list)


# ---- token usage in an answer: every engine kind answers in every dialect


MOST_TOKENS = 10**9
"""A larger count, and one below 0, is none: it reads as absent."""


def token_count(raw: Mapping[str, Any], key: str) -> int | None:
    """Return a count of tokens that an engine states."""
    count = raw.get(key)
    return count if type(count) is int and 0 <= count <= MOST_TOKENS else None


def believed(usage: Usage, most: Usage) -> Usage:
    """Return the usage, with no count above `most`. A cached token is one of the prompt."""
    prompt, cached, output = usage.prompt_tokens, usage.cached_tokens, usage.output_tokens
    if (
        (prompt is None or most.prompt_tokens is None or prompt <= most.prompt_tokens)
        and (output is None or most.output_tokens is None or output <= most.output_tokens)
        and (prompt is None or cached is None or cached <= prompt)
    ):
        return usage
    prompt_tokens = _at_most(usage.prompt_tokens, most.prompt_tokens)
    cached_tokens = _at_most(usage.cached_tokens, prompt_tokens)
    output_tokens = _at_most(usage.output_tokens, most.output_tokens)
    return Usage(prompt_tokens, cached_tokens, output_tokens)


def joined(usage: Usage, earlier: Usage) -> Usage:
    """Return the usage, with the counts of an earlier event of the same answer where it has none: a stream of
    Anthropic's format may name the prompt only where it begins, and the answer only where it ends."""
    prompt, cached, output = usage.prompt_tokens, usage.cached_tokens, usage.output_tokens
    if prompt is not None and cached is not None and output is not None:
        return usage
    return Usage(
        earlier.prompt_tokens if prompt is None else prompt,
        earlier.cached_tokens if cached is None else cached,
        earlier.output_tokens if output is None else output,
    )


def _at_most(count: int | None, most: int | None) -> int | None:
    return count if count is None or most is None or count <= most else most


def usage_of(event: Mapping[str, Any]) -> Usage | None:
    """Usage in an answer body or stream event: at its top, in its `response`, or in its `message`.

    Anthropic's `input_tokens` leave out what was read from and written to the cache; `prompt_tokens` here is
    always the whole prompt.
    """
    raw = event.get("usage")
    if not raw or not isinstance(raw, dict):
        raw = fields.obj(fields.obj(event, "response"), "usage") or fields.obj(
            fields.obj(event, "message"), "usage"
        )
        if not raw:
            return None
    if "prompt_tokens" in raw:
        cached = token_count(fields.obj(raw, "prompt_tokens_details"), "cached_tokens")
        return Usage(token_count(raw, "prompt_tokens"), cached, token_count(raw, "completion_tokens"))
    prompt, output = token_count(raw, "input_tokens"), token_count(raw, "output_tokens")
    if "input_tokens_details" in raw:
        return Usage(prompt, token_count(fields.obj(raw, "input_tokens_details"), "cached_tokens"), output)
    cached = token_count(raw, "cache_read_input_tokens")
    if prompt is not None:
        prompt += (cached or 0) + (token_count(raw, "cache_creation_input_tokens") or 0)
    return Usage(prompt, cached, output)
