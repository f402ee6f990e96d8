"""Where sessions are, for several gateways that serve as one: the origin of a request, and the replicas of
sessions.

The origin is read without memory, so that each member finds the same home. At home Identity decides, which
remembers.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from re import Pattern
from typing import Any, TypeAlias

from gateway.core import fields
from gateway.core.fields import Json
from gateway.exchange import Exchange
from gateway.sessions.claims import read_claim
from policies.types import ReplicaId

FAMILY_CHARS = 512
"""Length of system text that counts: siblings differ further down, in directories and dates."""
PROMPT_CHARS = 2048
"""Length that counts of a prompt without messages, which grows at its end."""
_OPENING = ("user", "system", "developer")
_SYSTEM = ("system", "developer")


@dataclass(frozen=True, slots=True)
class Origin:
    """The family and the root of a session, as digests. They are stable over its turns while its history only
    grows."""

    family: str
    root: str
    """Digest of the session; sub-agents that name their parent have the parent's."""
    has_history: bool
    """Whether the model has spoken already."""


def origin_of(
    tenant: str, headers: Mapping[str, str], body: Json, volatile: Sequence[Pattern[str]] = ()
) -> Origin:
    """Return the origin by the ids that the client sends; else by the user's words before the first answer.

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
    root = name if name is not None else _root(said, body)
    return Origin(
        family=_digest(tenant, system[:FAMILY_CHARS] or root[:FAMILY_CHARS]),
        root=_digest(tenant, "name" if name is not None else "said", root),
        has_history=len(opening) < len(items),
    )


def _root(said: list[Any], body: Json) -> str:
    try:
        return fields.written([said, _prompt(body)]).decode()
    except fields.TooDeep:
        return ""  # the home of the request refuses it


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


# ---- the replicas that have the prefixes of sessions

Placed: TypeAlias = list[tuple[str, ReplicaId]]
"""(root of a session, replica), oldest first."""

MAX_KEPT = 100_000
MAX_NEWS = 20_000
"""Placements of this process that others may not have asked for yet."""


class Trail:
    """The replica of each session, also of other members' sessions. The least recently placed one is dropped
    first.

    It is keyed by roots, which sub-agents share and other members learn, so its lifetime is not that of the
    session table: a session of another member is in no table here.
    """

    def __init__(self, max_kept: int = MAX_KEPT) -> None:
        self._max_kept = max_kept
        self._replicas: OrderedDict[str, ReplicaId] = OrderedDict()
        self._open: dict[str, str] = {}
        """Roots of running turns, by exchange."""
        self._news: deque[tuple[str, ReplicaId]] = deque(maxlen=MAX_NEWS)
        self.num_news = 0
        """Placements by this process since it began."""

    def found(self, exchange: Exchange) -> ReplicaId | None:
        """Return where the session of a turn was; None for a session that begins. `ran` must follow in the end."""
        origin = origin_of(exchange.caller.tenant, exchange.request.headers, exchange.payload.body)
        self._open[exchange.id] = origin.root
        return self._replicas.get(origin.root) if origin.has_history else None

    def ran(self, exchange: Exchange) -> None:
        """Record where a turn ran that is over."""
        root = self._open.pop(exchange.id, None)
        if root is not None and exchange.dispatch is not None:
            self.placed(root, exchange.dispatch.replica_id)

    def placed(self, root: str, replica_id: ReplicaId) -> None:
        """Record that a turn of the session ran there."""
        if self._replicas.get(root) != replica_id:
            self._news.append((root, replica_id))
            self.num_news += 1
        self._keep(root, replica_id)

    def news(self, since: int) -> Placed:
        """Return the placements by this process after the first `since`, as far back as they are kept."""
        num_wanted = min(self.num_news - since, len(self._news))
        return list(self._news)[len(self._news) - num_wanted :] if num_wanted > 0 else []

    def known(self) -> Placed:
        """Return all placements, also those of others, for a member that has just begun."""
        return list(self._replicas.items())

    def learn(self, placed: Iterable[tuple[str, ReplicaId]]) -> None:
        """Take in the placements of another member; they are not passed on as news."""
        for root, replica_id in placed:
            self._keep(root, replica_id)

    def _keep(self, root: str, replica_id: ReplicaId) -> None:
        self._replicas[root] = replica_id
        self._replicas.move_to_end(root)
        if len(self._replicas) > self._max_kept:
            self._replicas.popitem(last=False)
