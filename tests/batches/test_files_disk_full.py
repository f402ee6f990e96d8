"""A disk without room: an upload is refused with the reason, and a batch that waits for room says so."""

from __future__ import annotations

import asyncio
import errno
import logging
import sqlite3
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import IO, Any

import orjson
import pytest
from prometheus_client import CollectorRegistry

from gateway.access.keys import Keys
from gateway.batches import BatchOperation
from gateway.batches.api import Api
from gateway.batches.files import Blobs, Spool, is_disk_full
from gateway.batches.input_file import Endpoint, LineLimits, script_of
from gateway.batches.objects import Batch, File, Finished, Line
from gateway.batches.runner import BatchMetrics, Runner
from gateway.batches.sqlite import SqliteStore
from gateway.batches.store import StoreFailed
from gateway.dialects import BY_PATH
from gateway.request.inprocess import InProcessRequest, InProcessResponder
from tests.deadline import DEADLINE_S
from tests.path.faults import GATEWAY, fault

PATH = "/v1/chat/completions"
FORM = (
    b'--b\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
    b'--b\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n' + b"x" * 100_000 + b"\r\n--b--\r\n"
)


class FullSpool(Spool):
    def open(self) -> None:
        self._file: IO[bytes] | None = Path("/dev/full").open("wb")  # noqa: SIM115


class FullDisk(Blobs):
    """Its files can be opened, and take nothing."""

    is_full = True

    def make_spool(self, file_id: str) -> Spool:
        return FullSpool(file_id, self._directory) if self.is_full else super().make_spool(file_id)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(tmp_path)
    await store.open()
    yield store
    await store.close()


def runner_of(store: SqliteStore, blobs: Blobs) -> Runner:
    dialect = BY_PATH[PATH]

    async def answer(batch: Batch, line: Line, body: bytes) -> Finished:
        return Finished(True, b"{}")

    return Runner(
        store,
        blobs,
        lambda batch: Endpoint(PATH, dialect.check, partial(script_of, dialect), lambda model: None),
        answer,
        BatchMetrics(CollectorRegistry(), lambda: 0, lambda: 0),
        lambda: 1_000.0,
        lambda: LineLimits(10**6, 10**4),
        8,
        again_s=0.01,
    )


def api_of(store: SqliteStore, blobs: Blobs, runner: Runner) -> Api:
    return Api(Keys({}), store, blobs, runner.work_on, 10**6, lambda: 1_000.0, runner.problems.get)


async def asked(api: Api, operation: BatchOperation, *ids: str, body: bytes = b"", kind: str = "") -> Any:
    responder = InProcessResponder()
    request = InProcessRequest("/v1/files", [("content-type", kind or "application/json")], body)
    await api.handle(operation, ids, request, responder)
    return responder.status, orjson.loads(responder.body)


@fault(GATEWAY, "its disk has no room: an upload", "507 with the reason; nothing of it stays")
async def test_an_upload_to_a_full_disk_is_refused_with_the_reason_and_leaves_nothing(
    store: SqliteStore, tmp_path: Path
) -> None:
    blobs = FullDisk(tmp_path / "files")
    await blobs.prepare()
    api = api_of(store, blobs, runner_of(store, blobs))
    status, told = await asked(api, BatchOperation.UPLOAD_FILE, body=FORM, kind="multipart/form-data; boundary=b")
    assert (status, told["error"]["code"]) == (507, "insufficient_storage")
    assert "batches.directory" in told["error"]["message"]
    assert list((tmp_path / "files").iterdir()) == []
    assert blobs._being_written == set()


@fault(
    GATEWAY,
    "its disk has no room: a batch",
    "it waits, its `errors` say why, and it goes on once there is room",
    "turngate_batch_lines_total",
)
async def test_a_batch_that_waits_for_room_says_so_and_goes_on(
    store: SqliteStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    blobs = FullDisk(tmp_path / "files")
    await blobs.prepare()
    line = orjson.dumps({"custom_id": "a", "method": "POST", "url": PATH, "body": {"model": "m", "messages": []}})
    (tmp_path / "files" / "file-in").write_bytes(line)
    await store.add_file(
        File(id="file-in", tenant="default", purpose="batch", filename="a", size_bytes=1, created_at=1)
    )
    runner = runner_of(store, blobs)
    api = api_of(store, blobs, runner)
    wanted = {"input_file_id": "file-in", "endpoint": PATH, "completion_window": "24h"}
    with caplog.at_level(logging.WARNING):
        _, batch = await asked(api, BatchOperation.CREATE_BATCH, body=orjson.dumps(wanted))

        async def until(is_so: Any) -> Any:
            async with asyncio.timeout(DEADLINE_S):
                while not is_so(shown := (await asked(api, BatchOperation.SHOW_BATCH, batch["id"]))[1]):
                    await asyncio.sleep(0.01)
                return shown

        waiting = await until(lambda shown: shown["errors"])
        assert waiting["status"] == "finalizing"
        assert [fault["code"] for fault in waiting["errors"]["data"]] == ["insufficient_storage"]
        listed = (await asked(api, BatchOperation.LIST_BATCHES))[1]["data"]
        assert listed[0]["errors"] == waiting["errors"]
        blobs.is_full = False
        done = await until(lambda shown: shown["status"] == "completed")
    assert done["errors"] is None
    assert all(record.exc_info is None for record in caplog.records)
    await runner.stop()


def test_full_disks_are_known_by_every_word_for_them() -> None:
    full = sqlite3.connect(":memory:")
    full.execute("PRAGMA max_page_count=1")
    with pytest.raises(sqlite3.Error) as told:
        full.execute("CREATE TABLE a (b)")
    full.close()
    caused = StoreFailed("no")
    caused.__cause__ = OSError(errno.EDQUOT, "")
    for error in (OSError(errno.ENOSPC, ""), told.value, caused, ExceptionGroup("", [OSError(errno.ENOSPC, "")])):
        assert is_disk_full(error)
    for other in (OSError(errno.EIO, ""), sqlite3.OperationalError("locked"), ValueError()):
        assert not is_disk_full(other)
