"""The schema of the configuration: every key with its type, its default and its help.

Nothing is read here; `gateway.config.loading` fills these from flags, environment and YAML. The text under a key
is its help, which `--dump-config` and deploy/turngate.yaml repeat. A new key is one line and its help.
"""

from __future__ import annotations

import ast
import re
from functools import cache
from inspect import cleandoc, getsource
from ipaddress import ip_address
from itertools import pairwise
from textwrap import dedent
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

# ---- types of values


def form(pattern: str, example: str) -> AfterValidator:
    """Return a check that a text has one form. Its error does not repeat the text, which may hold a password."""
    fits = re.compile(pattern).match

    def checked(text: str) -> str:
        if not fits(text):
            raise ValueError(f"write {example}")
        return text

    return AfterValidator(checked)


def _compiled(pattern: str) -> str:
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"{pattern!r} is no regular expression: {error}") from None
    return pattern


def _placement(name: str) -> str:
    if name in ("least_loaded", "round_robin"):
        path = f"benchmarks.simulation.placement:{name}"
        raise ValueError(f"{name} is now {path}, a benchmark: use prefix, or put a checkout on PYTHONPATH")
    if name != "prefix" and ":" not in name:
        raise ValueError("use prefix, or the import path of a function, package.module:name")
    return name


def _split(value: Any) -> Any:
    """Read `a,b` as a list, so that several engines fit one environment variable."""
    return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value


def _as_entry(value: Any) -> Any:
    """Read a bare URL as an entry with every other key at its default."""
    return {"url": value} if isinstance(value, str) else value


Port = Annotated[int, Field(ge=0, le=65535)]
Seconds = Annotated[float, Field(gt=0)]
Window = Annotated[float, Field(ge=1e-3, le=1e10)]
SecondsOrZero = Annotated[float, Field(ge=0)]
NotNegative = Annotated[float, Field(ge=0)]
Share = Annotated[float, Field(gt=0, le=1)]
Factor = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(ge=1)]
Pattern = Annotated[str, AfterValidator(_compiled)]
SecretRef = Annotated[str, Field(pattern=r"^(env:[A-Za-z_][A-Za-z0-9_]*|file:.+)$")]
KeyRef = Annotated[
    str,
    Field(pattern=r"^(env:[A-Za-z_][A-Za-z0-9_]*|file:.+|sha256:[0-9a-f]{64}|scrypt:[0-9a-f]{32}:[0-9a-f]{64})$"),
]
"""A key by reference, or its hash as `turngate keys` prints it."""
RedisUrl = Annotated[
    str,
    form(
        r"(rediss?|valkeys?|unix)://|(env:[A-Za-z_][A-Za-z0-9_]*|file:.+)$",
        "redis://host:6379/0, or env:NAME or file:/path of what holds that",
    ),
]
Approval = Annotated[str, form(r"(never|always|https?://.+)$", "never, always, or the https:// address to ask")]


