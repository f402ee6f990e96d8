"""Result files: a table for people and its data, with date, machine and command."""

from __future__ import annotations

import os
import platform
import shlex
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson


def machine() -> str:
    """Cores, processor architecture, system and Python of this machine."""
    cores = len(os.sched_getaffinity(0))
    return f"{cores} cores, {platform.machine()}, {platform.system()}, Python {platform.python_version()}"


def invocation() -> str:
    """The command as it was typed, from the project's root."""
    module = getattr(sys.modules["__main__"].__spec__, "name", "") or ""
    return shlex.join(["python", "-m", module.removesuffix(".__main__"), *sys.argv[1:]])


def write(name: str, table: str, data: Any, folder: Path = Path("benchmarks/results")) -> None:
    """Write NAME.md and NAME.json."""
    folder.mkdir(parents=True, exist_ok=True)
    date, command = datetime.now(UTC).date().isoformat(), invocation()
    head = f"# {name}\n\n{date}, {machine()}.\n\n    {command}\n\n"
    (folder / f"{name}.md").write_text(f"{head}{table}\n")
    record = {"name": name, "date": date, "machine": machine(), "command": command, "data": data}
    options = orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE
    (folder / f"{name}.json").write_bytes(orjson.dumps(record, option=options))
