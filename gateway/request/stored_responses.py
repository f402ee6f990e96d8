"""Which replica holds the answer that a stateful request builds on."""

from __future__ import annotations

import asyncio
import math
from collections import OrderedDict
from dataclasses import dataclass

from gateway.access.keys import Keys
from gateway.core import response_ids
from gateway.core.errors import Failure, Outcome, Refused
from gateway.core.fields import excerpt
from gateway.dialects import STORED_ANSWERS
from gateway.engines.client import EngineClient
from gateway.engines.monitor import Monitor
from gateway.engines.pages import json_object
from policies.types import ReplicaId, value


@value
class Home:
    """Where a stored answer is."""

    replica_id: ReplicaId
    engine_id: str
    """The id by which the engine there knows it."""


class Homes:
    """The places of stored answers (`/v1/responses`) by id; the oldest is forgotten first. A tenant sees its
    own."""

    def __init__(self, max_kept: int = 100_000, max_bytes: float = math.inf) -> None:
        self._max_kept = max_kept
        self._max_bytes = max_bytes
        self.num_bytes = 0
        self._homes: OrderedDict[str, tuple[str, Home]] = OrderedDict()

    def remember(self, tenant: str, answer_id: str, home: Home) -> None:
        """Keep where an answer is. `answer_id`: the id by which its client knows it."""
        if (before := self._homes.get(answer_id)) is not None:
            self.num_bytes -= _size_bytes(answer_id, before[1])
        self._homes[answer_id] = (tenant, home)
        self.num_bytes += _size_bytes(answer_id, home)
        while len(self._homes) > self._max_kept or self.num_bytes > self._max_bytes:
            oldest_id, (_, oldest) = self._homes.popitem(last=False)
            self.num_bytes -= _size_bytes(oldest_id, oldest)

    def home(self, tenant: str, answer_id: str) -> Home | None:
        """Return where an answer is. None: not known here, or another tenant's."""
        owner, home = self._homes.get(answer_id, ("", None))
        return home if owner == tenant else None

    def is_known(self, answer_id: str) -> bool:
        """Return whether an answer was stored through this process."""
        return answer_id in self._homes

    def is_anothers(self, tenant: str, answer_id: str) -> bool:
        """Return whether an answer is known to be another tenant's, which engines cannot know."""
        return answer_id in self._homes and self._homes[answer_id][0] != tenant


_PLACE_BYTES = 220
"""Of a place without its two ids, and of the table that holds it."""


def _size_bytes(answer_id: str, home: Home) -> int:
    return _PLACE_BYTES + len(answer_id) + len(home.engine_id)


@dataclass(frozen=True, slots=True)
class StoredResponses:
    """Finds stored answers at the engines, and remembers where each is."""

    homes: Homes
    monitor: Monitor
    ask: EngineClient
    keys: Keys

    async def find(self, tenant: str, response_id: str) -> Home | None:
        """Return where a response is. None: not known here, and no id that the gateway gave; only without keys.
        Raises Refused for one whose tenant is another or, with keys, not known; and where no engine has it."""
        homes = self.homes
        if (home := homes.home(tenant, response_id)) is not None:
            return home
        is_anothers = response_ids.is_anothers(response_id, tenant)
        is_unknown = is_anothers or not response_ids.is_given(response_id)
        if homes.is_anothers(tenant, response_id) or (is_unknown and not self.keys.is_open):
            raise no_such_response(response_id)
        if is_unknown:
            return None  # an engine's own id, or that of another gateway behind this one, which has no tenants
        engines = [one for one in self.monitor.engines if one.adapter.names_responses]
        path = f"{STORED_ANSWERS}{response_id}"
        pages = await asyncio.gather(*(self.ask.page(engine.address, path) for engine in engines))
        answers = dict(zip(engines, pages, strict=True))
        having = [one for one, (status, _) in answers.items() if status == 200 and one.replica_ids]
        if not having:
            is_gone = all(400 <= status < 500 for status, _ in pages)
            raise no_such_response(response_id) if is_gone else _not_found_now(response_id)
        # The rounds of an answer with tools have one id, perhaps at several engines: the last one counts.
        home = Home(max(having, key=lambda one: _created_at(answers[one][1])).replica_ids[0], response_id)
        homes.remember(tenant, response_id, home)
        return home


def _created_at(response: str) -> float:
    at = json_object(response).get("created_at")
    return at if isinstance(at, int | float) else 0.0


def no_such_response(response_id: str) -> Refused:
    text = f"There is no response {excerpt(response_id)!r} here; only stored ones can be referred to."
    return Refused(Outcome.NOT_FOUND, Failure(404, "not_found_error", text, param="response_id"))


def _not_found_now(response_id: str) -> Refused:
    text = f"The engine that may have the response {excerpt(response_id)!r} does not answer now."
    return Refused(Outcome.REJECTED_NO_ENGINE, Failure(503, "server_error", text, code="no_replica"))
