"""Find out what a running engine honours by asking it a few one-token questions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace

import orjson

from gateway.core import fields
from gateway.core.transport import HeaderList
from gateway.engines.base import CHAT, Abilities, OutgoingRequest, Engine, Json, Outgoing, Report
from gateway.engines.openai import json_object
from policies.types import Hints

Ask = Callable[[str, HeaderList, bytes], Awaitable[tuple[int, bytes]]]
"""POST a body (path, headers, body) to the engine -> status and answer. Raises UpstreamRefused, UpstreamCut."""

# What agents send: instructions, a tool schema, code, a listing; it tells how the model's tokenizer cuts them.
_SAMPLE = """You are a coding agent. Read the files that matter, then make the smallest change that passes
the tests. Never guess a path; list the folder first. Keep answers short, and say what you could not check.
{"type": "function", "function": {"name": "read_file", "description": "Read a text file", "parameters":
{"type": "object", "properties": {"path": {"type": "string"}, "offset": {"type": "integer"}},
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
# A prefix hit takes at least one whole block; this is what is asked where the block size is not known.
_DEFAULT_BLOCK_TOKENS = 128
_MAX_BLOCK_TOKENS = 1024


async def probe(engine: Engine, abilities: Abilities, report: Report, ask: Ask) -> None:
    """Write into `abilities` what a handful of tiny requests shows. What cannot be found out stays as it is."""
    if not report.models:
        return
    model = report.models[0]
    if abilities.system_before_tools is None:
        abilities.system_before_tools = await _renders_system_first(engine, abilities, model, ask)
    await _hints_and_cache(engine, abilities, report, model, ask)
    if abilities.takes_tools is None:
        abilities.takes_tools = await _takes_tools(engine, abilities, model, ask)


async def _takes_tools(engine: Engine, abilities: Abilities, model: str, ask: Ask) -> bool | None:
    """vLLM and others refuse requests that offer tools until they are told how the model calls them."""
    body: Json = {
        "model": model,
        "messages": [{"role": "user", "content": "hi"}],
        "tools": [_TOOL],
        "max_tokens": 1,
    }
    status, answer = await _send(body, engine.outgoing(OutgoingRequest(CHAT, body, Hints()), abilities), ask)
    if status == 200:
        return True
    return False if status in (400, 422, 501) and "tool" in _message(answer).lower() else None


async def _renders_system_first(engine: Engine, abilities: Abilities, model: str, ask: Ask) -> bool | None:
    messages: list[Json] = [{"role": "system", "content": _SYSTEM_MARK}, {"role": "user", "content": "hi"}]
    rendering = engine.rendering(model, messages, [_TOOL])
    if rendering is None or (abilities.paths is not None and rendering[0] not in abilities.paths):
        return None
    status, answer = await ask(rendering[0], (), orjson.dumps(rendering[1]))
    text = engine.rendered(answer.decode(errors="replace")) if status == 200 else ""
    system_at, tool_at = text.find(_SYSTEM_MARK), text.find(_TOOL_MARK)
    return None if system_at < 0 or tool_at < 0 else system_at < tool_at


async def _hints_and_cache(engine: Engine, abilities: Abilities, report: Report, model: str, ask: Ask) -> None:
    """The same prompt twice with every hint: a refusal shows which one fails, the second answer what is cached."""
    pools = [pool.name for pool in report.pools]
    block_tokens = max((pool.block_tokens or 0 for pool in report.pools), default=0) or _DEFAULT_BLOCK_TOKENS
    text = _SAMPLE * (1 + 12 * min(block_tokens, _MAX_BLOCK_TOKENS) // len(_SAMPLE))
    body: Json = {"model": model, "messages": [{"role": "user", "content": text}], "max_tokens": 1}
    pool = pools[0] if pools and abilities.can_address_pools else ""
    usage = None
    for _ in range(2):
        status, answer = await _ask_with_hints(engine, abilities, body, pool, ask)
        if status != 200:
            return
        usage = engine.usage(json_object(answer))
    cached_tokens = usage.cached_tokens if usage else None
    if usage is not None and usage.prompt_tokens:
        abilities.tokens_per_char = usage.prompt_tokens / len(text)
    is_one_pool = len(pools) == 1 or pool
    if abilities.reports_cached_tokens is None and (cached_tokens or is_one_pool):
        abilities.reports_cached_tokens = bool(cached_tokens)


async def _ask_with_hints(
    engine: Engine, abilities: Abilities, body: Json, pool: str, ask: Ask
) -> tuple[int, bytes]:
    hints = Hints(urgency=1, remaining_turns=0, expected_output_tokens=1)
    asked = OutgoingRequest(CHAT, body, hints, pool, may_prioritise=True)
    sent = engine.outgoing(asked, abilities)
    status, answer = await _send(body, sent, ask)
    refused = engine.refused_fields(status, _message(answer), sent)
    if not refused:
        return status, answer
    abilities.remember(refused, sent)
    if "priority" in refused:
        abilities.honours_priority = False
    if sent.pin in refused:
        asked = replace(asked, pool="")
    return await _send(body, engine.outgoing(asked, abilities), ask)


async def _send(body: Json, sent: Outgoing, ask: Ask) -> tuple[int, bytes]:
    return await ask(CHAT, sent.headers, orjson.dumps({**body, **sent.body}))


def _message(answer: bytes) -> str:
    """From OpenAI's envelope or Dynamo's bare object."""
    parsed = json_object(answer)
    return fields.text(fields.obj(parsed, "error") or parsed, "message") or ""
