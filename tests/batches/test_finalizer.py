from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import orjson
import pytest

from gateway.batches.files import Blobs
from gateway.batches.finalizer import Finalizer, finished_line
from gateway.batches.objects import Batch, Finished, Status
from gateway.batches.sqlite import SqliteStore
from gateway.batches.store import ListPage
from gateway.request.inprocess import InProcessResponder
from tests.batches.test_store import LINES, batch


class Cut(Exception):
    pass


class CutStore(SqliteStore):
    """Fails at its call of a given number, as a process that is killed there would."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.calls_left = 1_000

    async def _rows(self, query: str, *values: Any) -> list[Any]:
        self.calls_left -= 1
        if self.calls_left < 0:
            raise Cut
        return await super()._rows(query, *values)


async def finalizing(store: SqliteStore, num_finished: int) -> Batch:
    await store.add_batch(batch())
    await store.begin_batch("batch_1", LINES, "m", 1)
    for line in LINES[:num_finished]:
        text = orjson.dumps({"custom_id": line.custom_id})
        await store.finish("batch_1", line, Finished(line.number != 1, text))
    return await store.move("batch_1", Status.FINALIZING, 2)


@pytest.mark.parametrize(("num_finished", "status"), [(len(LINES), Status.COMPLETED), (4, Status.EXPIRED)])
async def test_finalizing_can_be_cut_anywhere_and_begun_again(
    tmp_path: Path, num_finished: int, status: Status
) -> None:
    store, blobs = CutStore(tmp_path), Blobs(tmp_path / "files")
    await store.open()
    await blobs.prepare()
    ready = await finalizing(store, num_finished)
    finalizer, closed = Finalizer(store, blobs), None
    for num_calls in range(20):
        store.calls_left = num_calls
        try:
            closed = await finalizer.close(ready, 3)
            break
        except Cut:
            store.calls_left = 1_000
            assert await store.batch("t", "batch_1") == ready
            assert await store.files("t", None, ListPage(10)) == []
    store.calls_left = 1_000
    assert closed is not None
    assert closed.status is status
    await blobs.keep_only(store.content_in_use)
    contents = {path.name: path.read_bytes().splitlines() for path in (tmp_path / "files").iterdir()}
    assert set(contents) == {closed.output_file_id, closed.error_file_id}
    found = [orjson.loads(line)["custom_id"] for lines in contents.values() for line in lines]
    assert sorted(found) == sorted(line.custom_id for line in LINES)
    await store.close()


async def test_files_without_lines_are_not_made(tmp_path: Path) -> None:
    store, blobs = SqliteStore(tmp_path), Blobs(tmp_path / "files")
    await store.open()
    await blobs.prepare()
    await store.add_batch(batch())
    cancelling = await store.move("batch_1", Status.CANCELLING, 1)
    closed = await Finalizer(store, blobs).close(cancelling, 2)
    assert (closed.status, closed.output_file_id, closed.error_file_id) == (Status.CANCELLED, None, None)
    assert await asyncio.to_thread(lambda: list((tmp_path / "files").iterdir())) == []
    await store.close()


class LateStore(SqliteStore):
    """One line is finished by somebody else while its batch is being closed: after the open lines were read, and
    before or behind the place in the results that is read then."""

    async def finished(self, batch_id: str, is_ok: bool, after: int, limit: int) -> list[tuple[int, bytes]]:
        if is_ok and after < 0:
            await self.finish(batch_id, LINES[5], Finished(True, b'{"custom_id":"c5"}'))
        page = await super().finished(batch_id, is_ok, after, limit)
        if is_ok and after < 0:
            await self.finish(batch_id, LINES[0], Finished(True, b'{"custom_id":"c0"}'))
            await self.finish(batch_id, LINES[2], Finished(False, b'{"custom_id":"c2"}'))
        return page


async def test_both_files_are_in_input_order_and_each_line_is_in_one_whatever_happens_meanwhile(
    tmp_path: Path,
) -> None:
    store, blobs = LateStore(tmp_path), Blobs(tmp_path / "files")
    await store.open()
    await blobs.prepare()
    await store.add_batch(batch())
    await store.begin_batch("batch_1", LINES, "m", 1)
    await store.finish("batch_1", LINES[3], Finished(False, b'{"custom_id":"c3"}'))
    cancelling = await store.move("batch_1", Status.CANCELLING, 2)
    closed = await Finalizer(store, blobs).close(cancelling, 3)

    def ids(file_id: str | None) -> list[str]:
        assert file_id is not None
        return [orjson.loads(line)["custom_id"] for line in blobs.path(file_id).read_bytes().splitlines()]

    assert ids(closed.output_file_id) == ["c5"]
    assert ids(closed.error_file_id) == ["c0", "c1", "c2", "c3", "c4"]
    await store.close()


@pytest.mark.parametrize("depth", [251, 252, 253, 254, 255, 1_000])
def test_an_answer_as_deep_as_any_is_a_row(depth: int) -> None:
    reply = InProcessResponder()
    reply.status, reply.body = 200, b'{"a":' * depth + b"1" + b"}" * depth
    row = orjson.loads(finished_line("a", reply).text)
    assert row["response"]["status_code"] == 200
    assert row["custom_id"] == "a"
