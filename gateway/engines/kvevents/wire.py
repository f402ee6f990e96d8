"""The KV events of vLLM as bytes: msgpack batches of events that are maps (0.32) or arrays (older ones, SGLang).

Both have the same field order. Hashes are numbers or bytes, by release and settings. Token ids are not read.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

Hash: TypeAlias = int | bytes
DEVICE = "GPU"
"""Where a block is when an event does not say; other tiers are CPU, STORAGE and names of connectors."""


_UNREAD = msgspec.Raw()


class Stored(msgspec.Struct, tag="BlockStored", gc=False):
    """A run of blocks is cached now, each the child of the one before, the first one of `parent_block_hash`."""

    block_hashes: list[Hash]
    parent_block_hash: Hash | None = None
    token_ids: msgspec.Raw = _UNREAD
    block_size: int = 0
    """Tokens per block. 0: a tier that names its blocks without describing them."""
    lora_id: msgspec.Raw = _UNREAD
    medium: str | None = None
    lora_name: msgspec.Raw = _UNREAD
    extra_keys: msgspec.Raw = _UNREAD
    group_idx: int | None = None
    kv_cache_spec_kind: msgspec.Raw = _UNREAD
    kv_cache_spec_sliding_window: msgspec.Raw = _UNREAD
    locality: msgspec.Raw = _UNREAD
    ownership: msgspec.Raw = _UNREAD
    session_id: str | None = None
    """The `X-Session-ID` of the request that computed them (vLLM; seen on 0.32)."""


class Removed(msgspec.Struct, tag="BlockRemoved", gc=False):
    block_hashes: list[Hash]
    medium: str | None = None
    group_idx: int | None = None


class Cleared(msgspec.Struct, tag="AllBlocksCleared", gc=False):
    """The whole cache was reset."""


class _StoredArray(Stored, array_like=True, tag="BlockStored", gc=False):
    pass


class _RemovedArray(Removed, array_like=True, tag="BlockRemoved", gc=False):
    pass


class _ClearedArray(Cleared, array_like=True, tag="AllBlocksCleared", gc=False):
    pass


class _Batch(msgspec.Struct, array_like=True, gc=False):
    ts: float
    events: list[msgspec.Raw]
    data_parallel_rank: int | None = None


Event: TypeAlias = Stored | Removed | Cleared


class Batch(msgspec.Struct, frozen=True):
    """What one engine step changed, in order."""

    at: float
    """Wall time of the engine, in seconds."""
    events: list[Event]
    rank: int | None = None
    """Data-parallel rank."""


_KINDS = ("BlockStored", "BlockRemoved", "AllBlocksCleared")
_BATCHES = msgspec.msgpack.Decoder(_Batch)
_MAPS = msgspec.msgpack.Decoder(Stored | Removed | Cleared)
_ARRAYS = msgspec.msgpack.Decoder(_StoredArray | _RemovedArray | _ClearedArray)


def decode(payload: bytes) -> Batch:
    """Events of kinds that are not known here are left out. Raises ValueError when it is no batch, or holds an
    event of a known kind that cannot be read."""
    try:
        batch = _BATCHES.decode(payload)
        events = [event for raw in batch.events if (event := _event(raw)) is not None]
    except msgspec.DecodeError as error:
        raise ValueError(f"not a batch of KV events: {error}") from None
    return Batch(batch.ts, events, batch.data_parallel_rank)


def _event(raw: msgspec.Raw) -> Event | None:
    first = memoryview(raw)[0]
    is_map = 0x80 <= first <= 0x8F or first in (0xDE, 0xDF)  # by msgpack's specification
    try:
        event: Event = _MAPS.decode(raw) if is_map else _ARRAYS.decode(raw)
    except msgspec.ValidationError:
        told = msgspec.msgpack.decode(raw)
        kind = told.get("type") if isinstance(told, dict) else told[0] if isinstance(told, list) and told else None
        if kind in _KINDS:
            raise
        return None
    return event
