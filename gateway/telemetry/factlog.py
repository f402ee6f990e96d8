"""The log of facts: the Scheduler's facts and decisions, one JSON line each, for a replay. Off unless configured.

Each start of a gateway writes a header with the settings that decisions depend on. The log holds sizes, times and
hashes, but no content.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import BufferedWriter, FileIO
from pathlib import Path
from typing import Any, get_args

import orjson
from pydantic import TypeAdapter

from policies.types import Decision, Fact

LOG = logging.getLogger(__name__)
BUFFER_BYTES = 256 * 1024
FLUSH_EVERY_S = 1.0


@dataclass(frozen=True, slots=True)
class Header:
    """A gateway started."""

    settings: Mapping[str, Any]
    """Sections of the configuration, as its file has them."""


class FactLog:
    """Appends to a file. A disk that fails ends the log, never the gateway. Owned by the event loop."""

    def __init__(self, path: Path, header: Header = Header({})) -> None:
        """Raises OSError when the file cannot be opened."""
        self._path = path
        self._file = BufferedWriter(FileIO(path, "ab"), BUFFER_BYTES)
        self._flushed_at = 0.0
        self._write({"settings": header.settings})

    def record(self, now: float, fact: Fact, decisions: Sequence[Decision]) -> None:
        """Append one line. Lines reach the disk within about a second of the next one."""
        if self._file.closed:
            return
        is_due = now - self._flushed_at >= FLUSH_EVERY_S
        self._flushed_at = now if is_due else self._flushed_at
        self._write({"now": now, "fact": _named(fact), "decisions": list(map(_named, decisions))}, is_due)

    def _write(self, line: Mapping[str, Any], is_due: bool = False) -> None:
        try:
            self._file.write(orjson.dumps(line, default=_listed, option=orjson.OPT_APPEND_NEWLINE))
            if is_due:
                self._file.flush()
        except OSError as error:
            LOG.error("the log of facts %s ends here: %s", self._path, error)
            self._file.raw.close()  # what is still buffered would fail again

    def close(self) -> None:
        try:
            self._file.close()
        except OSError as error:
            LOG.error("the end of the log of facts %s is lost: %s", self._path, error)


def lines(path: Path) -> Iterator[Header | tuple[float, Fact, list[Decision]]]:
    """Yield the log as values: headers, and facts with their times and decisions.

    Raises ValueError on a line that is not of this format.
    """
    adapters = {kind.__name__: TypeAdapter[Any](kind) for kind in (*get_args(Fact), *get_args(Decision))}

    def value(named: list[Any]) -> Any:
        name, fields = named
        return adapters[name].validate_python(fields)

    with path.open("rb") as file:
        for line in map(orjson.loads, file):
            if "settings" in line:
                yield Header(line["settings"])
            else:
                yield line["now"], value(line["fact"]), [value(decision) for decision in line["decisions"]]


def read(path: Path) -> Iterator[tuple[float, Fact, list[Decision]]]:
    """Yield the facts alone, for a fresh Scheduler whose decisions are compared."""
    return (line for line in lines(path) if not isinstance(line, Header))


def _named(value: Fact | Decision) -> list[Any]:
    return [type(value).__name__, value]


def _listed(value: Any) -> list[Any]:
    """Return a set or another sequence as a JSON array."""
    return sorted(value) if isinstance(value, frozenset) else list(value)
