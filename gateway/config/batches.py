"""The schema of the section `batches`: where durable batches are kept, and what they may use."""

from __future__ import annotations

from gateway.config.cluster import RedisUrl
from gateway.config.section import Count, Section


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
