from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.tool_runtime.tools.calls import called
from tool_runtime.tools import read_file
from tool_runtime.types import Status


@pytest.mark.parametrize("path", ["../secret", "/etc/passwd", "docs/../secret", "docs/way/secret", "secret", ""])
async def test_a_path_that_leaves_its_root_is_refused(docs: Path, path: str) -> None:
    result = await called(read_file.build({"roots": {"docs": str(docs)}}), path=path)
    assert (result.status, str(docs.parent) in result.text) == (Status.REFUSED, False)


async def test_a_file_is_read_in_parts_that_cut_no_character(docs: Path) -> None:
    tool = read_file.build({"roots": {"docs": str(docs)}, "max_bytes": 25})
    parts = []
    offset = 0
    while True:
        text = (await called(tool, path="docs/file", offset=offset)).text
        part, _, rest = text.partition("\n[")
        parts.append(part)
        if not rest:
            break
        offset = int(rest.rpartition(" ")[2].rstrip("]"))
    assert ("".join(parts), len(parts)) == ("äöü" * 10, 3)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(offset=st.integers(0, 10**30))
async def test_any_offset_gives_a_part_or_nothing(docs: Path, offset: int) -> None:
    result = await called(read_file.build({"roots": {"docs": str(docs)}}), path="docs/file", offset=offset)
    assert result.status is Status.OK


async def test_a_file_that_is_no_text_is_an_error(docs: Path) -> None:
    (docs / "picture").write_bytes(b"\x89PNG\0")
    result = await called(read_file.build({"roots": {"docs": str(docs)}}), path="docs/picture")
    assert (result.status, "no text" in result.text) == (Status.ERROR, True)


@pytest.mark.parametrize("options", [{}, {"roots": {"docs": "/no/such/place"}}, {"root": {}}])
def test_wrong_settings_are_reported(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="root"):
        read_file.build(options)
