"""`turngate check`: whether the configuration is valid, and its meaning in plain words."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from gateway.access.keys import callers, hash_of
from gateway.cluster.workers import is_member
from gateway.config import loading
from gateway.config.loading import refuse_missing
from gateway.config.settings import Settings
from gateway.engines.kinds import UNNAMED
from gateway.request.gate import policy_of
from gateway.tools.wiring import python_tools
from gateway.transport import transport_of


def add_flags(parser: argparse.ArgumentParser) -> None:
    """All are those of the configuration."""


def run(arguments: argparse.Namespace, settings: Settings) -> int:
    refuse_unstartable(settings)
    print("The configuration is valid.")
    print("\n".join(_meaning(settings)))
    for name in loading.unknown_variables():
        print(f"warning: nothing reads the variable {name}", file=sys.stderr)
    return 0


def refuse_unstartable(settings: Settings) -> None:
    """Raises ConfigError where a start would, as far as that shows without connections and open files."""
    loading.refuse_exposure(settings)
    addresses = loading.addresses(settings)
    refuse_missing(settings, addresses)
    transport_of(settings.transport)
    is_member(settings, None)
    loading.identity_secret(settings)
    policy_of(settings.policy)
    python_tools(settings.tools)
    callers(settings)
    if settings.embedded.script is not None:
        from gateway.embedded.scripts import rules_in  # few have one

        rules_in(Path(settings.embedded.script))
    for reference in filter(None, (settings.admin.key, *_references(settings))):
        hash_of(reference)


def _references(settings: Settings) -> Iterator[str]:
    """Yield the secrets that are read when a part starts."""
    for url in filter(None, (settings.cluster.redis, settings.batches.redis)):
        if url.startswith(("env:", "file:")):
            yield url
    for server in settings.tools.mcp:
        yield from (*server.env.values(), *server.headers.values())


def _meaning(settings: Settings) -> Iterator[str]:
    found, policy = callers(settings), settings.policy
    tenants = ", ".join(sorted({caller.tenant for caller in found.values()}))
    yield f"Listens on {settings.listen.host}, port {settings.listen.port}"
    if settings.admin.port is not None:
        yield f"Metrics and views of all tenants on {settings.admin.host}, port {settings.admin.port}"
    yield (
        f"Clients: {len(found)} keys of {tenants}"
        if found
        else "Clients: all that reach the address, without a key"
    )
    for address in loading.addresses(settings):
        kind = "of the kind that it shows," if address.kind == UNNAMED else address.kind
        each = ", one at each address of the name" if address.resolves_all else ""
        yield f"Engine {address.name}: {kind} {address.base_url}".rstrip() + each
    yield f"Policy {policy.name}: resident sessions fill at most {policy.ceiling:.0%} of a KV pool"
    yield f"Placement {policy.placement}"
    yield f"Wait at most {policy.max_wait_s:g} s streamed, {policy.max_wait_plain_s:g} s not streamed"
    if settings.tools.use or settings.tools.mcp:
        own_tools = python_tools(settings.tools)
        names = [*own_tools, *(f"those of MCP server {e.name}" for e in settings.tools.mcp)]
        yield f"Tools of the gateway: {', '.join(names)}"
    if settings.batches.directory is not None:
        yield f"Batches are kept in {settings.batches.directory}"
    if settings.cluster.workers > 1 or settings.cluster.redis is not None:
        others = ", one of the gateways that share a Redis" if settings.cluster.redis is not None else ""
        yield f"Workers: {settings.cluster.workers}{others}"
    for pattern, model in settings.models.aliases.items():
        yield f"Model {pattern} is {model}"
