"""KV event batches as engines encode them, for tests."""

from __future__ import annotations

from typing import Any

import msgspec

FIELDS = ("block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "lora_name")


def batch(*events: Any, at: float = 0.0, rank: int | None = 0) -> bytes:
    return msgspec.msgpack.encode([at, events, rank])


def stored(*hashes: int | bytes, parent: int | bytes | None = None, size: int = 16, **more: Any) -> dict[str, Any]:
    """As a map; token ids are there, and are not read."""
    event = {"block_hashes": hashes, "parent_block_hash": parent, "token_ids": [7] * size * len(hashes)}
    return {"type": "BlockStored", **event, "block_size": size, **more}


def removed(*hashes: int | bytes, **more: Any) -> dict[str, Any]:
    return {"type": "BlockRemoved", "block_hashes": hashes, **more}


def cleared() -> dict[str, Any]:
    return {"type": "AllBlocksCleared"}


def as_array(event: dict[str, Any]) -> list[Any]:
    """The same event as older releases write it: the tag, then the fields that there were."""
    return [event["type"], *(event.get(field) for field in FIELDS if field in event or field == "lora_id")][:7]
