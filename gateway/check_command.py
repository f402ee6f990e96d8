"""`turngate check`: whether the configuration is valid, and what it means."""

from __future__ import annotations

import sys

from gateway import config
from gateway.callers import callers
from gateway.scheduling import policy_of
from gateway.settings import Settings
from gateway.toolloop.wiring import python_tools


def check(settings: Settings) -> int:
    """Says in plain words what the configuration means."""
    config.refuse_exposure(settings)
    policy_of(settings.policy)
    own_tools, _ = python_tools(settings.tools)
    found, addresses, policy = callers(settings), config.addresses(settings), settings.policy
    tenants = ", ".join(sorted({caller.tenant for caller in found.values()}))
    print("The configuration is valid.")
    print(f"Listens on {settings.listen.host}, port {settings.listen.port}")
    print(f"Clients: {len(found)} keys of {tenants}" if found else "Clients: anybody, no key is asked for")
    for address in addresses:
        print(f"Engine {address.name}: {address.kind} {address.base_url}".rstrip())
    print(f"Policy {policy.name}: resident sessions fill at most {policy.ceiling:.0%} of a KV pool")
    print(f"Placement {policy.placement}")
    print(f"Wait at most {policy.max_wait_s:g} s streamed, {policy.max_wait_plain_s:g} s not streamed")
    if settings.tools.use or settings.tools.mcp:
        names = [
            *(tool.name for tool in own_tools),
            *(f"those of MCP server {e.name}" for e in settings.tools.mcp),
        ]
        print(f"Tools of the gateway: {', '.join(names)}")
    for pattern, model in settings.models.aliases.items():
        print(f"Model {pattern} is {model}")
    for name in config.unknown_variables():
        print(f"warning: nothing reads the variable {name}", file=sys.stderr)
    return 0
