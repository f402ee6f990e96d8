"""What sections of the configuration are made of: the frozen base class, and numbers with bounds."""

from __future__ import annotations

import ast
import re
from inspect import cleandoc, getsource
from ipaddress import ip_address
from itertools import pairwise
from textwrap import dedent
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

SecretRef = Annotated[str, Field(pattern=r"^(env:[A-Za-z_][A-Za-z0-9_]*|file:.+)$")]
Port = Annotated[int, Field(ge=0, le=65535)]
Seconds = Annotated[float, Field(gt=0)]
SecondsOrZero = Annotated[float, Field(ge=0)]
NotNegative = Annotated[float, Field(ge=0)]
Share = Annotated[float, Field(gt=0, le=1)]
Factor = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(ge=1)]


def form(pattern: str, example: str) -> AfterValidator:
    """Text of one form. What was written instead is not repeated: it may hold a password."""
    fits = re.compile(pattern).match

    def checked(text: str) -> str:
        if not fits(text):
            raise ValueError(f"write {example}")
        return text

    return AfterValidator(checked)


class Section(BaseModel):
    """Frozen; an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def help_of(section: type[Section]) -> dict[str, str]:
    """What stands under each of its keys. Read from the source when it is shown: `use_attribute_docstrings` would
    read it at every start, of which that was a tenth."""
    (defined,) = ast.parse(dedent(getsource(section))).body
    assert isinstance(defined, ast.ClassDef)
    helps = {}
    for statements in pairwise(defined.body):
        match statements:
            case ast.AnnAssign(target=ast.Name(id=key)), ast.Expr(value=ast.Constant(value=str(text))):
                helps[key] = cleandoc(text)
    return helps


def is_loopback(host: str) -> bool:
    """Whether an address to listen on is reached from this machine only."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


# ---- the schema of the section `batches`: where durable batches are kept, and what they may use


class Batches(Section):
    """Durable batches: /v1/files and /v1/batches."""

    directory: str | None = None
    """Directory for files and results, of one gateway process. null: no batches."""
    redis: RedisUrl | None = None
    """Redis or Valkey (`redis://host:6379/0`, or by reference, env:NAME) of gateways that share their batches: any
    of them tells of each, and if the one that works on it is gone, another goes on. All must see one `directory`.
    Needs `turngate[redis]`. null: each gateway has its own."""
    file_bytes: Count = 200 * 2**20
    """Largest file."""
    in_flight: Count = 256
    """Lines that are asked at once, at most. Other turns push it down, never below one."""
    attempts: Count = 5
    """Times that a line is asked that engines fail. While all are full, or none is up, it waits instead."""


# ---- the schema of the section `cluster`: processes that serve as one

RedisUrl = Annotated[
    str,
    form(
        r"(rediss?|valkeys?|unix)://|(env:[A-Za-z_][A-Za-z0-9_]*|file:.+)$",
        "redis://host:6379/0, or env:NAME or file:/path of what holds that",
    ),
]


class Cluster(Section):
    """Several processes that serve as one: workers of this machine, and gateways that share a Redis or Valkey."""

    workers: Count = 1
    """Processes on this machine. Each serves any request; a session's turns are decided on by one of them."""
    redis: RedisUrl | None = None
    """`redis://host:6379/0`, or by reference (env:NAME, file:/path) where it holds a password. Gateways that name
    the same one, and have the same `identity.secret`, share the engines. Needs `turngate[redis]`. null: alone."""
    host: str = "127.0.0.1"
    """Address at which the other gateways reach this one."""
    port: Port = 0
    """Port for them, of the first worker; further workers take the next ones. 0: any free ones."""


# ---- the schema of who may ask: client keys with their limits, prices of models, and the admin listener

KeyRef = Annotated[
    str,
    Field(pattern=r"^(env:[A-Za-z_][A-Za-z0-9_]*|file:.+|sha256:[0-9a-f]{64}|scrypt:[0-9a-f]{32}:[0-9a-f]{64})$"),
]
"""A key by reference, or its hash as `turngate keys` prints it."""


