"""Laws of the wire format of KV events."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.engines.kv_events import Cleared, Removed, Stored, decode
from tests.engines.kv_event_batches import as_array, batch, cleared, removed, stored


def test_events_are_read_from_maps() -> None:
    read = decode(
        batch(stored(1, 2, parent=9, session_id="s", group_idx=0), removed(3), cleared(), at=5.5, rank=2)
    )
    assert (read.at, read.rank) == (5.5, 2)
    first, second, third = read.events
    assert isinstance(first, Stored)
    assert (first.block_hashes, first.parent_block_hash, first.block_size) == ([1, 2], 9, 16)
    assert first.session_id == "s"
    assert isinstance(second, Removed)
    assert second.block_hashes == [3]
    assert isinstance(third, Cleared)


def test_events_are_read_from_arrays_of_any_age() -> None:
    old = ["BlockStored", [1, 2], 9, [7] * 32, 16, None]
    newer = [*old, "CPU", None, None, 1]
    first, second, third = decode(batch(old, newer, ["BlockRemoved", [3]])).events
    assert isinstance(first, Stored)
    assert (first.block_hashes, first.parent_block_hash, first.block_size) == ([1, 2], 9, 16)
    assert isinstance(second, Stored)
    assert (second.medium, second.group_idx) == ("CPU", 1)
    assert isinstance(third, Removed)
    assert isinstance(decode(batch(["AllBlocksCleared"])).events[0], Cleared)


def test_every_field_of_vllm_0_32_is_taken() -> None:
    """As recorded; fields that are not needed have any shape."""
    more: dict[str, Any] = {"lora_id": None, "medium": "GPU", "extra_keys": [None, ["salt"]], "group_idx": 0}
    last = {"kv_cache_spec_kind": "full_attention", "locality": None, "ownership": None, "session_id": "s"}
    (event,) = decode(batch(stored(1, 2) | more | last)).events
    assert isinstance(event, Stored)
    assert (event.medium, event.session_id) == ("GPU", "s")


def test_a_known_event_that_cannot_be_read_is_refused() -> None:
    for event in ({"type": "BlockRemoved", "block_hashes": "x"}, ["BlockRemoved"]):
        with pytest.raises(ValueError, match="not a batch"):
            decode(batch(event))


def test_hashes_are_numbers_or_bytes() -> None:
    wide = bytes(range(32))
    (event,) = decode(batch(stored(2**64 - 1, wide, parent=wide))).events
    assert isinstance(event, Stored)
    assert event.block_hashes == [2**64 - 1, wide]
    assert event.parent_block_hash == wide


def test_a_batch_without_rank_is_one() -> None:
    assert decode(msgspec.msgpack.encode([1.0, [cleared()]])).rank is None


def test_events_of_later_releases_are_left_out_and_their_new_fields_ignored() -> None:
    read = decode(batch({"type": "BlockMoved", "x": 1}, ["BlockMoved", 1], removed(1, why="age"), 5))
    assert [type(event) for event in read.events] == [Removed]


@given(st.binary(max_size=64))
def test_noise_is_a_value_error_or_a_batch(noise: bytes) -> None:
    with suppress(ValueError):
        decode(noise)


def test_both_encodings_say_the_same() -> None:
    event = stored(1, parent=2)
    (one,), (other,) = decode(batch(event)).events, decode(batch(as_array(event))).events
    assert isinstance(one, Stored)
    assert isinstance(other, Stored)
    assert (one.block_hashes, one.parent_block_hash, one.block_size) == (
        other.block_hashes,
        other.parent_block_hash,
        other.block_size,
    )


def test_bytes_that_are_no_batch_are_refused() -> None:
    with pytest.raises(ValueError, match="not a batch"):
        decode(msgspec.msgpack.encode({"ts": 1}))
