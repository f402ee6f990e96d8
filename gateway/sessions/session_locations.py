"""Where a conversation comes from, as every one of its requests shows it: its family and its root.

Read without memory, so that each member finds the same home. Identity, which remembers, decides there.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from re import Pattern
from typing import Any, TypeAlias

import orjson

from gateway.core import fields
from gateway.core.fields import Json
from gateway.exchange import Exchange
from gateway.sessions.claims import read_claim
from policies.types import ReplicaId

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


# ---- which replica has a session's prefix, also of others' sessions

Placed: TypeAlias = list[tuple[str, ReplicaId]]
"""(root of a session, replica), oldest first."""

MAX_KEPT = 100_000
MAX_NEWS = 20_000
"""Placements of this process that others may not have asked for yet."""


class Trail:
    """Written by the path and by the exchange between members. The least recently placed is forgotten first."""

    def __init__(self, max_kept: int = MAX_KEPT) -> None:
        self._max_kept = max_kept
        self._replicas: OrderedDict[str, ReplicaId] = OrderedDict()
        self._open: dict[str, str] = {}
        """Roots of turns that run, by exchange."""
        self._news: deque[tuple[str, ReplicaId]] = deque(maxlen=MAX_NEWS)
        self.num_news = 0
        """Placements by this process since it began."""

    def found(self, exchange: Exchange) -> ReplicaId | None:
        """Where the session of a turn that begins was; of one that only begins, nowhere. Tell `ran` in the end."""
        origin = origin_of(exchange.caller.tenant, exchange.request.headers, exchange.payload.body)
        self._open[exchange.id] = origin.root
        return self._replicas.get(origin.root) if origin.has_history else None

    def ran(self, exchange: Exchange) -> None:
        """A turn is over."""
        root = self._open.pop(exchange.id, None)
        if root is not None and exchange.dispatch is not None:
            self.placed(root, exchange.dispatch.replica_id)

    def placed(self, root: str, replica_id: ReplicaId) -> None:
        """A turn of the session ran there."""
        if self._replicas.get(root) != replica_id:
            self._news.append((root, replica_id))
            self.num_news += 1
        self._keep(root, replica_id)

    def news(self, since: int) -> Placed:
        """Placements by this process after the first `since`, as far back as they are kept."""
        num_wanted = min(self.num_news - since, len(self._news))
        return list(self._news)[len(self._news) - num_wanted :] if num_wanted > 0 else []

    def known(self) -> Placed:
        """All, also those of others, for one that knows nothing yet."""
        return list(self._replicas.items())

    def learn(self, placed: Iterable[tuple[str, ReplicaId]]) -> None:
        """What another member said; not passed on as news."""
        for root, replica_id in placed:
            self._keep(root, replica_id)

    def _keep(self, root: str, replica_id: ReplicaId) -> None:
        self._replicas[root] = replica_id
        self._replicas.move_to_end(root)
        if len(self._replicas) > self._max_kept:
            self._replicas.popitem(last=False)
