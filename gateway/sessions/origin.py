"""Where a conversation comes from, as every one of its requests shows it: its family and its root.

Read without memory, so that each member finds the same home. Identity, which remembers, decides there.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from re import Pattern
from typing import Any

import orjson

from gateway.core import fields
from gateway.core.fields import Json
from gateway.sessions.claims import read_claim

FAMILY_CHARS = 512
"""Of the system text: siblings differ further down, in directories and dates."""
PROMPT_CHARS = 2048
"""Of a prompt without messages, which grows at its end."""
_OPENING = ("user", "system", "developer")
_SYSTEM = ("system", "developer")


@dataclass(frozen=True, slots=True)
class Origin:
    """Digests. Stable over the turns of a session, as long as its history only grows."""

    family: str
    root: str
    """Of the session; sub-agents that name their parent have its."""
    has_history: bool
    """Whether the model has spoken already."""


def origin_of(
    tenant: str, headers: Mapping[str, str], body: Json, volatile: Sequence[Pattern[str]] = ()
) -> Origin:
    """By the ids that the client sends; else by what its user said before the model first answered.

    `volatile`: text that changes between requests of one session, left out of the system text.
    """
    items = _items(body)
    opening = list(_before_answer(items))
    said = [item.get("content") for item in opening if item.get("role") not in _SYSTEM]
    system = "".join(_system_texts(body, opening))[: 4 * FAMILY_CHARS]
    for pattern in volatile:
        system = pattern.sub("", system)
    claim = read_claim(headers)
    name = claim.parent or claim.session
    root = name if name is not None else orjson.dumps([said, _prompt(body)]).decode()
    return Origin(
        family=_digest(tenant, system[:FAMILY_CHARS] or root[:FAMILY_CHARS]),
        root=_digest(tenant, "name" if name is not None else "said", root),
        has_history=len(opening) < len(items),
    )


def _items(body: Json) -> list[Any]:
    return fields.items(body, "messages") or fields.items(body, "input")


def _before_answer(items: list[Any]) -> Iterator[Json]:
    for item in items:
        if not isinstance(item, dict) or item.get("role") not in _OPENING:
            return
        yield item


def _system_texts(body: Json, opening: list[Json]) -> Iterator[str]:
    yield from _texts(body.get("instructions"))
    yield from _texts(body.get("system"))
    for item in opening:
        if item.get("role") in _SYSTEM:
            yield from _texts(item.get("content"))


def _texts(content: Any) -> Iterator[str]:
    if isinstance(content, str):
        yield content
    for part in content if isinstance(content, list) else ():
        if isinstance(part, dict) and (text := fields.text(part, "text")):
            yield text


def _prompt(body: Json) -> Any:
    for key in ("prompt", "input"):
        if isinstance(value := body.get(key), str):
            return value[:PROMPT_CHARS]
    prompts = fields.items(body, "prompt")
    return prompts[0] if prompts else None


def _digest(*parts: str) -> str:
    digest = hashlib.blake2b(digest_size=8)
    for part in parts:
        data = part.encode("utf-8", "surrogatepass")
        digest.update(len(data).to_bytes(8, "big") + data)
    return digest.hexdigest()
