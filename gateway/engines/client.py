"""Small requests of our own to an engine: its pages, and one-token questions."""

from __future__ import annotations

from gateway.core.transport import HeaderList, Timeouts, Upstream, UpstreamCut, UpstreamRefused, taken
from gateway.engines.base import EngineAddress

MAX_PAGE_BYTES = 16 * 2**20
PROBE_S = 15.0
"""All questions to one engine together: a busy one is not asked further."""


class Asking:
    """Small requests of our own to engines."""

    def __init__(self, upstream: Upstream, timeout_s: float) -> None:
        self._upstream = upstream
        self._page_timeouts = Timeouts(timeout_s, timeout_s, timeout_s)
        self._answer_timeouts = Timeouts(timeout_s, PROBE_S, PROBE_S)

    async def page(self, address: EngineAddress, path: str) -> tuple[int, str]:
        """Status and text of a page, by path or by whole URL. Status 0: no answer, the text says why."""
        url = path if "://" in path else address.base_url + path
        try:
            status, body = await self._call("GET", url, _headers(address), None, self._page_timeouts)
        except UpstreamRefused:
            return 0, f"{url} does not accept connections"
        except UpstreamCut as error:
            return 0, f"{url}: {error}"
        return status, body.decode(errors="replace")

    async def post(self, address: EngineAddress, path: str, headers: HeaderList, body: bytes) -> tuple[int, bytes]:
        """Raises UpstreamRefused, UpstreamCut."""
        headers = [*_headers(address), ("Content-Type", "application/json"), *headers]
        return await self._call("POST", address.base_url + path, headers, body, self._answer_timeouts)

    async def _call(
        self, method: str, url: str, headers: HeaderList, body: bytes | None, timeouts: Timeouts
    ) -> tuple[int, bytes]:
        reply = await self._upstream.call(method, url, headers, body, timeouts)
        return reply.status, await taken(reply, MAX_PAGE_BYTES)


def _headers(address: EngineAddress) -> list[tuple[str, str]]:
    key = [("Authorization", f"Bearer {address.api_key}")] if address.api_key else []
    return [("Accept-Encoding", "identity"), *key]
