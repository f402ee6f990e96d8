"""Laws of a fleet's result file: a run goes on from it."""

from pathlib import Path

from benchmarks.fleet import report
from benchmarks.fleet.cells import Cell, FleetFigures
from benchmarks.results import write

FIGURES = FleetFigures(5.0, 4.0, 4.0, 4.5, 5.0, 1.0, 0.5, 900, 800, 2_500, 0, 0, 1.0, 1.0, 9.0, 2.0, {"a": 4.0})


def test_cells_come_back_from_the_result_file_as_they_were(tmp_path: Path) -> None:
    cells = {
        (arm, seed): Cell(arm, seed, 0.5, 0.01, FIGURES, [[0.0, 5.0]], ["answered 500"], "digest")
        for arm in ("turns", "straight")
        for seed in (2, 1)
    }
    write(tmp_path, "cells", report.table(cells, "One cell at a time."), report.data_of(cells))
    assert report.load(tmp_path / "cells.json") == cells
    assert list(report.by_arm(cells)) == ["straight", "turns"]
    assert report.load(tmp_path / "none.json") == {}
