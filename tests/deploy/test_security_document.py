"""The threat model names its guards, and each of them is a test that exists."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from gateway.config.settings import Settings

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "security.md").read_text()


def test_every_guard_that_the_threat_model_names_exists() -> None:
    named = set(re.findall(r"`(test_\w+)`", TEXT))
    written = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    assert len(named) > 30
    assert {name for name in named if f"def {name}(" not in written} == set()


def test_every_threat_has_a_guard() -> None:
    rows = [line for line in TEXT.partition("| guarded by |")[2].splitlines() if line.startswith("| ")]
    assert len(rows) > 20
    assert [row for row in rows if "`test_" not in row.rsplit("|", 2)[1]] == []


def test_the_example_is_a_valid_configuration() -> None:
    [example] = re.findall(r"```yaml\n(.*?)```", TEXT, re.DOTALL)
    Settings.model_validate(yaml.safe_load(example.replace("c4d1...", "0" * 64)))
