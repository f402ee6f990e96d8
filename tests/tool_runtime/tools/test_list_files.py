from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.tool_runtime.tools.calls import called
from tool_runtime.tools import list_files
from tool_runtime.types import Status


async def test_a_directory_is_listed_without_its_links(docs: Path) -> None:
    tool = list_files.build({"roots": {"docs": str(docs)}})
    listed = [
        (await called(tool, **arguments)).text for arguments in ({}, {"path": "docs"}, {"path": "docs/folder"})
    ]
    assert listed == ["docs/", "file  60\nfolder/", "The directory is empty."]


async def test_a_long_directory_is_cut(docs: Path) -> None:
    for number in range(9):
        (docs / "folder" / str(number)).touch()
    tool = list_files.build({"roots": {"docs": str(docs)}, "max_entries": 5})
    lines = (await called(tool, path="docs/folder")).text.split("\n")
    assert (len(lines), lines[-1]) == (6, "[only 5 entries are shown]")


@pytest.mark.parametrize("path", ["docs/way", "docs/..", "/", "/etc", "other"])
async def test_a_directory_outside_is_not_listed(docs: Path, path: str) -> None:
    result = await called(list_files.build({"roots": {"docs": str(docs)}}), path=path)
    assert "secret" not in result.text
    assert result.status in (Status.REFUSED, Status.OK)
    assert result.status is Status.REFUSED or result.text == "docs/"


@pytest.mark.parametrize("given", [{}, {"roots": {"docs": "/no/such/place"}}, {"root": {}}])
def test_wrong_settings_are_reported(given: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="root"):
        list_files.build(given)
