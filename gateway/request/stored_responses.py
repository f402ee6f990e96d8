"""Finds stored responses: by what is remembered, else by asking the engines that store them under ids of ours."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from gateway.access.keys import Keys
from gateway.core import response_ids
from gateway.core.errors import Failure, Outcome, Refused
from gateway.core.excerpt import excerpt
from gateway.engines.base import RESPONSES
from gateway.engines.client import Asking
from gateway.engines.monitor import Monitor
from gateway.engines.openai import json_object
from gateway.request.homes import Home, Homes


@dataclass(frozen=True, slots=True)
class StoredResponses:
    """What is found is remembered."""

    homes: Homes
    monitor: Monitor
    ask: Asking
    keys: Keys

    async def find(self, tenant: str, response_id: str) -> Home | None:
        """None: not known here, and no id that the gateway gave. Raises Refused for another tenant's, and where no
        engine has it."""
        homes = self.homes
        if (home := homes.home(tenant, response_id)) is not None:
            return home
        is_anothers = response_ids.is_anothers(response_id, tenant)
        if homes.is_anothers(tenant, response_id) or (is_anothers and not self.keys.is_open):
            raise no_such_response(response_id)
        if is_anothers or not response_ids.is_ours(response_id):
            return None  # an engine's own id, or that of another gateway behind this one, which has no tenants
        engines = [one for one in self.monitor.engines if one.engine.names_responses]
        path = f"{RESPONSES}/{response_id}"
        pages = await asyncio.gather(*(self.ask.page(engine.address, path) for engine in engines))
        told = dict(zip(engines, pages, strict=True))
        having = [one for one, (status, _) in told.items() if status == 200 and one.replica_ids]
        if not having:
            is_gone = all(400 <= status < 500 for status, _ in pages)
            raise no_such_response(response_id) if is_gone else _not_found_now(response_id)
        # The rounds of an answer with tools of ours bear one id, at several engines perhaps: the last one counts.
        home = Home(max(having, key=lambda one: _created_at(told[one][1])).replica_ids[0], response_id)
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