class Section(BaseModel):
    """Keys that belong together. Frozen; an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")


@cache
def help_of(section: type[Section]) -> dict[str, str]:
    """Return the text under each key of a section. It is read from the source when it is shown:
    `use_attribute_docstrings` would read it at every start, and took a tenth of that time."""
    helps: dict[str, str] = {}
    for base in section.__bases__:
        if issubclass(base, Section):
            helps |= help_of(base)
    (defined,) = ast.parse(dedent(getsource(section))).body
    assert isinstance(defined, ast.ClassDef)
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


# ---- listeners and engines


class Listen(Section):
    """The public listener."""

    host: str = "127.0.0.1"
    """Address to listen on. Any address but loopback needs `keys`, or `open: true`."""
    port: Port = 8080
    """TCP port to listen on. 0: any free port."""
    open: bool = False
    """Whether other machines are served although no keys are configured."""
    hosts: Annotated[tuple[str, ...], BeforeValidator(_split)] = ()
    """Further host names, or globs of them, by which clients reach the gateway while no keys are configured.
    Addresses, names without a dot and names such as gateway.internal need no entry. Under any other name no
    request is answered on loopback, and no browser elsewhere.
    Example: [gateway.example.com]"""

    @property
    def is_loopback(self) -> bool:
        return is_loopback(self.host)


class KvEventEntry(Section):
    """One publisher of KV events."""

    url: Annotated[str, form(r"@?(tcp|ipc)://.", "tcp://host:5557")]
    """ZeroMQ address of the events. `tcp://host:port` connects to an engine whose `endpoint` is `tcp://*:port`.
    `tcp://*:port` or `@tcp://address:port` listens for an engine whose `endpoint` names this host; every process
    that reaches that address is believed."""
    replay_url: Annotated[str, form(r"(tcp|ipc)://.", "tcp://host:5558")] | None = None
    """The engine's `replay_endpoint`, from which lost events are fetched. null: after a gap, all earlier events of
    the engine are forgotten."""


KvEvents = Annotated[tuple[Annotated[KvEventEntry, BeforeValidator(_as_entry)], ...], BeforeValidator(_split)]


class EngineEntry(Section):
    """One engine process, or one Dynamo frontend with all the workers behind it."""

    url: str
    """`kind://host:port`, where the kind is vllm, sglang, dynamo, openai, anthropic or bedrock; `http://host:port`,
    where the engine shows its kind itself; `kind://name:port?resolve=all`, one at each address of the name, which
    is resolved again every 5 s; `embedded`; or a rented service: `openai://`, `anthropic://`, `bedrock://REGION`."""
    name: str = ""
    """Name in metrics, receipts and headers. Empty: host:port, or `embedded`, `embedded-2`, ..."""
    api_key: SecretRef | None = None
    """Bearer token that is sent to the engine, as env:NAME or file:/path. null: none, but for `openai://` and
    `anthropic://` alone OPENAI_API_KEY and ANTHROPIC_API_KEY, if they are set."""
    metrics_urls: tuple[str, ...] = ()
    """Addresses of further metrics pages, such as a Dynamo worker's system port."""
    kv_events: KvEvents | None = None
    """Where the engine publishes KV events (`--kv-events-config`): one entry for each data-parallel rank. Needs
    `turngate[kvevents]`. null: where SGLang and vLLM state it, if that package is there; []: they are not heard.
    Example: ["tcp://gpu1:5557", {url: "tcp://gpu1:5558", replay_url: "tcp://gpu1:6558"}]"""


Engines = Annotated[tuple[Annotated[EngineEntry, BeforeValidator(_as_entry)], ...], BeforeValidator(_split)]


class Models(Section):
    """Which engine model answers to which name."""

    aliases: dict[str, str] = Field(default_factory=dict)
    """Engine model for each name or glob that a client may ask for. The first match wins.
    Example: {"gpt-*": Qwen/Qwen3-32B}"""
    side_model: str | None = None
    """Engine model that serves side requests, such as titles and compaction. null: the requested model, as
    while no engine that is up serves it."""
    answer_any_model: bool = True
    """Whether a single served model answers to every name."""


class Probing(Section):
    """How engines are polled, and when a failing replica is left alone."""

    interval_s: Seconds = 1
    """Seconds between two polls of an engine. A rented one that is up is polled every five minutes."""
    timeout_s: Seconds = 5
    """Seconds after which a poll has failed."""
    hints: bool = True
    """Whether a few one-token requests at start find out which hints each engine honours. None go to a
    rented one."""
    start_waits: bool = True
    """Whether a start waits for those requests. Else they go out with the second poll."""
    breaker_failures: Count = 5
    """Failed calls after which a replica is left alone, if they are at least half of its calls within
    `breaker_window_s`. The last replica of a model is never left alone."""
    breaker_window_s: Seconds = 10
    """Seconds within which failed calls are counted."""
    breaker_open_s: Seconds = 5
    """Seconds for which a failing replica is left alone before one trial call. Each failed trial doubles them, up
    to 60 s."""


class Embedded(Section):
    """The built-in engine model, behind `turngate engine` and the engine URL `embedded`."""

    model: str = "embedded"
    """Name of the model that it serves."""
    capacity_tokens: Count = 262_144
    """Size of its KV pool in tokens."""
    slots: Count = 256
    """Model calls that it runs at once."""
    speed: Factor = 1
    """Factor on its speed. 2: everything takes half the time."""
    script: str | None = None
    """File of rules for its answers: texts and tool calls (docs/embedded.md). null: answers of its own."""


# ---- the path of a request


