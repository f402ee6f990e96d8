"""Small requests of the gateway's own to an engine: its pages, and one-token questions about its abilities."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace

import orjson

from gateway.core import fields
from gateway.core.fields import Json
from gateway.core.transport import HeaderList, Timeouts, Upstream, UpstreamCut, UpstreamRefused, taken
from gateway.engines.base import CHAT, Abilities, EngineAdapter, EngineAddress, Outgoing, OutgoingRequest, Report
from gateway.engines.pages import json_object
from policies.types import Hints

MAX_PAGE_BYTES = 16 * 2**20
PROBE_S = 15.0
"""Bound of all questions to one engine together: a busy engine gets no more of them."""


class EngineClient:
    """Sends the gateway's own requests, with the engine's key."""

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


# ---- one-token questions

# What agents send: mostly instructions and tools, some code, a listing. By tokenizers of 4,096 to 131,072
# tokens it has 0.97 to 1.03 times as many tokens per character as requests of seven agents in the mean. One with
# more code and less prose had 1.07 to 1.13 times as many.
_SAMPLE = """\
You are a coding agent that works in a repository on behalf of a user. Read the files that matter, then make the
smallest change that solves the task and passes the tests. Never guess a path; list the folder first. When a
command fails, read its output before you try again, and say what you could not check. Keep your answers short.
{"type": "function", "function": {"name": "read_file", "description": "Reads a text file of the workspace and
returns its content with line numbers. Large files are cut; use the offset to continue where the last result ended.
Several files can be read at the same time, which is much faster than one call after another.", "parameters":
{"type": "object", "properties": {"path": {"type": "string", "description": "Absolute path of the file"}},
"required": ["path"]}}}
def load(path: str) -> dict[str, int]:
    with open(path, encoding="utf-8") as lines:
        return {name: int(count) for name, count in (line.split() for line in lines)}
-rw-r--r-- 1 user user 4711 Nov 21 10:02 src/app/main.py
"""

_SYSTEM_MARK = "turngatesystemmark"
_TOOL_MARK = "turngatetoolmark"
_TOOL: Json = {
    "type": "function",
    "function": {"name": _TOOL_MARK, "description": "", "parameters": {"type": "object", "properties": {}}},
}
# A prefix hit takes at least one whole block; this is its size where the engine does not state it.
_DEFAULT_BLOCK_TOKENS = 128
_MAX_BLOCK_TOKENS = 1024


@dataclass(frozen=True, slots=True)
class Probe:
    """Finds out what a running engine honours, and writes it into its abilities."""

    client: EngineClient
    address: EngineAddress
    adapter: EngineAdapter
    abilities: Abilities
    report: Report

    async def run(self) -> None:
        """Ask a handful of tiny questions; an ability that they do not show stays as it is.

        Raises UpstreamRefused, UpstreamCut.
        """
        if not self.report.models:
            return
        model = self.report.models[0]  # a start waits for these, so they are asked side by side
        await asyncio.gather(
            self._try_order_of_template(model), self._try_hints_and_cache(model), self._try_tools(model)
        )

    async def _try_order_of_template(self, model: str) -> None:
        if self.abilities.system_before_tools is None:
            self.abilities.system_before_tools = await self._renders_system_first(model)

    async def _renders_system_first(self, model: str) -> bool | None:
        messages: list[Json] = [{"role": "system", "content": _SYSTEM_MARK}, {"role": "user", "content": "hi"}]
        rendering, paths = self.adapter.rendering(model, messages, [_TOOL]), self.abilities.paths
        if rendering is None or (paths is not None and rendering[0] not in paths):
            return None
        text: str | tuple[str, Json] = rendering
        while not isinstance(text, str):
            path, body = text
            status, answer = await self.client.post(self.address, path, (), orjson.dumps(body))
            text = self.adapter.rendered(model, answer.decode(errors="replace")) if status == 200 else ""
        system_at, tool_at = text.find(_SYSTEM_MARK), text.find(_TOOL_MARK)
        return None if system_at < 0 or tool_at < 0 else system_at < tool_at

    async def _try_hints_and_cache(self, model: str) -> None:
        """Send one prompt twice with every hint: a refusal names a hint, the second answer tells cached tokens."""
        abilities, pools = self.abilities, self.report.pools
        block_tokens = max((pool.block_tokens or 0 for pool in pools), default=0) or _DEFAULT_BLOCK_TOKENS
        text = _SAMPLE * (1 + 12 * min(block_tokens, _MAX_BLOCK_TOKENS) // len(_SAMPLE))
        body: Json = {"model": model, "messages": [{"role": "user", "content": text}], "max_tokens": 1}
        pool = pools[0].name if pools and abilities.can_address_pools else ""
        usage = None
        for _ in range(2):
            status, answer = await self._try_hints(body, pool)
            if status != 200:
                return
            usage = self.adapter.usage(json_object(answer))
        cached_tokens = usage.cached_tokens if usage else None
        if usage is not None and usage.prompt_tokens:
            abilities.tokens_per_char = usage.prompt_tokens / len(text)
        if abilities.reports_cached_tokens is None and (cached_tokens or len(pools) == 1 or pool):
            abilities.reports_cached_tokens = bool(cached_tokens)

    async def _try_hints(self, body: Json, pool: str) -> tuple[int, bytes]:
        """Send a prompt with every hint; once more without those that are refused."""
        abilities = self.abilities
        hints = Hints(urgency=1, remaining_turns=0, expected_output_tokens=1)
        request = OutgoingRequest(CHAT, body, hints, pool, may_prioritise=True)
        sent, status, answer = await self._send(request)
        refused = self.adapter.refused_fields(status, _message(answer), sent)
        if not refused:
            return status, answer
        abilities.remember_refusal(refused, sent)
        if "priority" in refused:
            abilities.honours_priority = False
        if sent.pin in refused:
            request = replace(request, pool="")
        _, status, answer = await self._send(request)
        return status, answer

    async def _try_tools(self, model: str) -> None:
        if self.abilities.takes_tools is None:
            self.abilities.takes_tools = await self._takes_tools(model)

    async def _takes_tools(self, model: str) -> bool | None:
        """vLLM and others refuse requests that offer tools until a flag says how the model calls them."""
        user: Json = {"role": "user", "content": "hi"}
        body: Json = {"model": model, "messages": [user], "tools": [_TOOL], "max_tokens": 1}
        _, status, answer = await self._send(OutgoingRequest(CHAT, body, Hints()))
        if status == 200:
            return True
        return False if status in (400, 422, 501) and "tool" in _message(answer).lower() else None

    async def _send(self, request: OutgoingRequest) -> tuple[Outgoing, int, bytes]:
        sent = self.adapter.outgoing(request, self.abilities)
        body = orjson.dumps({**request.body, **sent.body})
        return sent, *await self.client.post(self.address, request.path, sent.headers, body)


def _message(answer: bytes) -> str:
    """The text of an error in OpenAI's envelope or in Dynamo's bare object."""
    parsed = json_object(answer)
    return fields.text(fields.obj(parsed, "error") or parsed, "message") or ""
