"""The schema of who may ask: client keys with their limits, prices of models, and the admin listener."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from gateway.section import Count, Factor, NotNegative, Port, Seconds, Section, is_loopback

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


class Admin(Section):
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