class Policy(Section):
    """When a session is admitted, in which order turns go, and to which replica."""

    name: str = "turns"
    """turns, observe, fifo, passthrough or deadline; or the import path of another one, `package.module:Name`."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments of a policy that is given by its import path."""
    placement: Annotated[str, AfterValidator(_placement)] = "prefix"
    """How the replica of a turn is chosen. prefix weighs the cached prefix against the load; or the import path of
    another function, `package.module:name`."""
    slots_per_replica: Count | None = None
    """Model calls that a replica runs at once. null: as many as the engine reports or its metrics show."""
    capacity_tokens: Count | None = None
    """Size of a replica's KV pool in tokens. null: as the engine reports."""
    ceiling: Share = 0.98
    """Share of the KV pool that resident sessions and their next answers may fill. Beyond it a session is admitted
    only where holding it does not pay."""
    price: NotNegative | None = None
    """Deprecated: it has no effect and will be removed. The gateway measures what an eviction costs."""
    max_wait_s: SecondsOrZero = 300
    """Longest expected wait of a streaming request in seconds. A request that would wait longer is refused at once
    with 429."""
    max_wait_plain_s: SecondsOrZero = 400
    """Longest expected wait in seconds of a request that is not streamed."""
    hold_bound_s: SecondsOrZero = 60
    """After this many seconds, and at least twice its first-come-first-served wait, a waiting session may evict
    idle ones."""
    warm_up_bytes: int | None = Field(default=None, ge=0)
    """Deprecated: it has no effect and will be removed. No session is prefilled ahead of its next turn."""
    sub_agents_return: bool = True
    """Whether a sub-agent, for which its parent waits, is queued like a later turn of the parent. false: it is
    queued like a new session."""


class Stream(Section):
    """What the client of a queued stream hears."""

    silent_queue_s: SecondsOrZero = 90
    """Seconds after which a queued stream is answered with status 200 and keep-alives. 0: at once."""
    keep_alive_s: Seconds = 25
    """Seconds between two keep-alive events."""


class IdentitySettings(Section):
    """How sessions are recognised, and how much is remembered for that."""

    secret: SecretRef | None = None
    """Key of all session and family ids, as env:NAME or file:/path. Gateways with the same secret give equal ids.
    null: a new key at each start."""
    max_sessions: Count = 20_000
    """Sessions that are remembered at once. The least recently seen session is forgotten first."""
    session_ttl_s: Seconds = 3600
    """Seconds after its last request at which a session is forgotten."""
    volatile_spans: Literal["report", "move", "strip"] = "report"
    """What happens to text in a system prompt that keeps sibling sessions from sharing their prefix. report: it is
    only reported. move: it is moved behind the first user message. strip: it is removed."""
    volatile_patterns: tuple[Pattern, ...] = (r"^x-(?:anthropic|amz)-[^\n]*\n?",)
    """Regular expressions of such text. ^ and $ match at the ends of lines."""
    volatile_learned: tuple[Literal["header", "date", "path", "id", "number"], ...] = (
        "header",
        "date",
        "path",
        "id",
    )
    """Kinds of text that count as such text once they have broken the prefixes of three sessions at one place.
    Empty: none."""


class RequestLimits(Section):
    """Bounds on what clients can make the gateway hold."""

    body_bytes: Count = 32 * 2**20
    """Largest request body in bytes."""
    incoming_bytes: Count = 256 * 2**20
    """Bytes of bodies above 256 KiB that may be on their way in at once; those above 64 KiB may take a sixteenth
    more. One key may use a quarter. Further bodies wait for at most 30 s, and each has to come at 64 KiB/s, with
    30 s more."""
    memory_bytes: Annotated[int, Field(ge=16 * 2**20)] = 2**30
    """Memory in bytes of one process for all that outlives a request: the memory of sessions, receipts,
    results of tools, and bodies that are on their way in. Where `limits.incoming_bytes`,
    `receipts.max_bytes`, `tools.hidden_bytes` and `tools.cache_bytes` would take more than about half of it, they
    are less, in proportion. What was used least recently is forgotten first."""
    queue_turns: Count = 10_000
    """Turns that may wait at once. Further turns are refused with 429."""
    messages: Count = 10_000
    """Most messages or input items of one request."""
    tools: Count = 1_024
    """Most tools that one request may declare."""
    values: Count = 1_000_000
    """Most JSON values of one request's body. A list or an object counts as five."""
    attempts: Count = 3
    """Replicas on which a model call is tried in a row before its first byte. A call at which engines fail is sent
    this many times in all."""


