"""Laws of the file of what was learned: it comes back whole or not at all, and holds no content."""

from __future__ import annotations

import logging
import stat
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pytest

from gateway.request import learned
from gateway.request.learned import MOST_AGE_S, MOST_RESIDENT_AGE_S, LearnedFile
from policies.admission import Limits
from policies.scheduler import Scheduler
from policies.turns import Turns
from policies.types import FamiliesRecalled, ReplicaReported
from tests.policies.test_lessons import REPORT, left_with_residents, taught

NOW = 1_800_000_000.0


@pytest.fixture(autouse=True)
def _warnings(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)


def a_file(path: Path, scheduler: Scheduler | None = None, at: float = NOW, families: bool = True) -> LearnedFile:
    return LearnedFile(path, scheduler or Scheduler(Turns(), Limits()), lambda: at, families)


async def written(path: Path, kind: str = "vllm") -> Scheduler:
    """A Scheduler that has learned, and wrote that into the file."""
    scheduler = taught()
    file = a_file(path, scheduler)
    file.completed(REPORT, kind)
    await file.write()
    return scheduler


def read(path: Path, at: float = NOW, kind: str = "vllm") -> tuple[FamiliesRecalled, ReplicaReported]:
    """What a gateway gets of it, as its families and in the first report of the replica."""
    file = a_file(path, at=at)
    return file.read(), file.completed(REPORT, kind)


async def test_what_was_learned_comes_back_as_it_was(tmp_path: Path) -> None:
    scheduler = await written(tmp_path / "learned")
    families, reported = read(tmp_path / "learned")
    assert families == FamiliesRecalled(tuple(scheduler.family_lessons()))
    assert [reported.lessons] == list(scheduler.pool_lessons())


async def test_only_the_first_report_of_a_replica_gets_lessons(tmp_path: Path) -> None:
    await written(tmp_path / "learned")
    file = a_file(tmp_path / "learned")
    file.read()
    assert file.completed(replace(REPORT, models=None), "vllm").lessons is None  # it may be another engine
    assert [file.completed(REPORT, "vllm").lessons is None for _ in range(2)] == [False, True]


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        pytest.param(b"turngate-learned 1", b"turngate-learned 2", "another version wrote it", id="version"),
        pytest.param(b"turngate-learned", b"something", "it is damaged", id="another file"),
        pytest.param(b'"ended"', b'"endad"', "it is damaged", id="a byte"),
        pytest.param(b"}", b"", "it is damaged", id="its end"),
    ],
)
async def test_a_file_that_cannot_be_used_counts_as_none_and_says_why_in_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, old: bytes, new: bytes, problem: str
) -> None:
    path = tmp_path / "learned"
    await written(path)
    text = path.read_bytes()
    assert old in text
    path.write_bytes(new.join(text.rsplit(old, 1)))
    assert read(path) == (FamiliesRecalled(()), REPORT)
    assert [record.message for record in caplog.records] == [
        f"what was learned before is not used: {path}: {problem}"
    ]


async def test_an_empty_file_and_one_that_is_too_old_are_not_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "learned"
    await written(path)
    assert read(path, at=NOW + MOST_AGE_S)[1].lessons is not None
    assert read(path, at=NOW + MOST_AGE_S + 1) == (FamiliesRecalled(()), REPORT)
    path.write_bytes(b"")
    assert read(path) == (FamiliesRecalled(()), REPORT)
    assert [record.message.rpartition(": ")[2] for record in caplog.records] == [
        "it is 7 days old",
        "it is damaged",
    ]


def test_a_first_start_says_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert read(tmp_path / "learned") == (FamiliesRecalled(()), REPORT)
    assert not caplog.records


@pytest.mark.parametrize(
    ("report", "kind"),
    [(replace(REPORT, models=frozenset({"other"})), "vllm"), (REPORT, "sglang")],
    ids=["model", "engine"],
)
async def test_another_model_or_engine_behind_a_name_gets_no_lessons(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, report: ReplicaReported, kind: str
) -> None:
    await written(tmp_path / "learned")
    file = a_file(tmp_path / "learned")
    file.read()
    assert [file.completed(report, kind) for _ in range(2)] == [report, report]
    assert [record.message for record in caplog.records] == [
        "what was learned of r is not used: it was vllm with m"
    ]


async def test_replicas_that_are_not_up_yet_stay_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "learned"
    await written(path)
    before, file = read(path), a_file(path)
    file._scheduler.tell(file.read(), 0.0)
    await file.write()
    assert read(path) == before


async def test_it_is_replaced_as_a_whole_and_only_after_something_was_learned(tmp_path: Path) -> None:
    path = tmp_path / "learned"
    scheduler = taught()
    file = a_file(path, scheduler)
    file.completed(REPORT, "vllm")
    await file.write()
    first = path.stat()
    assert stat.S_IMODE(first.st_mode) == 0o600
    await file.write()
    assert path.stat().st_ino == first.st_ino
    scheduler._fleet.pools["r"].ratio.saw(1_000, 300)
    await file.write()
    assert path.stat().st_ino != first.st_ino
    assert [each.name for each in tmp_path.iterdir()] == ["learned"]


async def test_a_disk_that_fails_is_reported_once_and_tried_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    scheduler = taught()
    file = a_file(tmp_path / "gone" / "learned", scheduler)
    file.completed(REPORT, "vllm")
    for _ in range(2):
        await file.write()
    assert [record.levelno for record in caplog.records] == [logging.ERROR]
    (tmp_path / "gone").mkdir()
    await file.write()
    assert read(tmp_path / "gone" / "learned")[1].lessons is not None


async def test_it_is_bounded_in_bytes(tmp_path: Path) -> None:
    path = tmp_path / "learned"
    with patch.object(learned, "MOST_BYTES", 1_500):
        scheduler = await written(path)
        assert path.stat().st_size < 3_200
    (lessons,) = scheduler.family_lessons()
    scheduler.tell(FamiliesRecalled(tuple(replace(lessons, id=f"f{n}") for n in range(9_000))), 0.0)
    file = a_file(path, scheduler)
    file.completed(REPORT, "vllm")
    await file.write()
    assert 400_000 < path.stat().st_size < 2 * learned.MOST_BYTES
    assert 100 < len(read(path)[0].families) < 9_000


async def test_families_are_kept_only_where_their_ids_last(tmp_path: Path) -> None:
    path = tmp_path / "learned"
    file = a_file(path, taught(), families=False)
    file.completed(REPORT, "vllm")
    await file.write()
    families, reported = read(path)
    assert families == FamiliesRecalled(())
    assert reported.lessons is not None
    await written(path)
    assert a_file(path, families=False).read() == FamiliesRecalled(())


async def test_residents_are_read_last_and_count_for_half_a_minute_where_ids_of_families_last(
    tmp_path: Path,
) -> None:
    path, scheduler = tmp_path / "learned", left_with_residents()
    file = a_file(path, scheduler)
    file.completed(REPORT, "vllm")
    await file.write()
    for age_s, families, num in ((0.0, True, 1), (MOST_RESIDENT_AGE_S, True, 1), (31.0, True, 0), (0.0, False, 0)):
        after = a_file(path, at=NOW + age_s, families=families)
        after.read()
        assert list(after.residents()) == []  # its replica may be another engine
        lessons = after.completed(REPORT, "vllm").lessons
        assert lessons is not None
        assert lessons.residents == ()
        assert len(list(after.residents())) == num
