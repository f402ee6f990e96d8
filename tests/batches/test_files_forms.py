from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.batches.files import (
    MAX_HEADER_BYTES,
    MAX_PARTS,
    BadForm,
    FormSplitter,
    PartBegins,
    PartData,
    boundary_of,
)

BOUNDARY = b"xYzZy"


def form(parts: list[tuple[str, str | None, bytes]]) -> bytes:
    body = b""
    for name, filename, data in parts:
        about = f'form-data; name="{name}"' + (f'; filename="{filename}"' if filename else "")
        body += b"--" + BOUNDARY + b"\r\nContent-Disposition: " + about.encode() + b"\r\n\r\n" + data + b"\r\n"
    return body + b"--" + BOUNDARY + b"--\r\n"


def read(chunks: list[bytes]) -> list[tuple[str, str | None, bytes]]:
    splitter, found = FormSplitter(BOUNDARY), []
    for chunk in chunks:
        for event in splitter.feed(chunk):
            if isinstance(event, PartBegins):
                found.append((event.name, event.filename, b""))
            else:
                assert isinstance(event, PartData)
                name, filename, data = found.pop()
                found.append((name, filename, data + event.data))
    assert splitter.has_ended
    return found


CONTENT = st.one_of(
    st.binary(max_size=60),
    st.lists(st.sampled_from([b"\r\n", b"--", BOUNDARY, b"\r\n--", b"\r\n--xYz", b"a"]), max_size=8)
    .map(b"".join)
    .filter(lambda data: b"\r\n--" + BOUNDARY not in b"\r\n" + data + b"\r\n"),
)


@given(st.lists(CONTENT, min_size=1, max_size=4), st.data())
def test_parts_are_the_same_however_the_body_is_cut(contents: list[bytes], draw: st.DataObject) -> None:
    parts = [(f"p{n}", "in.jsonl" if n % 2 else None, data) for n, data in enumerate(contents)]
    body = form(parts)
    cuts = draw.draw(st.lists(st.integers(0, len(body)), max_size=12).map(sorted))
    chunks = [body[start:end] for start, end in pairwise([0, *cuts, len(body)])]
    assert read(chunks) == parts


def test_what_follows_the_last_boundary_is_nothing() -> None:
    assert read([form([("a", None, b"1")]) + b"\r\nepilogue --xYzZy\r\n"]) == [("a", None, b"1")]


@pytest.mark.parametrize(
    "content_type", ["", "application/json", "multipart/form-data", "multipart/form-data; boundary=" + "x" * 71]
)
def test_a_body_that_is_no_form_is_refused(content_type: str) -> None:
    with pytest.raises(BadForm):
        boundary_of(content_type)


def test_a_part_without_a_name_is_refused() -> None:
    with pytest.raises(BadForm, match="no name"):
        list(FormSplitter(BOUNDARY).feed(b"--" + BOUNDARY + b"\r\nContent-Type: text/plain\r\n\r\nx\r\n"))


def test_headers_that_never_end_are_not_collected_forever() -> None:
    splitter = FormSplitter(BOUNDARY)
    list(splitter.feed(b"--" + BOUNDARY + b"\r\n"))
    with pytest.raises(BadForm, match="are longer than"):
        [list(splitter.feed(b"x" * 1024)) for _ in range(100)]


def test_headers_that_end_late_are_too_long_too() -> None:
    with pytest.raises(BadForm, match="are longer than"):
        read([form([("x" * MAX_HEADER_BYTES, None, b"a")])])


@pytest.mark.parametrize("more", [b";a=1" * 65, b';a="' + b";" * 65 + b'"'])
def test_more_parameters_than_any_form_has_are_not_read(more: bytes) -> None:
    head = b"--" + BOUNDARY + b'\r\nContent-Disposition: form-data; name="a"'
    with pytest.raises(BadForm, match="more than 64 parameters"):
        list(FormSplitter(BOUNDARY).feed(head + more + b"\r\n\r\n"))
    with pytest.raises(BadForm, match="more than 64 parameters"):
        boundary_of("multipart/form-data; boundary=b" + more.decode())


@pytest.mark.parametrize("head", [b"Content-Disposition:;name", b'Content-Disposition: form-data; name="file"'])
def test_more_parts_than_any_form_has_are_not_read(head: bytes) -> None:
    part = b"--" + BOUNDARY + b"\r\n" + head + b"\r\n\r\n\r\n"
    end = b"--" + BOUNDARY + b"--\r\n"
    assert len(read([part * MAX_PARTS + end])) == MAX_PARTS
    with pytest.raises(BadForm, match="more than 64 parts"):
        read([part * (MAX_PARTS + 1) + end])