class TimeoutSettings(Section):
    """Bounds of one call to an engine, and of stopping."""

    connect_s: Seconds = 5
    """Seconds to connect to an engine."""
    first_byte_s: Seconds = 600
    """Seconds from sending a call to the engine's status line."""
    idle_s: Seconds = 300
    """Seconds between two chunks of an engine's answer."""
    shutdown_grace_s: SecondsOrZero = 30
    """Seconds that running requests have to finish after a stop signal."""


# ---- keys, prices and the admin listener


class KeyLimits(Section):
    """What one key may use. null: no limit."""

    requests: Count | None = None
    """Requests per window."""
    tokens: Count | None = None
    """Prompt and output tokens per window."""
    window_s: Window = 60
    """Length of the sliding window in seconds."""
    concurrency: Count | None = None
    """Requests in the gateway at once, waiting requests included."""
    budget_tokens: Count | None = None
    """Prompt and output tokens per budget window."""
    budget_cost: Factor | None = None
    """Cost per budget window, in the unit of `prices`."""
    budget_window_s: Window = 86_400
    """Length of the sliding budget window in seconds."""


class Price(Section):
    """Price of a million tokens of one model."""

    prompt: NotNegative = 0
    """Price of prompt tokens that were not cached."""
    cached: NotNegative | None = None
    """Price of prompt tokens that the engine reports as cached. null: as `prompt`."""
    output: NotNegative = 0
    """Price of output tokens."""


class KeyEntry(Section):
    """One client key."""

    key: KeyRef
    """The bearer token as env:NAME or file:/path, which may hold its hash; or the hash itself (see `turngate
    keys`)."""
    name: str = ""
    """Name in logs, audits and counters. Empty: the reference, or the first digits of the hash."""
    tenant: str = Field("default", min_length=1)
    """Tenant of the key. Sessions and stored data of two tenants are kept apart."""
    models: tuple[str, ...] = ("*",)
    """Names or globs of the engine models that the key may use."""
    weight: Factor = 1
    """Weight of its tenant's fair share of slots and of computed tokens while turns wait."""
    urgency: Annotated[int, Field(ge=-100, le=100)] = 0
    """Priority class of its turns; higher classes go first, and their sessions are not evicted for lower ones.
    Below 0: its turns wait for as long as other turns come."""
    may_prioritise: bool = False
    """Whether a priority or worker pin that the client sends is honoured."""
    tools: tuple[str, ...] = ()
    """Names or globs of the gateway's tools that the key may use. Empty: none."""
    isolate_cache: bool = False
    """Whether its tenant's prompts are kept apart in the prefix caches of engines. Other tenants then cannot find
    out from `cached_tokens` or response times what was sent before, and no other tenant shares a prefix with it.
    Its requests go only to engines that support this: vllm, sglang and dynamo, on all paths but /v1/messages
    (sglang and dynamo: also not /v1/responses)."""
    limits: KeyLimits = KeyLimits()
    """Limits of the key: requests and tokens per window, concurrency, and budgets."""

    @property
    def id(self) -> str:
        """Distinguishes this key from others, in logs too."""
        return self.name or (self.key[:15] if self.key.startswith(("sha256:", "scrypt:")) else self.key)


class AdminSettings(Section):
    """Access to metrics and to views that concern all tenants."""

    host: str = "127.0.0.1"
    """Address of the admin listener. Any address but loopback needs `admin.key`, or `admin.open: true`."""
    port: Port | None = None
    """Port of the admin listener, which alone then serves metrics and admin views. 0: any free port. null: there
    is no admin listener, and the public one serves them without keys or with `admin.key`."""
    key: KeyRef | None = None
    """Bearer token for metrics and for views of all tenants, written as in `keys`. null: none."""
    open: bool = False
    """Whether the admin listener serves other machines although it has no key."""

    @property
    def is_loopback(self) -> bool:
        return is_loopback(self.host)


# ---- what the gateway tells of its work


class Logging(Section):
    """The log."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """Least level that is written. info includes one line for each request."""
    format: Literal["text", "json"] = "text"
    """Lines of key=value, or one JSON object per line; both on standard error."""
    facts: str | None = None
    """File for the log of scheduling facts, which can be replayed and holds no content. null: off."""


class TracingSettings(Section):
    """OpenTelemetry traces of requests, without content. Needs `turngate[otel]`."""

    endpoint: Annotated[str, form("https?://.", "http://collector:4318")] | None = None
    """OTLP/HTTP collector, such as http://collector:4318. Its headers: OTEL_EXPORTER_OTLP_HEADERS. null: off."""
    service_name: str = "turngate"
    """Name of this gateway in traces."""
    share: Share = 1
    """Share of the requests without `traceparent` that are traced. A `traceparent` decides for its own request."""


