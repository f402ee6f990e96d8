"""Laws of the division of `limits.memory_bytes`."""

from __future__ import annotations

from dataclasses import astuple

from hypothesis import given
from hypothesis import strategies as st

from gateway.config.memory import MemoryBounds
from gateway.config.settings import Batches, ReceiptSettings, RequestLimits, Settings, ToolEntry, ToolSettings

SIZES = st.integers(16 * 2**20, 2**40)


@given(SIZES, SIZES, SIZES, st.booleans(), st.booleans())
def test_the_bounds_are_the_setting_in_sum_and_none_is_nothing_where_it_is_needed(
    memory_bytes: int, incoming_bytes: int, receipt_bytes: int, has_tools: bool, has_batches: bool
) -> None:
    settings = Settings(
        limits=RequestLimits(memory_bytes=memory_bytes, incoming_bytes=incoming_bytes),
        receipts=ReceiptSettings(max_bytes=receipt_bytes),
        tools=ToolSettings(use=(ToolEntry(use="a:b"),) if has_tools else ()),
        batches=Batches(directory="d" if has_batches else None),
    )
    bounds = MemoryBounds.of(settings)
    assert sum(astuple(bounds)) == memory_bytes
    assert min(bounds.sessions, bounds.recognition) > memory_bytes / 8
    assert (bounds.hidden_results > 0) == has_tools
    assert (bounds.batch_lines > 0) == has_batches


def test_by_default_every_owner_has_what_its_own_key_says() -> None:
    settings = Settings(tools=ToolSettings(use=(ToolEntry(use="a:b"),)))
    bounds = MemoryBounds.of(settings)
    assert bounds.receipts == settings.receipts.max_bytes
    assert bounds.large_bodies == settings.limits.incoming_bytes
    assert (bounds.hidden_results, bounds.tool_results) == (
        settings.tools.hidden_bytes,
        settings.tools.cache_bytes,
    )
