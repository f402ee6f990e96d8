from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tool_runtime.tools.read_file import Roots
from tool_runtime.types import Refused, ToolError

SECRET = b"secret"


@pytest.fixture
def roots(tmp_path: Path) -> Roots:
    """docs/ with a file, a folder and every kind of way out; the secret lies beside it."""
    docs = tmp_path / "docs"
    (docs / "folder").mkdir(parents=True)
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret").write_bytes(SECRET)
    (docs / "file").write_bytes(b"fine")
    (docs / "folder" / "inner").write_bytes(b"fine")
    (docs / "link").symlink_to(tmp_path / "outside" / "secret")
    (docs / "way").symlink_to(tmp_path / "outside")
    (docs / "up").symlink_to("..")
    (docs / "self").symlink_to("file")
    os.mkfifo(docs / "pipe")
    return Roots({"docs": str(docs)})


def read(roots: Roots, path: str) -> bytes:
    with roots.file(path) as descriptor:
        return os.read(descriptor, 100)


@pytest.mark.parametrize("path", ["docs/file", "docs/folder/inner", "docs//./folder/inner", "docs/file/"])
def test_a_file_below_a_root_is_read(roots: Roots, path: str) -> None:
    assert read(roots, path) == b"fine"


@pytest.mark.parametrize(
    "path",
    [
        *("../outside/secret", "docs/../../outside/secret", "docs/..", "..", "docs/folder/../file"),
        *("/etc/passwd", "//etc/passwd", "outside/secret", "", ".", "/", "docs\0/file", "docs/\0", "\ud800"),
        *("docs/link", "docs/way/secret", "docs/up/outside/secret", "docs/self", "docs/way/../file"),
        "docs/pipe",
    ],
)
def test_what_lies_outside_or_behind_a_link_is_refused(roots: Roots, path: str) -> None:
    with pytest.raises(Refused) as refusal:
        read(roots, path)
    str(refusal.value).encode()


@pytest.mark.parametrize("path", ["docs/absent", "docs", "docs/folder", "docs/file/below", "docs/" + "x" * 300])
def test_what_is_no_file_is_an_error_of_the_call(roots: Roots, path: str) -> None:
    with pytest.raises(ToolError) as error:
        read(roots, path)
    assert not isinstance(error.value, Refused)


@pytest.mark.parametrize("path", ["docs/way", "docs/up", "docs/file"])
def test_a_directory_is_not_opened_through_a_link(roots: Roots, path: str) -> None:
    with pytest.raises(ToolError), roots.directory(path):
        pass


PARTS = st.sampled_from(
    [
        "docs",
        "folder",
        "file",
        "inner",
        "link",
        "way",
        "up",
        "self",
        "outside",
        "secret",
        "..",
        ".",
        "",
        "%2e%2e",
        "\\",
    ]
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(PARTS, max_size=7).map("/".join))
def test_no_path_leads_to_the_secret(roots: Roots, path: str) -> None:
    try:
        content = read(roots, path)
    except ToolError:
        return
    assert content == b"fine"


@given(st.text(max_size=20))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_text_is_read_or_refused_and_nothing_else(roots: Roots, path: str) -> None:
    for given_path in (path, f"docs/{path}"):
        try:
            read(roots, given_path)
        except ToolError as error:
            str(error).encode()


def test_no_descriptor_is_left_open(roots: Roots) -> None:
    before = set(os.listdir("/proc/self/fd"))
    for path in ("docs/file", "docs/link", "docs/way/secret", "docs/absent", "docs/folder/inner", "docs/pipe"):
        with suppress(ToolError):
            read(roots, path)
    assert set(os.listdir("/proc/self/fd")) <= before


@pytest.mark.parametrize(("name", "place"), [("a/b", "."), ("..", "."), ("", "."), ("docs", "absent")])
def test_a_root_that_is_none_is_told_at_once(tmp_path: Path, name: str, place: str) -> None:
    with pytest.raises(ValueError, match="root"):
        Roots({name: str(tmp_path / place)})
