"""Writes docs/faults.md from a run of the tests that are its rows.

    python -m tests.path.fault_table

A row is written only if all its tests passed. `test_fault_table.py` holds the file against the tests.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
DOCUMENT = ROOT / "docs" / "faults.md"
TESTS = [
    *sorted(str(path) for path in (ROOT / "tests" / "path").glob("test_faults*.py")),
    *(
        str(ROOT / "tests" / "path" / f"test_{name}.py")
        for name in ("security_engines", "limits", "security_bodies")
    ),
    str(ROOT / "tests" / "batches" / "test_files_disk_full.py"),
    str(ROOT / "tests" / "path" / "test_drain.py"),
    str(ROOT / "tests" / "engines" / "test_monitor.py"),
    str(ROOT / "tests" / "engines" / "test_monitor_faults.py"),
]
HEAD = """\
# Faults and their outcomes

Written by `python -m tests.path.fault_table` from the tests that are its rows. Each runs over the default
transport, and over both where its law depends on the transport.

A fault before the first byte of an answer is hidden from the client (unseen) while another replica is left. If
the client has had keep-alives, it is hidden as long as a replica may come back. A fault after the first byte
resets the connection, since every client takes a clean end for a whole answer.
"""
TITLES = {"engine": "Engines", "client": "Clients", "gateway": "The gateway itself"}


@dataclass(frozen=True, slots=True)
class Row:
    whose: str
    what: str
    outcome: str
    metrics: tuple[str, ...]


@dataclass(eq=False)
class Rows:
    """A plugin of pytest that collects the rows, and which of them passed."""

    rows: dict[str, Row] = field(default_factory=dict)
    """By name of the test's function."""
    failed: set[str] = field(default_factory=set)

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        for item in items:
            marker = item.get_closest_marker("fault")
            if marker is not None:
                name = item.name.partition("[")[0]
                self.rows[name] = Row(**marker.kwargs)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed.add(report.location[2].partition("[")[0])


def text(rows: Iterable[Row]) -> str:
    lines, ordered = [HEAD], list(rows)
    for whose, title in TITLES.items():
        lines += [f"## {title}", "", "| fault | outcome | counted in |", "|---|---|---|"]
        for row in ordered:
            if row.whose == whose:
                lines.append(f"| {row.what} | {row.outcome} | {', '.join(f'`{m}`' for m in row.metrics)} |")
        lines.append("")
    return "\n".join(lines)


def collected() -> Iterator[Row]:
    """All rows, without running them."""
    for path in map(Path, TESTS):
        module = import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))
        for name, test in vars(module).items():
            if name.startswith("test_"):
                for marker in getattr(test, "pytestmark", ()):
                    if marker.name == "fault":
                        yield Row(**marker.kwargs)


def main() -> int:
    rows = Rows()
    status = pytest.main(["-q", "-p", "no:cacheprovider", *TESTS], plugins=[rows])
    DOCUMENT.write_text(text(row for name, row in rows.rows.items() if name not in rows.failed), encoding="utf-8")
    return int(status)


if __name__ == "__main__":
    sys.exit(main())
