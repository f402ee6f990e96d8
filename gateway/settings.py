"""The schema of the configuration: frozen sections, each key with its default, its bounds and its help text.

Nothing is read here; `gateway.config` fills these from flags, environment and YAML. The text under a key is its
help, in `--dump-config` too. A secret is only ever a reference (`env:NAME` or `file:/path`).
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from gateway.batch_settings import Batches
from gateway.cluster_settings import Cluster
from gateway.key_settings import Admin, KeyEntry, Price
from gateway.section import (
    Count,
    Factor,
    NotNegative,
    Port,
    Seconds,
    SecondsOrZero,
    SecretRef,
    Share,
    form,
    is_loopback,
)
from gateway.section import Section as Section
from gateway.tool_settings import Tools
from gateway.trace_settings import Tracing


def _compiled(pattern: str) -> str:
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"{pattern!r} is no regular expression: {error}") from None
    return pattern


Pattern = Annotated[str, AfterValidator(_compiled)]


def _placement(name: str) -> str:
    if name in ("least_loaded", "round_robin"):
        path = f"benchmarks.simulation.placement:{name}"
        raise ValueError(f"{name} is now {path}, a benchmark: use prefix, or put a checkout on PYTHONPATH")
    if name != "prefix" and ":" not in name:
        raise ValueError("use prefix, or the import path of a function, package.module:name")
    return name


class Listen(Section):
    """Where the gateway listens."""

    host: str = "127.0.0.1"
    """Address to listen on. Anything but loopback needs `keys`, or `open: true`."""
    port: Port = 8080
    """TCP port. 0: any free one."""
    open: bool = False
    """Serve other machines although no keys are configured."""

    @property
    def is_loopback(self) -> bool:
        return is_loopback(self.host)


class KvEventEntry(Section):
    """One publisher of KV events."""

    url: Annotated[str, form(r"@?(tcp|ipc)://.", "tcp://host:5557")]
    """`tcp://host:port`: connect, for an engine whose `endpoint` is `tcp://*:port`. `tcp://*:port`, or
    `@tcp://address:port`: listen, for an engine whose `endpoint` names this host. Anybody who reaches it is
    believed."""
    replay_url: Annotated[str, form(r"(tcp|ipc)://.", "tcp://host:5558")] | None = None
    """Its `replay_endpoint`, to fill gaps from. null: what was known is forgotten at a gap."""


def _split(value: Any) -> Any:
    """`a,b` as a list: several engines fit one environment variable."""
    return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value


def _as_entry(value: Any) -> Any:
    """A bare URL is an entry with every other key at its default."""
    return {"url": value} if isinstance(value, str) else value


KvEvents = Annotated[tuple[Annotated[KvEventEntry, BeforeValidator(_as_entry)], ...], BeforeValidator(_split)]


class EngineEntry(Section):
    """One engine process, or one Dynamo frontend with all the workers behind it."""

    url: str
    """`kind://host:port`; kinds: vllm, sglang, dynamo, openai, anthropic, bedrock. Or `embedded`, or what is
    rented: `openai://`, `anthropic://`, `bedrock://REGION`."""
    name: str = ""
    """Its name in metrics, receipts and headers. Empty: host:port."""
    api_key: SecretRef | None = None
    """Sent to the engine as a bearer token. null: none."""
    metrics_urls: tuple[str, ...] = ()
    """Further metrics pages, such as a Dynamo worker's system port."""
    kv_events: KvEvents = ()
    """Where it publishes KV events (`--kv-events-config`), one entry per data-parallel rank. Needs
    `turngate[kvevents]`. Example: ["tcp://gpu1:5557", {url: "tcp://gpu1:5558", replay_url: "tcp://gpu1:6558"}]"""


class Models(Section):
    """Which engine model answers to which name."""

    aliases: dict[str, str] = Field(default_factory=dict)
    """Name or glob that a client asks for -> engine model; the first that matches wins.
    Example: {"gpt-*": Qwen/Qwen3-32B}"""
    side_model: str | None = None
    """Serves titles and compaction. null: the model that was asked for."""
    answer_any_model: bool = True
    """A single served model answers to every name."""


class Policy(Section):
    """Who is admitted when, and where."""

    name: str = "turns"
    """turns, fifo or passthrough; or the import path of another, `package.module:Name`."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments of a policy given by its import path."""
    placement: Annotated[str, AfterValidator(_placement)] = "prefix"
    """Which replica gets a turn. prefix weighs the cached prefix against load; or the import path of another
    function, `package.module:name`."""
    slots_per_replica: Count | None = None
    """Model calls that a replica runs at once. null: what the engine reports, or its own counts show."""
    capacity_tokens: Count | None = None
    """Size of a replica's KV pool. null: what the engine reports."""
    ceiling: Share = 0.95
    """Share of the KV pool that resident sessions may fill now; nobody is admitted beyond it."""
    price: NotNegative = 3
    """How many times the time to compute evicted tokens again counts against the time that holding a session
    wastes. 0: admit whatever fits now."""
    max_wait_s: SecondsOrZero = 300
    """A stream that is expected to wait longer is refused with 429 at once."""
    max_wait_plain_s: SecondsOrZero = 400
    """The same for an answer that is not streamed."""
    hold_bound_s: SecondsOrZero = 60
    """A session held longer, and twice as long as in the order of arrivals, makes idle resident sessions yield."""
    warm_up_bytes: int = Field(default=64 * 2**20, ge=0)
    """Memory for the last requests of sessions. One that lost its cache while its tool ran is sent again for one
    token just before the tool returns, while nobody waits. 0: none is kept."""
    sub_agents_return: bool = True
    """Whether a sub-agent goes like a later turn of its parent, which waits for it, and not like a new session."""


