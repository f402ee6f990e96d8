"""Reader of `tests/data/traces`: recorded requests of real, unmodified agents, fully resolved.

One request per line, in order of arrival. `{"$def": h, "v": x}` defines a value and `{"$ref": h}`
repeats it; `messages` or `input` = `{"$base": n, "$common": c, "append": [...]}` means the first `c`
items of request `n` of the same file, then `append`. In `run`, `~429x2-3` and the like name a fault
that the recording server injected.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TRACES_DIR = Path(__file__).parent / "data" / "traces"
CONVERSATION_FIELDS = ("messages", "input")

Json = Any


@dataclass(frozen=True)
class TracedRequest:
    number: int
    run: str
    """Scenario, and the fault that was injected after a tilde."""
    arrived_s: float
    took_s: float
    connection: int
    num_on_connection: int
    method: str
    path: str
    status: int
    headers: tuple[tuple[str, str], ...]
    body_bytes: int
    """As it was sent, before directories were renamed."""
    body: dict[str, Json]
    """Empty for requests without one."""
    reply: Json
    """What the recording server answered: text and calls; None where it injected a fault."""
    fault: str | None = None
    """What the recording server did to this request."""

    @property
    def has_fault(self) -> bool:
        return "~" in self.run

    def header(self, name: str) -> str | None:
        """The first header of that name, in any case."""
        return next((value for key, value in self.headers if key.lower() == name.lower()), None)


def client_names() -> list[str]:
    return sorted(file.stem for file in TRACES_DIR.glob("*.jsonl"))


def read_trace(client: str) -> Iterator[TracedRequest]:
    reader = _Reader()
    with (TRACES_DIR / f"{client}.jsonl").open() as lines:
        for line in lines:
            yield reader.read(json.loads(line))


class _Reader:
    def __init__(self) -> None:
        self._definitions: dict[str, Json] = {}
        self._conversations: dict[int, list[Json]] = {}

    def read(self, row: dict[str, Json]) -> TracedRequest:
        number = row["n"]
        body = self._resolve(row.get("body") or {})
        for name in CONVERSATION_FIELDS:
            if isinstance(body.get(name), dict):
                body[name] = self._extend(body[name])
            if isinstance(body.get(name), list):
                self._conversations[number] = body[name]
        return TracedRequest(
            number,
            row["run"],
            row["t"],
            row["dur"],
            row["conn"],
            row["n_on_conn"],
            row["method"],
            row["path"],
            row["status"],
            tuple((name, value) for name, value in self._resolve(row["headers"])),
            row["body_bytes"],
            body,
            self._resolve(row.get("reply")),
            row.get("fault"),
        )

    def _resolve(self, value: Json) -> Json:
        if isinstance(value, list):
            return [self._resolve(item) for item in value]
        if not isinstance(value, dict):
            return value
        if "$ref" in value:
            return self._definitions[value["$ref"]]
        if "$def" in value:
            self._definitions[value["$def"]] = self._resolve(value["v"])
            return self._definitions[value["$def"]]
        return {name: self._resolve(item) for name, item in value.items()}

    def _extend(self, difference: dict[str, Json]) -> list[Json]:
        base, num_common = difference["$base"], difference["$common"]
        common = self._conversations[base][:num_common] if num_common else []
        appended: list[Json] = difference["append"]
        return [*common, *appended]
