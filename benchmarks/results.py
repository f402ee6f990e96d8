"""Result files of a suite: a table for people and its data, with date, machine, command and duration."""

from __future__ import annotations

import argparse
import os
import platform
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson

_STARTED_AT = time.monotonic()


def machine() -> str:
    """Cores, processor architecture, system and Python of this machine."""
    cores = len(os.sched_getaffinity(0))
    return f"{cores} cores, {platform.machine()}, {platform.system()}, Python {platform.python_version()}"


def invocation() -> str:
    """The command as it was typed, from the project's root."""
    return shlex.join(["python", "-m", _module(), *sys.argv[1:]])


def _module() -> str:
    """The module that runs."""
    name = getattr(sys.modules["__main__"].__spec__, "name", "") or ""
    return name.removesuffix(".__main__")


def command_parser(doc: str | None, module_file: str) -> argparse.ArgumentParser:
    """With `results`: by default the folder of that name beside the module, or None."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(f"python -m {_module()}", description=doc, formatter_class=raw)
    folder = Path(module_file).with_name("results")
    help_text = "for the table and its data; default: that of the suite"
    parser.add_argument("--results", type=Path, default=folder, metavar="FOLDER", help=help_text)
    parser.add_argument("--no-results", action="store_const", const=None, dest="results", help="print only")
    return parser


def write(
    folder: Path | None,
    name: str,
    table: str,
    data: Mapping[str, Any] | Sequence[Any],
    took_s: float | None = None,
) -> None:
    """Write NAME.md and NAME.json; None: nothing. `took_s`: None is since the start of this process."""
    if folder is None:
        return
    folder.mkdir(parents=True, exist_ok=True)
    record = {
        "name": name,
        "date": datetime.now(UTC).date().isoformat(),
        "machine": machine(),
        "command": invocation(),
        "took_s": round(time.monotonic() - _STARTED_AT if took_s is None else took_s),
    }
    head = "# {name}\n\n{date}, {machine}, {took_s} s.\n\n    {command}\n\n".format_map(record)
    (folder / f"{name}.md").write_text(f"{head}{table}\n")
    (folder / f"{name}.json").write_bytes(compact(record, data))


def compact(record: Mapping[str, Any], data: Mapping[str, Any] | Sequence[Any]) -> bytes:
    """The record with its `data`, of which each entry has a line: small, and readable in a diff."""
    if isinstance(data, Mapping):
        brackets, entries = b"{}", [orjson.dumps(str(key)) + b":" + _dumps(data[key]) for key in data]
    else:
        brackets, entries = b"[]", [_dumps(entry) for entry in data]
    head = b",\n".join(orjson.dumps(key) + b":" + _dumps(value) for key, value in record.items())
    return b'{%b,\n"data":%b\n%b\n%b}\n' % (head, brackets[:1], b",\n".join(entries), brackets[1:])


def _dumps(value: Any) -> bytes:
    return orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS)