class Stream(Section):
    """How a client that waits is kept."""

    silent_queue_s: SecondsOrZero = 90
    """A stream that is queued for longer gets 200 and keep-alives. 0: at once."""
    keep_alive_s: Seconds = 25
    """Time between two keep-alive events."""


class Identity(Section):
    """How sessions are recognised, and how much is remembered for it."""

    secret: SecretRef | None = None
    """Key of all session and family ids. Gateways that share it give equal ids. null: a new one at every start."""
    max_sessions: Count = 20_000
    """Sessions remembered at once; the least recently seen is forgotten first."""
    session_ttl_s: Seconds = 3600
    """A session that is not heard of for this long is forgotten."""
    volatile_spans: Literal["report", "move", "strip"] = "report"
    """What becomes of text in a system prompt that keeps siblings from sharing their prefix: only reported, moved
    behind the first user message, or stripped. Requests are changed by the last two alone."""
    volatile_patterns: tuple[Pattern, ...] = (r"^x-(?:anthropic|amz)-[^\n]*\n?",)
    """Regular expressions of such text; ^ and $ match at lines."""
    volatile_learned: tuple[Literal["header", "date", "path", "id", "number"], ...] = (
        "header",
        "date",
        "path",
        "id",
    )
    """Kinds of text that count as such once they have broken three sessions at one place. Empty: none."""


class Probing(Section):
    """How engines are watched."""

    interval_s: Seconds = 1
    """Time between two polls of an engine."""
    timeout_s: Seconds = 5
    """A poll that takes longer has failed."""
    hints: bool = True
    """Find out at start which hints an engine honours, by a few one-token requests."""
    breaker_failures: Count = 5
    """Calls of a replica that have to fail, and be half of its calls, for it to be left alone. The last one of a
    model is not."""
    breaker_window_s: Seconds = 10
    """The time in which they have to."""
    breaker_open_s: Seconds = 5
    """How long it is left alone; twice as long each time that its trial fails, up to 60 s."""


class Limits(Section):
    """Bounds on what clients can make the gateway hold."""

    body_bytes: Count = 32 * 2**20
    """Largest request body."""
    queue_turns: Count = 10_000
    """Turns that may wait at once; further ones are refused with 429."""
    messages: Count = 10_000
    """Messages or input items of one request."""
    tools: Count = 1_024
    """Tools that one request declares."""
    attempts: Count = 3
    """Replicas on which one model call is tried in a row before its first byte, and times that one is sent at
    which engines fail."""


class Timeouts(Section):
    """Bounds of one call to an engine, and of stopping."""

    connect_s: Seconds = 5
    """Until the connection stands."""
    first_byte_s: Seconds = 600
    """From the request sent to the engine's status line."""
    idle_s: Seconds = 300
    """Between two chunks of an answer."""
    shutdown_grace_s: SecondsOrZero = 30
    """How long running requests may finish after a stop signal."""


class Logging(Section):
    """What is written, and where."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """info writes one line per request."""
    format: Literal["text", "json"] = "text"
    """Lines of key=value, or one JSON object each; on standard error."""
    facts: str | None = None
    """File for the log of scheduling facts, for replay; it holds no content. null: off."""


class Receipts(Section):
    """Why each answer went as it did, at /v1/turngate/receipts/{id}."""

    keep_s: SecondsOrZero = 600
    """How long a receipt can be read. 0: none is kept."""
    max_kept: Count = 50_000
    """Receipts kept at once, about 1 KB each; the oldest goes first."""
    max_bytes: Count = 64 * 2**20
    """Memory for them, likewise."""


class Embedded(Section):
    """The built-in engine model, behind `turngate engine` and the engine URL `embedded`."""

    model: str = "embedded"
    """Name that it serves."""
    capacity_tokens: Count = 262_144
    """Size of its KV pool."""
    slots: Count = 256
    """Model calls that it runs at once."""
    speed: Factor = 1
    """Factor on its speed. 2: everything takes half the time."""


Engines = Annotated[tuple[Annotated[EngineEntry, BeforeValidator(_as_entry)], ...], BeforeValidator(_split)]


class Settings(Section):
    """Everything that can be configured."""

    listen: Listen = Listen()
    engines: Engines = ()
    """Engines, as URLs or as objects with url, name, api_key, metrics_urls and kv_events.
    Example: [vllm://127.0.0.1:8000, {url: "sglang://gpu2:30000", api_key: "env:SGLANG_KEY"}]"""
    transport: Literal["auto", "aiohttp", "fast"] = "auto"
    """What carries HTTP on both sides. fast needs `turngate[fast]`; auto: fast where that is installed."""
    hosts_file: str | None = None
    """File with one more engine URL per line; # starts a comment. null: none."""
    models: Models = Models()
    policy: Policy = Policy()
    stream: Stream = Stream()
    identity: Identity = Identity()
    probing: Probing = Probing()
    limits: Limits = Limits()
    timeouts: Timeouts = Timeouts()
    keys: tuple[KeyEntry, ...] = ()
    """Client keys. Empty: no key is asked for.
    Example: [{key: "env:TEAM_A_KEY", tenant: team-a, models: ["Qwen/*"], limits: {tokens: 200000}}]"""
    prices: dict[str, Price] = Field(default_factory=dict)
    """Name or glob of engine models -> price of a million tokens, for `budget_cost`; the first that matches.
    Example: {"Qwen/*": {prompt: 0.4, cached: 0.1, output: 1.2}, "*": {prompt: 2, output: 6}}"""
    admin: Admin = Admin()
    logging: Logging = Logging()
    tracing: Tracing = Tracing()
    receipts: Receipts = Receipts()
    embedded: Embedded = Embedded()
    tools: Tools = Tools()
    batches: Batches = Batches()
    cluster: Cluster = Cluster()
