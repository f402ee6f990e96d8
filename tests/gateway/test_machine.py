"""Laws of what doctor says of the machine."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gateway.cli import machine
from gateway.cli.machine import Machine
from gateway.config.settings import Settings

GOOD = Machine("3.13.1", 65_536, 1_048_576, (), 2**40)
KEY = {"key": "env:A"}


def problems(found: Machine, skews_s: dict[str, float | None] | None = None, **sections: Any) -> list[str]:
    settings = Settings.model_validate(sections)
    return [f"{each.problem}; {each.remedy}" for each in machine.advice(found, settings, skews_s or {})]


def test_a_machine_that_allows_all_gets_no_advice() -> None:
    assert problems(GOOD, {"e1": 0.0, "e2": None, "e3": -2.0}) == []
    assert problems(replace(GOOD, open_files=-1)) == []


def test_open_files_are_held_against_what_may_wait() -> None:
    (found,) = problems(replace(GOOD, open_files=1_024))
    assert found.startswith("1,024 open files serve 384 clients at once, and limits.queue_turns lets 10,000 wait")
    assert "LimitNOFILE=20256" in found
    assert problems(replace(GOOD, open_files=1_024), limits={"queue_turns": 384}) == []


@pytest.mark.parametrize(("skew_s", "side"), [(61.0, "61 s ahead of"), (-3.4, "3 s behind")])
def test_a_wrong_clock_is_told_with_its_side(skew_s: float, side: str) -> None:
    (found,) = problems(GOOD, {"e1": skew_s})
    assert f"the clock of e1 is {side} ours" in found
    assert "NTP" in found


def test_a_full_disk_counts_where_batches_are_kept() -> None:
    (found,) = problems(replace(GOOD, free_bytes=2**20), batches={"directory": "/var/lib/turngate"})
    assert "1 MiB are free where batches are kept (/var/lib/turngate)" in found


def test_an_open_port_is_pointed_out() -> None:
    (found,) = problems(GOOD, listen={"host": "0.0.0.0", "open": True})
    assert "whoever reaches this port may use the engines" in found
    assert problems(GOOD, listen={"host": "0.0.0.0", "open": True}, keys=[KEY]) == []


def test_a_missing_extra_names_its_command() -> None:
    assert problems(replace(GOOD, missing_extras=("fast",))) == [
        "it runs without the faster transport; pip install 'turngate[fast]'"
    ]


def test_this_machine_can_be_looked_at(tmp_path: Path) -> None:
    found = machine.found(Settings.model_validate({"batches": {"directory": str(tmp_path / "not" / "there")}}))
    assert found.open_files == -1 or found.open_files > 0
    assert found.free_bytes is not None
    assert "open files" in machine.as_text(found, Settings(), {})