class KeyLimits(Section):
    """What one key may use. null: no limit."""

    requests: Count | None = None
    """Requests per window."""
    tokens: Count | None = None
    """Prompt and output tokens per window."""
    window_s: Seconds = 60
    """Length of the window; it slides."""
    concurrency: Count | None = None
    """Requests in the gateway at once, waiting ones included."""
    budget_tokens: Count | None = None
    """Prompt and output tokens per budget window."""
    budget_cost: Factor | None = None
    """Cost per budget window, in the unit of `prices`."""
    budget_window_s: Seconds = 86_400
    """Length of the budget window."""


class Price(Section):
    """Of a million tokens of one model."""

    prompt: NotNegative = 0
    """Prompt tokens that were not cached."""
    cached: NotNegative | None = None
    """Prompt tokens that were cached, where the engine says so. null: as `prompt`."""
    output: NotNegative = 0
    """Output tokens."""


class KeyEntry(Section):
    """One client key."""

    key: KeyRef
    """The bearer token: env:NAME or file:/path, which may hold its hash, or the hash itself (`turngate keys`)."""
    name: str = ""
    """Its name in logs, audits and counters. Empty: the reference, or the first digits of the hash."""
    tenant: str = Field("default", min_length=1)
    """Sessions and caches of two tenants never meet."""
    models: tuple[str, ...] = ("*",)
    """Names or globs of the engine models that it may use."""
    weight: Factor = 1
    """Of its tenant's fair share of slots, and of what is computed, while turns wait."""
    urgency: Annotated[int, Field(ge=-100, le=100)] = 0
    """Class of its turns, higher first: they go before all others, and their sessions lose their cache to none of
    a lower class. Below 0: they wait for as long as others come."""
    may_prioritise: bool = False
    """Whether its own priority and worker pins are honoured."""
    tools: tuple[str, ...] = ()
    """Names or globs of the gateway's tools that it may use. Empty: none."""
    isolate_cache: bool = False
    """Whether its tenant's prompts are kept apart in engines' prefix caches: nobody else can find out by
    `cached_tokens` or by time what was sent before, and nobody shares a prefix with it. Its requests go to engines
    that can: vllm, sglang and dynamo, on all paths but /v1/messages (sglang, dynamo: nor /v1/responses)."""
    limits: KeyLimits = KeyLimits()
    """requests and tokens per window_s, concurrency, budget_tokens and budget_cost per budget_window_s."""

    @property
    def id(self) -> str:
        """What tells this key from others, in logs too."""
        return self.name or (self.key[:15] if self.key.startswith(("sha256:", "scrypt:")) else self.key)


class AdminSettings(Section):
    """Who may see metrics, and what concerns all tenants."""

    host: str = "127.0.0.1"
    """Address of the admin listener. Anything but loopback needs `admin.key`, or `admin.open: true`."""
    port: Port | None = None
    """Its port: metrics and admin views are served there and nowhere else. 0: any free one. null: there is no such
    listener; they are served beside the models, on loopback or with `admin.key`."""
    key: KeyRef | None = None
    """Bearer token for metrics and for the views of all tenants, written as in `keys`. null: none."""
    open: bool = False
    """Serve the admin listener to other machines although it has no key."""

    @property
    def is_loopback(self) -> bool:
        return is_loopback(self.host)


# ---- the schema of the section `tools`: which tools the gateway runs for models, and for whom

Approval = Annotated[str, form(r"(never|always|https?://.+)$", "never, always, or the https:// address to ask")]


class ToolRules(Section):
    """What holds for the tools of one source. null: what the tool itself says."""

    names: tuple[str, ...] = ("*",)
    """Names or globs of those that are used of it."""
    mode: Literal["offer", "intercept"] = "offer"
    """offer: the gateway offers the tool to the model, and the client never sees it. intercept: the gateway runs
    it for clients that offer a tool of this name themselves."""
    models: tuple[str, ...] = ("*",)
    """Names or globs of the models that get it, as clients or engines call them."""
    effect: Literal["read_only", "idempotent", "destructive"] | None = None
    """read_only tools are shared and cached between agents, idempotent ones shared while they run."""
    timeout_s: Seconds | None = None
    """Longest run of one call."""
    concurrency: Count | None = None
    """Calls that run at once. Tenants share them by their weights."""
    rate_per_s: Factor | None = None
    """Calls started per second. Tenants share them likewise."""
    max_result_bytes: Count | None = None
    """A longer result is cut, and says so."""
    ttl_s: SecondsOrZero | None = None
    """How long a result is served again. 0: not at all."""
    negative_ttl_s: SecondsOrZero | None = None
    """The same for errors."""
    scope: Literal["session", "tenant", "global"] | None = None
    """Who may share one result."""
    approval: Approval | None = None
    """never, always (refused unless somebody approves), or a URL that is asked before each call."""


