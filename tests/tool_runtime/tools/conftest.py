"""A directory for the tests of tools that read files."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def docs(tmp_path: Path) -> Path:
    directory = tmp_path / "docs"
    directory.mkdir()
    (tmp_path / "secret").write_text("secret")
    (directory / "way").symlink_to("..")
    (directory / "file").write_text("äöü" * 10)
    (directory / "folder").mkdir()
    return directory
