"""The schema of the section `tools`: which tools the gateway runs for models, and for whom."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from gateway.section import Count, Factor, Seconds, SecondsOrZero, SecretRef, Section, form

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


class Tools(Section):
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
