"""What the gateway needs to know of an engine kind: pure translation, one file per kind, no I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from policies.types import Hints, Usage, value

Json = dict[str, Any]

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
RESPONSES = "/v1/responses"
MESSAGES = "/v1/messages"
EMBEDDINGS = "/v1/embeddings"
CONVERSATIONS = frozenset((CHAT, COMPLETIONS, RESPONSES, MESSAGES))
"""The paths whose calls carry hints."""


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
    kv_events: tuple[KvEventSource, ...] = ()


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
    """Whether it keeps prefixes at all. None: it does not say."""
    chunks_prefill: bool | None = None
    """Whether others decode while it prefills a long prompt. None: it does not say."""


@dataclass(slots=True)
class Abilities:
    """What a running engine was seen to honour. Starts from its kind's defaults, corrected by probes and by
    the 400s that it answers: a field that it refused once is never sent to it again."""

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
    """Order in which the served model's template renders. None: not found out."""
    takes_tools: bool | None = None
    """Whether the served model may call tools when a request offers some. None: not found out."""
    num_pools: int = 1
    """KV pools behind the address, as last reported, addressable or not."""
    lower_goes_first: bool = False
    """Polarity of `priority`."""
    ranks_unset_last: bool = False
    """Whether a request without a priority goes after all that have one, whichever."""
    preemption_gap: int | None = None
    """It preempts what runs for a priority higher by more than this. None: it does not, or does not say."""
    looks_like: str = ""
    """What its metrics say it is, where that is not its kind."""

    def remember(self, refused: frozenset[str], sent: Outgoing) -> None:
        """Never send `refused` again. Tell it only when the same call without them was accepted, so that a
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
    """One model call as its client asked for it, and what the Scheduler says of it."""

    path: str
    body: Json
    hints: Hints
    pool: str = ""
    """Name of the Pool to address, empty when there is one."""
    may_prioritise: bool = False
    """Whether its client may rank and place itself."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """The client's own, case-insensitive."""
    response_id: str = ""
    """Under which a response is to be stored, by an engine that `names_responses`. Empty: it is not stored, or its
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
    """Lower-case names of client headers that jump queues or pick workers, from a client that may not."""
    pin: str = ""
    """Name of the header that addresses the pool. Empty: the engine chooses."""
    reads_back: bool = False
    """The answer will say more than the client asked for: send it through `Engine.without_read_back`."""


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


@dataclass(frozen=True, slots=True)
class Advice:
    """Something that an operator can change at an engine."""

    problem: str
    """What does not work as it is."""
    remedy: str
    """The flag to set, or what to do without."""


class Engine(Protocol):
    """One engine kind. Stateless: everything learned about a running engine is in Abilities."""

    kind: str
    metrics_paths: tuple[str, ...]
    """Pages that hold its load and capacity, polled in order. `/v1/models` says whether it is up."""
    probe_paths: tuple[str, ...]
    """Pages that do not change while it runs, read once."""
    is_rented: bool
    """Whether each token costs money: it is not probed, and its cache is not its customers' to fill."""
    salt_paths: frozenset[str]
    """Where it keeps requests apart in its prefix cache by their `cache_salt`."""
    names_responses: bool
    """Whether it stores a response under the id that the request gives it (`request_id`)."""

    def abilities(self) -> Abilities:
        """The kind's defaults, before any probe."""
        ...

    def learn(self, pages: Mapping[str, str], abilities: Abilities) -> None:
        """Write into `abilities` what its pages (path -> text) say about version, paths and flags."""
        ...

    def rendering(self, model: str, messages: list[Json], tools: list[Json]) -> tuple[str, Json] | None:
        """Path and body that make it show a rendered prompt; None when it cannot."""
        ...

    def rendered(self, answer: str) -> str:
        """The prompt text in the answer to `rendering`; empty when it is not there."""
        ...

    def outgoing(self, asked: OutgoingRequest, abilities: Abilities) -> Outgoing:
        """Hints and placement for one call. What the client says for itself is never overwritten."""
        ...

    def closing(self, session_id: str, abilities: Abilities) -> tuple[str, dict[str, str]] | None:
        """Path and body that tell it that a session need not be kept; None where there is no such call."""
        ...

    def repaired(self, path: str, body: Json) -> Repair:
        """What must change in a client's body because this kind is known to refuse it as it is."""
        ...

    def refused_fields(self, status: int, message: str, sent: Outgoing) -> frozenset[str]:
        """Which fields of `sent` an error answer complains about; empty when the error is not about ours.
        Names under a key are dotted, such as `nvext.agent_hints.osl`."""
        ...

    def is_queue_full(self, message: str) -> bool:
        """Whether a refusal for lack of room says that its queue had no place for the call."""
        ...

    def parse_report(self, pages: Mapping[str, str]) -> Report:
        """Read polled pages (path -> text); what a page does not say stays None."""
        ...

    def served_by(self, event: Json) -> str | None:
        """The Pool name that an answer says it was computed on; None when it does not say."""
        ...

    def without_read_back(self, event: bytes) -> bytes:
        """A raw stream event, or a whole raw answer, less what only we asked for; all other bytes as they are."""
        ...

    def usage(self, event: Json) -> Usage | None:
        """Usage in one answer body or stream event of any dialect; None when it has none."""
        ...

    def advice(self, report: Report, abilities: Abilities) -> tuple[Advice, ...]:
        """What would make it work better with the gateway."""
        ...