class ToolEntry(ToolRules):
    """Tools in Python: your own, an installed package's, or built-in ones."""

    use: str
    """Import path `package.module:attribute`, name of an entry point, or of a built-in tool."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Of a built-in tool, or of what is called `build`."""
    secrets: dict[str, SecretRef] = Field(default_factory=dict)
    """Options that are secret, by reference."""


class McpEntry(ToolRules):
    """One MCP server: a command to start, or a URL."""

    name: str
    """Its name in metrics and logs."""
    command: tuple[str, ...] = ()
    """Program and arguments, for a server on standard input and output."""
    url: str | None = None
    """Of a server over streamable HTTP."""
    env: dict[str, SecretRef] = Field(default_factory=dict)
    """Variables of the command, by reference."""
    headers: dict[str, SecretRef] = Field(default_factory=dict)
    """Headers for the URL, by reference."""
    options: dict[str, Any] = Field(default_factory=dict)
    """prefix (of its tools' names), effects (by tool, where its hints are wrong), cwd, start_timeout_s,
    max_message_bytes."""

    @model_validator(mode="after")
    def _is_somewhere(self) -> McpEntry:
        if bool(self.command) == bool(self.url):
            raise ValueError("give either its `command` or its `url`")
        return self


class ToolSettings(Section):
    """Tools that the gateway runs while a model answers. Nothing is on unless it is listed here."""

    use: tuple[ToolEntry, ...] = ()
    """Tools in Python. Example: [{use: "my_tools:search", effect: read_only, ttl_s: 60}]"""
    mcp: tuple[McpEntry, ...] = ()
    """MCP servers. Example: [{name: docs, command: [docs-server], names: ["search_*"]}]"""
    max_rounds: Count = 16
    """Model calls of one answer that may call tools; the next one has to answer without."""
    max_calls: Count = 32
    """Calls of our tools in one model call; further ones are refused."""
    hidden_bytes: Count = 64 * 2**20
    """Per tenant: memory for calls and results that clients were not shown, put back when their history comes."""
    hidden_ttl_s: Seconds = 3600
    """What is not asked for again in this time is forgotten."""
    cache_bytes: Count = 64 * 2**20
    """Memory for results that are served again."""


# ---- the schema of traces


class TracingSettings(Section):
    """OpenTelemetry traces of requests, without content. Needs `turngate[otel]`."""

    endpoint: Annotated[str, form("https?://.", "http://collector:4318")] | None = None
    """OTLP/HTTP collector, such as http://collector:4318. Headers: OTEL_EXPORTER_OTLP_HEADERS. null: off."""
    service_name: str = "turngate"
    """Name of this gateway in traces."""
    share: Share = 1
    """Of the requests that bring no `traceparent`: how many are traced. One that does decides itself."""


# ---- the schema of the configuration


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


class IdentitySettings(Section):
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


class RequestLimits(Section):
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


class TimeoutSettings(Section):
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


class ReceiptSettings(Section):
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
    identity: IdentitySettings = IdentitySettings()
    probing: Probing = Probing()
    limits: RequestLimits = RequestLimits()
    timeouts: TimeoutSettings = TimeoutSettings()
    keys: tuple[KeyEntry, ...] = ()
    """Client keys. Empty: no key is asked for.
    Example: [{key: "env:TEAM_A_KEY", tenant: team-a, models: ["Qwen/*"], limits: {tokens: 200000}}]"""
    prices: dict[str, Price] = Field(default_factory=dict)
    """Name or glob of engine models -> price of a million tokens, for `budget_cost`; the first that matches.
    Example: {"Qwen/*": {prompt: 0.4, cached: 0.1, output: 1.2}, "*": {prompt: 2, output: 6}}"""
    admin: AdminSettings = AdminSettings()
    logging: Logging = Logging()
    tracing: TracingSettings = TracingSettings()
    receipts: ReceiptSettings = ReceiptSettings()
    embedded: Embedded = Embedded()
    tools: ToolSettings = ToolSettings()
    batches: Batches = Batches()
    cluster: Cluster = Cluster()