class ReceiptSettings(Section):
    """Receipts, at /v1/turngate/receipts/{id}: each explains how one request was answered."""

    keep_s: SecondsOrZero = 600
    """Seconds for which a receipt can be read. 0: no receipts are kept."""
    max_kept: Count = 50_000
    """Receipts that are kept at once, about 1 KB each. The oldest is dropped first."""
    max_bytes: Count = 64 * 2**20
    """Memory in bytes for all receipts. The oldest is dropped first."""


# ---- tools that the gateway runs for models


class ToolSourceSettings(Section):
    """Settings for the tools of one source. null: as each tool itself says."""

    names: tuple[str, ...] = ("*",)
    """Names or globs of the tools that are used."""
    mode: Literal["offer", "intercept"] = "offer"
    """offer: the gateway offers the tools to the model, and the client never sees them. intercept: the gateway
    runs them for clients that declare tools of these names."""
    models: tuple[str, ...] = ("*",)
    """Names or globs of the models that get the tools, as clients or engines call these models."""
    effect: Literal["read_only", "idempotent", "destructive"] | None = None
    """Results of read_only tools are shared and cached between agents, those of idempotent tools are shared while
    a call runs, and each call of a destructive tool runs. null: as the tool says, else destructive."""
    timeout_s: Seconds | None = None
    """Longest run of one call in seconds. null: as the tool says, else 30."""
    concurrency: Count | None = None
    """Calls that run at once. Tenants share them by their weights. null: as the tool says, else no limit."""
    rate_per_s: Factor | None = None
    """Calls that are started per second. Tenants share them by their weights. null: as the tool says, else no
    limit."""
    max_result_bytes: Count | None = None
    """Largest result in bytes. A longer result is cut, and says so. null: as the tool says, else 65,536."""
    ttl_s: SecondsOrZero | None = None
    """Seconds for which a result is served again. 0: not at all. null: as the tool says, else 0."""
    negative_ttl_s: SecondsOrZero | None = None
    """Seconds for which an error is served again. 0: not at all. null: as the tool says, else 0."""
    scope: Literal["session", "tenant", "global"] | None = None
    """Where one result may be shared: within a session, within a tenant, or between all tenants. null: as the tool
    says, else within a tenant."""
    approval: Approval | None = None
    """never, always (a call is refused unless it is approved), or a URL that is asked before each call. null: as
    the tool says, else never."""


class ToolEntry(ToolSourceSettings):
    """Tools in Python: your own, those of an installed package, or built-in ones."""

    use: str
    """Import path `package.module:attribute`, the name of an entry point, or the name of a built-in tool. A module
    may lie beside the configuration file."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Options of a built-in tool, or of a `build` function."""
    secrets: dict[str, SecretRef] = Field(default_factory=dict)
    """Secret options, as env:NAME or file:/path."""


class McpEntry(ToolSourceSettings):
    """One MCP server: a command to start, or a URL."""

    name: str
    """Name in metrics and logs."""
    command: tuple[str, ...] = ()
    """Program and arguments of a server on standard input and output."""
    url: str | None = None
    """Address of a server over streamable HTTP."""
    env: dict[str, SecretRef] = Field(default_factory=dict)
    """Environment variables of the command, as env:NAME or file:/path."""
    headers: dict[str, SecretRef] = Field(default_factory=dict)
    """Headers for the URL, as env:NAME or file:/path."""
    options: dict[str, Any] = Field(default_factory=dict)
    """prefix (of the tools' names), effects (by tool, where the server's hints are wrong), cwd, start_timeout_s,
    max_message_bytes."""

    @model_validator(mode="after")
    def _is_somewhere(self) -> McpEntry:
        if bool(self.command) == bool(self.url):
            raise ValueError("give either its `command` or its `url`")
        return self


