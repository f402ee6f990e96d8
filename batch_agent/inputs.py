"""Inputs of a batch out of files: JSON lines, a JSON list, a table, or the files that a pattern names."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from glob import glob, has_magic
from io import StringIO
from pathlib import Path
from typing import Any

import orjson

_TEXT_FIELD = "{text"


def read_inputs(place: str | Path, task: str) -> list[Mapping[str, Any]]:
    """Return one input for each line of `x.jsonl`, entry of `x.json`, row of `x.csv` or `x.tsv`, or else file.

    A pattern such as `src/**/*.py` names files, as does any other path. Such an input has `file`, the path as it
    was found, and `text`, its content, if the task has that field. Paths are relative to the working directory.
    Raises ValueError with what is wrong and where.
    """
    pattern = str(place)
    read_rows = None if has_magic(pattern) else _READERS.get(Path(pattern).suffix.lower())
    if read_rows is None:
        rows = list(_files(pattern, with_text=_TEXT_FIELD in task))
    else:
        rows = list(read_rows(_text(Path(pattern)), pattern))
    if not rows:
        raise ValueError(f"inputs: {pattern} has no inputs" if read_rows else f"inputs: no file matches {pattern}")
    return rows


def _files(pattern: str, *, with_text: bool) -> Iterator[Mapping[str, Any]]:
    for path in sorted(glob(pattern, recursive=True)):
        if Path(path).is_file():
            yield {"file": path, "text": _text(Path(path))} if with_text else {"file": path}


def _text(path: Path) -> str:
    """Spreadsheets and editors write a byte order mark, which is no text."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ValueError(f"inputs: {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ValueError(f"inputs: {path} is no UTF-8 text") from None


def _json_lines(text: str, name: str) -> Iterator[Mapping[str, Any]]:
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            yield _object(_json(line, f"{name}, line {number}"), f"{name}, line {number}")


def _json_list(text: str, name: str) -> Iterator[Mapping[str, Any]]:
    rows = _json(text, name)
    if not isinstance(rows, list):
        raise ValueError(f"inputs: {name} must hold a list")
    for number, row in enumerate(rows):
        yield _object(row, f"{name}, entry {number}")


def _commas(text: str, name: str) -> Iterator[Mapping[str, Any]]:
    return _table(text, name, ",")


def _tabs(text: str, name: str) -> Iterator[Mapping[str, Any]]:
    return _table(text, name, "\t")


def _table(text: str, name: str, delimiter: str) -> Iterator[Mapping[str, Any]]:
    """The first row names the fields."""
    reader = csv.DictReader(StringIO(text), delimiter=delimiter)
    for row in reader:
        if None in row or None in row.values():
            raise ValueError(
                f"inputs: {name}, line {reader.line_num} has another number of fields than the first row"
            )
        yield row


def _json(text: str, where: str) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise ValueError(f"inputs: {where} is not JSON: {error}") from None


def _object(row: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(row, dict):
        raise ValueError(f"inputs: {where} must be an object with the fields of the task, not {str(row)[:40]!r}")
    return row


_READERS = {".jsonl": _json_lines, ".ndjson": _json_lines, ".json": _json_list, ".csv": _commas, ".tsv": _tabs}
