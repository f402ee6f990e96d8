"""Claims of a request's headers about its session: id, parent, last turn, turns to come. They are hints.

Exactly one schema counts: the first one whose session header is present, even if its value is unusable. Mixing
them would join separate sessions (Codex sends the root's `session-id` from every sub-agent, OpenCode sends one
too, and a proxy may add its own).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import TypeAlias

from gateway.core.fields import excerpt
from policies.types import value

_MAX_ID_CHARS = 255
"""A longer explicit id means no id (Bifrost's rule)."""

Headers: TypeAlias = Mapping[str, str]


@value
class Claim:
    """The claims of the headers. None of them is believed before the prompt agrees."""

    source: str = ""
    """The header that gave the session id. Empty: none did."""
    session: str | None = None
    parent: str | None = None
    is_final: bool = False
    """The client says that this is its session's last turn."""
    expects_tools: bool = False
    """This client's agents offer tools with every turn, so a request without is a side request."""


NO_CLAIM = Claim()
_OFFERS_TOOLS = Claim(expects_tools=True)
_AGENTS_WITH_TOOLS = ("opencode/", "codex_", "claude-cli/")
"""How user agents begin of those whose schemas expect tools. A proxy may drop the headers of a session."""
_SESSION_HEADERS = frozenset(
    (
        "x-turngate-session",
        "x-dynamo-session-id",
        "x-session-id",
        "x-session-affinity",
        "x-opencode-session",
        "thread-id",
        "session-id",
        "session_id",
        "x-claude-code-session-id",
    )
)
"""The session headers of all schemas."""


def read_claim(headers: Headers) -> Claim:
    """Return the claim of the first schema that is present. Header names are in lower case."""
    if _SESSION_HEADERS.isdisjoint(headers):
        has_tools = headers.get("user-agent", "").startswith(_AGENTS_WITH_TOOLS)
        return _OFFERS_TOOLS if has_tools else NO_CLAIM
    return next((claim for schema in _LADDER if (claim := schema(headers)).source), NO_CLAIM)


def says_retry(headers: Headers) -> bool:
    """Whether it is a retry: official SDKs count how often they have sent a request again."""
    return (whole_number(headers, "x-stainless-retry-count") or 0) > 0


_MAX_AGENT_CHARS = 64
_MAX_USER_AGENT_CHARS = 256


def agent_name(headers: Headers) -> str:
    """Return the name of the program that asks, as one visible line: as it says, else the product of its user
    agent. Empty: it has none. A label for people; nothing is decided by it."""
    if (named := headers.get("x-turngate-agent")) is not None:
        return excerpt(named.strip(), _MAX_AGENT_CHARS)
    return _product(headers.get("user-agent", "")[:_MAX_USER_AGENT_CHARS])


@lru_cache(maxsize=256)
def _product(user_agent: str) -> str:
    """Return the first product without its version: `opencode` of `opencode/1.18.33 ai-sdk/...`, and
    `AsyncOpenAI/Python` of `AsyncOpenAI/Python 2.9.0`."""
    first = user_agent.strip().partition(" ")[0]
    name, _, version = first.rpartition("/")
    return excerpt(name if name and version[:1].isdigit() else first, _MAX_AGENT_CHARS)


def lost_s(headers: Headers) -> float | None:
    """Return how long ago the client first sent this request and lost its connection. None: it did not."""
    lost_ms = whole_number(headers, "x-turngate-lost-ms")
    return None if lost_ms is None else lost_ms / 1000


def whole_number(headers: Headers, name: str) -> int | None:
    """Return a header of at most nine digits; any other value counts as absent."""
    if (text := headers.get(name)) is None:
        return None
    text = text.strip()
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else None


def _own(headers: Headers) -> Claim:
    return _claim(headers, ("x-turngate-session",), "x-turngate-parent", final="x-turngate-final")


def _dynamo(headers: Headers) -> Claim:
    return _claim(headers, ("x-dynamo-session-id",), "x-dynamo-parent-session-id", final="x-dynamo-session-final")


def _opencode(headers: Headers) -> Claim:
    """Read OpenCode's headers. `x-session-id` alone may come from any client; with one of the other two it is
    OpenCode, whose agents have tools."""
    is_opencode = "x-session-affinity" in headers or "x-opencode-session" in headers
    names = ("x-session-id", "x-session-affinity", "x-opencode-session")
    return _claim(headers, names, "x-parent-session-id", expects_tools=is_opencode)


def _codex(headers: Headers) -> Claim:
    """In a sub-agent `session-id` is the root's; only `thread-id` is its own."""
    is_codex = "thread-id" in headers
    names = ("thread-id", "session-id", "session_id")
    return _claim(headers, names, "x-codex-parent-thread-id", expects_tools=is_codex)


def _claude_code(headers: Headers) -> Claim:
    """Sub-agents share the session id and have an agent id; the main agent has none."""
    session = _id(headers, "x-claude-code-session-id")
    agent = _id(headers, "x-claude-code-agent-id")
    claim = _claim(headers, ("x-claude-code-session-id",), "", expects_tools=True)
    if session is None or agent is None:
        return claim
    parent_agent = _id(headers, "x-claude-code-parent-agent-id")
    parent = f"{session}/{parent_agent}" if parent_agent else session
    return Claim(claim.source, f"{session}/{agent}", parent, expects_tools=True)


_LADDER: tuple[Callable[[Headers], Claim], ...] = (_own, _dynamo, _opencode, _codex, _claude_code)


def _claim(
    headers: Headers, names: tuple[str, ...], parent: str, *, final: str = "", expects_tools: bool = False
) -> Claim:
    source = next((name for name in names if headers.get(name, "").strip()), "")
    if not source:
        return Claim()
    return Claim(
        source=source,
        session=_id(headers, source),
        parent=_id(headers, parent),
        is_final=headers.get(final, "").strip().lower() in ("1", "true", "yes"),
        expects_tools=expects_tools,
    )


def _id(headers: Headers, name: str) -> str | None:
    """Return an id; None also for bytes that are no text, which arrive as surrogates."""
    text = headers.get(name, "").strip()
    return text if 0 < len(text) <= _MAX_ID_CHARS and _is_text(text) else None


def _is_text(text: str) -> bool:
    return text.isascii() or not any("\ud800" <= char <= "\udfff" for char in text)
