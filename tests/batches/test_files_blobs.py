from __future__ import annotations

from pathlib import Path

import pytest

from gateway.batches.files import CHUNK_BYTES, Blobs


@pytest.fixture
async def blobs(tmp_path: Path) -> Blobs:
    blobs = Blobs(tmp_path)
    await blobs.prepare()
    return blobs


async def nothing() -> set[str]:
    return set()


async def test_a_content_exists_once_it_is_kept(blobs: Blobs) -> None:
    data = bytes(range(256)) * (CHUNK_BYTES // 100)
    async with blobs.new() as spool:
        for start in range(0, len(data), 1000):
            await spool.write(data[start : start + 1000])
        assert not blobs.path(spool.file_id).exists()
        await spool.keep()
    assert b"".join([chunk async for chunk in blobs.chunks(spool.file_id)]) == data
    assert spool.size_bytes == len(data)


async def test_a_content_that_is_not_kept_leaves_nothing(blobs: Blobs, tmp_path: Path) -> None:
    async with blobs.new() as spool:
        await spool.write(b"x" * 2 * CHUNK_BYTES)
        assert list(tmp_path.iterdir())
    assert list(tmp_path.iterdir()) == []


async def test_a_sweep_spares_contents_that_are_written_or_announced_meanwhile(blobs: Blobs) -> None:
    async with blobs.new() as old:
        await old.keep()
    async with blobs.new() as open_, blobs.new() as kept:
        await kept.keep()
        await blobs.keep_only(nothing)
        await open_.keep()

        async def announces() -> set[str]:
            return {kept.file_id, open_.file_id}

    await blobs.keep_only(announces)
    assert not blobs.path(old.file_id).exists()
    assert all(blobs.path(spool.file_id).exists() for spool in (open_, kept))


async def test_half_written_contents_of_a_killed_process_are_removed_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "file-1.part").write_bytes(b"half")
    (tmp_path / "file-2").write_bytes(b"whole")
    await Blobs(tmp_path).prepare()
    assert [path.name for path in tmp_path.iterdir()] == ["file-2"]


async def test_contents_that_another_gateway_may_be_writing_are_left_alone(tmp_path: Path) -> None:
    for name in ("file-new", "file-of-another.part"):
        (tmp_path / name).touch()
    now = [(tmp_path / "file-new").stat().st_mtime]
    blobs = Blobs(tmp_path, grace_s=100, now=lambda: now[0])
    await blobs.prepare()
    await blobs.keep_only(nothing)
    assert len(list(tmp_path.iterdir())) == 2
    now[0] += 200
    await blobs.keep_only(nothing)
    assert list(tmp_path.iterdir()) == []
