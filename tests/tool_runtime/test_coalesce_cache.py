from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tool_runtime.coalesce import ENTRY_BYTES, ResultCache
from tool_runtime.types import Outcome, Status


def outcome(text: str) -> Outcome:
    return Outcome(Status.OK, text)


def test_an_entry_is_there_until_its_end() -> None:
    cache = ResultCache(10_000)
    cache.put(b"a", outcome("A"), ends_at=5.0)
    assert cache.get(b"a", 4.9) == outcome("A")
    assert cache.get(b"a", 5.0) is None
    assert cache.num_bytes == 0


def test_what_was_not_used_for_longest_goes_first() -> None:
    cache = ResultCache(3 * (ENTRY_BYTES + 100))
    for key in (b"a", b"b", b"c"):
        cache.put(key, outcome("x"), ends_at=9.0)
    cache.get(b"a", 0.0)
    cache.put(b"d", outcome("x" * 100), ends_at=9.0)
    assert [key for key in (b"a", b"b", b"c", b"d") if cache.get(key, 0.0)] == [b"a", b"c", b"d"]


def test_what_is_larger_than_the_cache_is_not_kept() -> None:
    cache = ResultCache(1_000)
    cache.put(b"a", outcome("x" * 2_000), ends_at=9.0)
    assert (cache.get(b"a", 0.0), cache.num_bytes) == (None, 0)


@given(
    st.lists(st.tuples(st.sampled_from([b"a", b"b", b"c"]), st.integers(0, 900), st.integers(0, 3)), max_size=30)
)
def test_the_bytes_are_those_of_the_entries_and_never_too_many(puts: list[tuple[bytes, int, int]]) -> None:
    cache, now = ResultCache(2_500), 0.0
    for key, size, ttl_s in puts:
        now += 1.0
        cache.put(key, outcome("x" * size), now + ttl_s)
        cache.get(b"b", now)
        assert cache.num_bytes <= 2_500
    for key in (b"a", b"b", b"c"):
        cache.get(key, now + 10.0)
    assert cache.num_bytes == 0
