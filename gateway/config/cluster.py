"""The schema of the section `cluster`: processes that serve as one."""

from __future__ import annotations

from typing import Annotated

from gateway.config.section import Count, Port, Section, form

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