class ToolSettings(Section):
    """Tools that the gateway runs while a model answers. Only tools that are listed here are on."""

    use: tuple[ToolEntry, ...] = ()
    """Tools in Python.
    Example: [{use: "my_tools:search", effect: read_only, ttl_s: 60}]"""
    mcp: tuple[McpEntry, ...] = ()
    """MCP servers.
    Example: [{name: docs, command: [docs-server], names: ["search_*"]}]"""
    max_rounds: Count = 16
    """Model calls of one answer that may call tools. The next model call has to answer without tools."""
    max_calls: Count = 32
    """Calls of the gateway's tools in one model call. Further calls are refused."""
    hidden_bytes: Count = 64 * 2**20
    """Memory in bytes for calls and results that clients do not see. They are put back when the next request of
    their conversation arrives. The tenant with the most of them loses its least recently used ones first."""
    hidden_ttl_s: Seconds = 3600
    """Seconds after which such calls and results are forgotten if no request has needed them."""
    cache_bytes: Count = 64 * 2**20
    """Memory in bytes for results that are served again."""


# ---- batches, and several processes that serve as one


class Batches(Section):
    """Durable batches: /v1/files and /v1/batches."""

    directory: str | None = None
    """Directory for the files and results of one gateway process. null: no batches."""
    redis: RedisUrl | None = None
    """Redis or Valkey (`redis://host:6379/0`, or env:NAME or file:/path) of gateways that share their batches. Any
    of these gateways reports on each batch, and if the gateway that runs a batch is lost, another one continues
    it. All of them must see the same `directory`. Needs `turngate[redis]`. null: each gateway has its own
    batches."""
    file_bytes: Count = 200 * 2**20
    """Largest file in bytes."""
    in_flight: Count = 256
    """Most lines that run at once. Other turns push this number down, never below one."""
    attempts: Count = 5
    """Attempts at a line at which engines fail. A line waits without using one while all engines are full or
    down."""


class Cluster(Section):
    """Several processes that serve as one: workers of this machine, and gateways that share a Redis or Valkey."""

    workers: Count = 1
    """Processes on this machine. Each accepts any request; all turns of a session are decided by one of them."""
    redis: RedisUrl | None = None
    """Redis or Valkey of gateways that share engines: `redis://host:6379/0`, or env:NAME or file:/path where it
    holds a password. They must also have the same `identity.secret`. Needs `turngate[redis]`. null: this gateway
    is alone."""
    host: str = "127.0.0.1"
    """Address at which the other gateways reach this one."""
    port: Port = 0
    """Port at which they reach its first worker; further workers use the next ports. 0: any free ports."""


class Settings(Section):
    """Everything that can be configured."""

    listen: Listen = Listen()
    engines: Engines = ()
    """Engines, as URLs or as entries.
    Example: [vllm://127.0.0.1:8000, {url: "sglang://gpu2:30000", api_key: "env:SGLANG_KEY"}]"""
    transport: Literal["auto", "aiohttp", "fast"] = "auto"
    """HTTP server and client. fast: over httptools, with time-outs for slow clients. aiohttp: the reference. auto:
    fast."""
    hosts_file: str | None = None
    """File with one more engine URL per line; # starts a comment. null: none."""
    learned_file: str | None = None
    """File for what is learned of engines and families, and the sizes of resident sessions; no content. It is
    written every few seconds, and read at the next start. Each gateway has its own. Families are found again only
    with `identity.secret`. null: each start learns again.
    Example: /var/lib/turngate/learned"""
    models: Models = Models()
    policy: Policy = Policy()
    stream: Stream = Stream()
    identity: IdentitySettings = IdentitySettings()
    probing: Probing = Probing()
    limits: RequestLimits = RequestLimits()
    timeouts: TimeoutSettings = TimeoutSettings()
    keys: tuple[KeyEntry, ...] = ()
    """Client keys. Empty: no key is required.
    Example: [{key: "env:TEAM_A_KEY", tenant: team-a, models: ["Qwen/*"], limits: {tokens: 200000}}]"""
    prices: dict[str, Price] = Field(default_factory=dict)
    """Price of a million tokens, by name or glob of the engine model, for `budget_cost`. The first match wins.
    Example: {"Qwen/*": {prompt: 0.4, cached: 0.1, output: 1.2}, "*": {prompt: 2, output: 6}}"""
    admin: AdminSettings = AdminSettings()
    logging: Logging = Logging()
    tracing: TracingSettings = TracingSettings()
    receipts: ReceiptSettings = ReceiptSettings()
    embedded: Embedded = Embedded()
    tools: ToolSettings = ToolSettings()
    batches: Batches = Batches()
    cluster: Cluster = Cluster()
