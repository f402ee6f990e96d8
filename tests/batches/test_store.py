"""Every store against a model of it in a few dicts, over random histories that are cut by restarts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.batches.objects import (
    LIVE,
    NEXT,
    Batch,
    File,
    Finished,
    Line,
    LineFault,
    NotAllowed,
    Spent,
    Status,
    new_id,
)
from gateway.batches.redis import RedisStore
from gateway.batches.sqlite import CannotOpen, SqliteStore
from gateway.batches.store import ListPage, Store
from tests.valkey import valkey as valkey
from tests.valkey import valkey_server as valkey_server

NUM_LINES = 6
LINES = [Line(n, 10 * n, 10, f"c{n}", bytes([n % 2])) for n in range(NUM_LINES)]


def batch(batch_id: str = "batch_1", tenant: str = "t") -> Batch:
    return Batch(
        id=batch_id,
        tenant=tenant,
        endpoint="/v1/chat/completions",
        input_file_id="file-in",
        completion_window="24h",
        created_at=100,
        expires_at=200,
        metadata={"a": "b"},
    )


def file(file_id: str, tenant: str = "t", purpose: str = "batch", expires_at: int | None = None) -> File:
    return File(
        id=file_id, tenant=tenant, purpose=purpose, filename="x", size_bytes=1, created_at=1, expires_at=expires_at
    )


Open = Callable[[], Awaitable[Store]]


@pytest.fixture(params=["sqlite", "redis"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    """Opens a store on what it kept before."""
    url = request.getfixturevalue("valkey") if request.param == "redis" else ""

    async def opened() -> Store:
        store = RedisStore(url) if url else SqliteStore(tmp_path)
        await store.open()
        return store

    return opened


@pytest.fixture
async def store(opened: Open) -> AsyncIterator[Store]:
    store = await opened()
    yield store
    await store.close()


STEPS: st.SearchStrategy[list[tuple[str, Status | int]]] = st.lists(
    st.one_of(
        st.tuples(st.just("move"), st.sampled_from(Status)),
        st.tuples(st.just("finish"), st.integers(0, NUM_LINES - 1)),
        st.tuples(st.just("restart"), st.just(0)),
    ),
    max_size=25,
)


@given(STEPS)
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_batch_makes_allowed_moves_only_and_each_line_is_finished_once(
    opened: Open, steps: list[tuple[str, Status | int]]
) -> None:
    asyncio.run(follow(opened, new_id("batch_"), steps))


async def follow(opened: Open, batch_id: str, steps: list[tuple[str, Status | int]]) -> None:
    store = await opened()
    await store.add_batch(batch(batch_id))
    status, finished, is_open = Status.VALIDATING, set[int](), set[int]()
    for what, value in steps:
        if what == "restart":
            await store.close()
            store = await opened()
        elif what == "finish":
            number = int(value)
            done = Finished(number % 3 > 0, b"%d" % number, Spent(1, 0, 2))
            assert await store.finish(batch_id, LINES[number], done) == (number in is_open)
            finished |= {number} & is_open
            is_open.discard(number)
        else:
            target = Status(str(value))
            moved = await moves(store, batch_id, target)
            assert moved == (target in NEXT[status])
            if moved:
                status = target
                is_open = set(range(NUM_LINES)) if status is Status.IN_PROGRESS else is_open
                is_open = is_open if status in LIVE else set()
        kept = await store.batch("t", batch_id)
        assert kept is not None
        assert kept.status is status
        assert (kept.completed, kept.failed) == (
            sum(n % 3 > 0 for n in finished),
            sum(n % 3 == 0 for n in finished),
        )
        assert kept.spent == Spent(len(finished), 0, 2 * len(finished))
        lines = await store.open_lines(batch_id, None, 100)
        assert [line.number for line in lines] == sorted(is_open, key=lambda n: (n % 2, n))
        assert (batch_id in {live.id for live in await store.live_batches()}) == (status in LIVE)
    await store.close()


async def moves(store: Store, batch_id: str, status: Status) -> bool:
    try:
        if status is Status.IN_PROGRESS:
            await store.begin_batch(batch_id, LINES, "m", 5)
        elif status in LIVE or status is Status.FAILED:
            await store.move(batch_id, status, 5, errors=(LineFault("c", "m", None, 1),))
        else:
            await store.close_batch(batch_id, status, 5, None, file(f"file-err-{batch_id}"))
    except NotAllowed:
        return False
    return True


async def test_a_batch_is_read_as_it_was_stored(store: Store) -> None:
    await store.add_batch(batch())
    fault = LineFault("duplicate_custom_id", "twice", "custom_id", 7)
    failed = await store.move("batch_1", Status.FAILED, 123, errors=(fault,))
    assert await store.batch("t", "batch_1") == failed
    shown = failed.as_json()
    assert shown["failed_at"] == 123
    assert shown["errors"] == {"object": "list", "data": [fault.as_json()]}


async def test_lists_show_a_tenants_own_newest_first_page_by_page(store: Store) -> None:
    for n in range(5):
        await store.add_batch(batch(f"batch_{n}", "t" if n != 3 else "other"))
        await store.add_file(file(f"file-{n}", "t", "batch" if n % 2 else "evals"))

    async def ids(page: ListPage) -> list[str]:
        return [row.id for row in await store.batches("t", page)]

    assert await ids(ListPage(2)) == ["batch_4", "batch_2", "batch_1"]
    assert await ids(ListPage(2, after="batch_2")) == ["batch_1", "batch_0"]
    assert await ids(ListPage(2, after="batch_3")) == []
    assert await store.batch("other", "batch_0") is None
    found = await store.files("t", "evals", ListPage(10, "file-0", is_ascending=True))
    assert [row.id for row in found] == ["file-2", "file-4"]


async def test_content_is_in_use_while_a_file_or_a_live_batch_names_it(store: Store) -> None:
    await store.add_file(file("file-in", expires_at=50))
    await store.add_batch(batch())
    await store.remove_expired_files(50)
    assert await store.file("t", "file-in") is None
    assert await store.content_in_use() == {"file-in"}
    await store.move("batch_1", Status.FAILED, 1)
    assert await store.content_in_use() == set()


async def test_a_transcript_keeps_what_stood_first_and_goes_with_its_line(store: Store) -> None:
    await store.add_batch(batch())
    await store.begin_batch("batch_1", LINES, None, 1)
    await store.append("batch_1", LINES[2], 0, b"first")
    await store.append("batch_1", LINES[2], 0, b"again")
    await store.append("batch_1", LINES[2], 2, b"third")
    assert await store.transcript("batch_1", LINES[2]) == [(0, b"first"), (2, b"third")]
    await store.finish("batch_1", LINES[2], Finished(True, b""))
    assert await store.transcript("batch_1", LINES[2]) == []


async def test_a_job_that_fails_leaves_no_trace_and_its_neighbours_stand(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path)
    await store.open()
    await store.add_file(file("file-1"))
    again, other = await asyncio.gather(
        store.add_file(file("file-1")), store.add_file(file("file-2")), return_exceptions=True
    )
    assert isinstance(again, Exception)
    assert other is None
    assert {row.id for row in await store.files("t", None, ListPage(9))} == {"file-1", "file-2"}
    await store.close()


async def test_two_processes_do_not_work_on_one_directory(tmp_path: Path) -> None:
    first = SqliteStore(tmp_path)
    await first.open()
    second = SqliteStore(tmp_path)
    with pytest.raises(CannotOpen, match="another gateway"):
        await second.open()
    await second.close()
    await first.close()
