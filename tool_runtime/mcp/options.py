"""How one MCP server is configured."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from tool_runtime.types import Effect


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Settings of one server."""

    name: str
    command: str = ""
    """Started as a child that speaks over its standard input and output; or"""
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Added to PATH, HOME and the like; nothing else of our environment is given to it."""
    cwd: str | None = None
    url: str = ""
    """reached by streamable HTTP."""
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    prefix: str | None = None
    """Put before the names of its tools. None: its own name and `_`."""
    effects: Mapping[str, str] = field(default_factory=dict)
    """`read_only`, `idempotent` or `destructive` by tool, where the server's hints are missing or wrong."""
    start_timeout_s: float = 30.0
    """From the start of the server to its list of tools."""
    max_message_bytes: int = 8 * 1024 * 1024

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[A-Za-z0-9_-]{1,32}", self.name):
            raise ValueError(f"a server's name has at most 32 letters, digits, _ and -, unlike {self.name!r}")
        if bool(self.command) == bool(self.url):
            raise ValueError("a server has either a command or a url")
        for effect in self.effects.values():
            if effect not in set(Effect):
                raise ValueError(f"there is no effect {effect!r}; there are {', '.join(Effect)}")
