"""Answers in full, kept until their clients send their history again.

A client's history lacks the calls and results of the gateway's tools, but the engine must see its own words. So an
answer in full takes the place of the one that the client sends. It is found by its mark and the marks of all
answers before it in its session. Memory is bounded per tenant. A session is lost as a whole, and the engine then
sees the client's history.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

import orjson

from gateway.core.fields import Json, trimmed, written
from gateway.core.json_edit import Edit
from gateway.dialects.rounds import ToolFormat

_STORED = "stored "
"""Stands before ids of stored answers, which share the memory with ids of sessions."""
_CHAIN_BYTES = 16
_ENTRY_BYTES = 200
"""About what the objects of an entry take."""


@dataclass(slots=True)
class _Session:
    """The answers of one session."""

    said: dict[bytes, bytes] = field(default_factory=dict)
    """Each in full, by the chain of marks up to it."""
    num_bytes: int = 0
    until: float = 0.0


@dataclass(slots=True)
class _Tenant:
    sessions: OrderedDict[str, _Session] = field(default_factory=OrderedDict)
    """The least recently used first."""
    num_bytes: int = 0


class HiddenHistory:
    """Holds at most `max_bytes`, and each session until it was not used for `ttl_s`. Beyond the bound the tenant
    with the most bytes loses its least recently used sessions."""

    def __init__(self, max_bytes: int, ttl_s: float) -> None:
        self._max_bytes = max_bytes
        self._ttl_s = ttl_s
        self._tenants: dict[str, _Tenant] = {}
        self.all_bytes = 0

    def num_bytes(self, tenant: str) -> int:
        return self._tenants[tenant].num_bytes if tenant in self._tenants else 0

    def knows(self, tenant: str, session_id: str, parent_id: str | None) -> bool:
        """Return whether anything is kept of a session, or of the one that it forks from."""
        kept = self._tenants.get(tenant)
        return kept is not None and (session_id in kept.sessions or parent_id in kept.sessions)

    def restore(
        self,
        tenant: str,
        session_id: str,
        parent_id: str | None,
        format_: ToolFormat,
        history: Sequence[Json],
        now: float,
    ) -> tuple[list[Edit], bytes]:
        """Return the edits that put answers back in full, and the chain of the answers of a history."""
        session = self._session(tenant, session_id, parent_id, now)
        edits: list[Edit] = []
        chain = b""
        for start, end, mark in format_.answers(history):
            chain = follow(chain, mark)
            if session is not None and chain in session.said:
                replaced, items = format_.restored(history, end, orjson.loads(session.said[chain]))
                edits.append(Edit(start, replaced, items))
        return edits, chain

    def put(self, tenant: str, session_id: str, chain: bytes, said: Sequence[Json], now: float) -> None:
        """Keep `said` as the full text of the answer that ends this chain."""
        kept = self._tenants.setdefault(tenant, _Tenant())
        session = kept.sessions.setdefault(session_id, _Session())
        text = trimmed(written(said))
        grown = len(text) - len(session.said[chain]) if chain in session.said else len(text) + _ENTRY_BYTES
        session.said[chain] = text
        session.num_bytes += grown
        kept.num_bytes += grown
        self.all_bytes += grown
        self._used(kept, session_id, now)

    def put_stored(self, tenant: str, public_id: str, engine_id: str, results: Sequence[Json], now: float) -> None:
        """Keep what the follow-up of a stored answer needs. Clients name the answer by its public id. The engine
        knows it by the id of its last round, and waits for these results too."""
        self.put(tenant, _STORED + public_id, b"", [{"id": engine_id}, *results], now)

    def stored(self, tenant: str, public_id: str) -> tuple[str, list[Json]] | None:
        """Return the engine's id, and the results that a follow-up has to bring. None: nothing is hidden of it."""
        kept = self._tenants.get(tenant)
        session = kept.sessions.get(_STORED + public_id) if kept is not None else None
        if session is None:
            return None
        about, *results = orjson.loads(session.said[b""])
        return about["id"], results

    def forget_session(self, tenant: str, session_id: str) -> None:
        kept = self._tenants.get(tenant)
        if kept is not None and (session := kept.sessions.pop(session_id, None)) is not None:
            kept.num_bytes -= session.num_bytes
            self.all_bytes -= session.num_bytes

    def _session(self, tenant: str, session_id: str, parent_id: str | None, now: float) -> _Session | None:
        """Return what is kept of a session. A fork begins with the answers of its parent."""
        kept = self._tenants.get(tenant)
        if kept is None:
            return None
        self._forget(kept, now)
        parent = kept.sessions.get(parent_id) if parent_id is not None else None
        if session_id not in kept.sessions and parent is not None:
            kept.sessions[session_id] = _Session(dict(parent.said), parent.num_bytes)
            kept.num_bytes += parent.num_bytes
            self.all_bytes += parent.num_bytes
        session = kept.sessions.get(session_id)
        if session is not None:
            self._used(kept, session_id, now)
        return session

    def _used(self, kept: _Tenant, session_id: str, now: float) -> None:
        kept.sessions[session_id].until = now + self._ttl_s
        kept.sessions.move_to_end(session_id)
        self._forget(kept, now)

    def _forget(self, kept: _Tenant, now: float) -> None:
        while kept.sessions and next(iter(kept.sessions.values())).until <= now:
            self._drop_oldest(kept)
        while self.all_bytes > self._max_bytes:
            self._drop_oldest(max(self._tenants.values(), key=lambda tenant: tenant.num_bytes))

    def _drop_oldest(self, kept: _Tenant) -> None:
        num_bytes = kept.sessions.popitem(last=False)[1].num_bytes
        kept.num_bytes -= num_bytes
        self.all_bytes -= num_bytes


def follow(chain: bytes, mark: bytes) -> bytes:
    """Return the chain of the answers up to and including one with this mark."""
    return blake2b(chain + mark, digest_size=_CHAIN_BYTES).digest()
