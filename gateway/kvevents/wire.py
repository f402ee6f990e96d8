"""The KV events of vLLM as bytes: msgpack batches of events that are maps (0.32) or arrays (older ones, SGLang).

Both have the same field order. Hashes are numbers or bytes, by release and settings. Token ids are not read.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

Hash: TypeAlias = int | bytes
DEVICE = "GPU"
"""Where a block is when an event does not say; other tiers are CPU, STORAGE and names of connectors."""


class Stored(msgspec.Struct, tag="BlockStored", gc=False):
    """A run of blocks is cached now, each the child of the one before, the first one of `parent_block_hash`."""

    block_hashes: list[Hash]
    parent_block_hash: Hash | None = None
    token_ids: msgspec.Raw = msgspec.Raw(b"\x90")
    block_size: int = 0
    """Tokens per block. 0: a tier that names its blocks without describing them."""
    lora_id: msgspec.Raw | None = None
    medium: str | None = None
    lora_name: msgspec.Raw | None = None
    extra_keys: msgspec.Raw | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: msgspec.Raw | None = None
    kv_cache_spec_sliding_window: msgspec.Raw | None = None
    locality: msgspec.Raw | None = None
    ownership: msgspec.Raw | None = None
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


_BATCHES = msgspec.msgpack.Decoder(_Batch)
_MAPS = msgspec.msgpack.Decoder(Stored | Removed | Cleared)
_ARRAYS = msgspec.msgpack.Decoder(_StoredArray | _RemovedArray | _ClearedArray)


def decode(payload: bytes) -> Batch:
    """Events of kinds that are not known here are left out. Raises ValueError when it is no batch at all."""
    try:
        batch = _BATCHES.decode(payload)
    except msgspec.DecodeError as error:
        raise ValueError(f"not a batch of KV events: {error}") from None
    events = [event for raw in batch.events if (event := _event(raw)) is not None]
    return Batch(batch.ts, events, batch.data_parallel_rank)


def _event(raw: msgspec.Raw) -> Event | None:
    first = memoryview(raw)[0]
    try:
        if 0x80 <= first <= 0x8F or first in (0xDE, 0xDF):  # a map, by msgpack's specification
            return _MAPS.decode(raw)
        return _ARRAYS.decode(raw)
    except msgspec.DecodeError:
        return None
