"""How many output tokens fit: clients send `max_tokens` for the model that they assume, not for the real one."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from gateway.core import fields
from gateway.core.json_edit import splice
from gateway.core.transport import HOP_BY_HOP, HeaderList
from gateway.engines.base import Outgoing, OutgoingRequest, Repair
from gateway.engines.poller import RunningEngine
from gateway.exchange import Exchange, Payload
from policies.types import Hints, value

FEWEST_USEFUL_TOKENS = 256
"""Below this an answer is cut at once; the engine's 400 serves an agent better, since it makes it compact."""
CHARS_PER_TOKEN = 3
"""A careful guess for a whole prompt, where the engine has not counted it."""
MOST_CHARS_PER_TOKEN = 8
"""No tokeniser of current models covers more over a whole prompt."""

# Engines quote what the client sent: a run of digits is looked at once, however long it is.
_LIMIT = re.compile(r"context length (?:is|of) (?:only )?(\d{1,9})(?!\d)")
_COUNTED = re.compile(
    r"(at least )?(?<!\d)(\d{1,9}) (?:input tokens|in the messages|in the prompt|tokens from the input)"
)


@dataclass(frozen=True, slots=True)
class Bound:
    """What to send instead of the client's bound."""

    tokens: int | None
    """None: send no bound, and the engine fills what is left of its context (chat and responses do)."""


def before_asking(asked_tokens: int, chars: int, max_model_len: int, may_omit: bool) -> Bound | None:
    """None: leave the bound as it is, since it may fit. `chars` is the length of the prompt."""
    if asked_tokens + chars // MOST_CHARS_PER_TOKEN < max_model_len:
        return None
    return _guessed(asked_tokens, chars, max_model_len, may_omit)


def after_refusal(message: str, asked_tokens: int, chars: int, may_omit: bool) -> Bound | None:
    """What to try after a 400 with this message. None: the 400 stands, since it is not about the output, or the
    prompt leaves no useful room.

    Engines count the prompt exactly, or stop counting as soon as it cannot fit, and then say "at least".
    """
    limit = _LIMIT.search(message)
    if limit is None or asked_tokens <= 0:
        return None
    counted = _COUNTED.search(message)
    if counted is not None and not counted[1]:
        return _useful(asked_tokens, int(limit[1]) - int(counted[2]))
    return _guessed(asked_tokens, chars, int(limit[1]), may_omit)


def _guessed(asked_tokens: int, chars: int, max_model_len: int, may_omit: bool) -> Bound | None:
    return Bound(None) if may_omit else _useful(asked_tokens, max_model_len - chars // CHARS_PER_TOKEN)


def _useful(asked_tokens: int, room_tokens: int) -> Bound | None:
    return Bound(room_tokens) if FEWEST_USEFUL_TOKENS <= room_tokens < asked_tokens else None


# ---- what is sent to an engine for one model call

_OURS = frozenset(("host", "authorization", "x-api-key", "x-request-id", "content-length", "accept-encoding"))
_NOT_SENT = _OURS | HOP_BY_HOP
_OUR_PREFIX = ("x-turngate-",)
_SESSION_PREFIXES = ("x-session-", "x-parent-session-", "x-opencode-", "x-codex-", "x-claude-code-", "x-dynamo-")
_SESSION_NAMES = frozenset(("session-id", "session_id", "thread-id"))

NOTHING = Outgoing()
THIRD_PARTY_KIND = "openai"
"""Session ids stay away from engines that need not be the operator's own."""


@value
class Call:
    """One request to an engine, ready to send."""

    method: str
    url: str
    headers: HeaderList
    body: bytes | None
    added: Outgoing = NOTHING
    """What the engine's file had us add; its 400s are read against this."""
    hides_usage: bool = False
    """We asked for streamed usage and the client did not."""


def turn_call(
    exchange: Exchange,
    payload: Payload,
    engine: RunningEngine,
    added: Outgoing,
    repair: Repair,
    bound: Bound | None,
) -> Call:
    """The call for a turn. Spliced into the body: hints, model name, usage, a bound on the output, and other words
    for what this engine would refuse."""
    body, dialect = payload.body, exchange.dialect
    put = {key: merged(ours, body[key]) if key in body else ours for key, ours in added.body.items()}
    put |= repair.body
    drop = set(added.drop)
    if payload.engine_model != payload.requested_model:
        put["model"] = payload.engine_model
    hides_usage = payload.wants_stream and not payload.wants_usage
    if hides_usage:
        put |= dialect.asking_for_usage(body)
    if bound is not None and (key := dialect.max_tokens_key(body)):
        if bound.tokens is None:
            drop.add(key)
        else:
            put[key] = bound.tokens
    return Call(
        "POST",
        url(engine, exchange),
        headers(exchange, engine, added),
        splice(payload.raw, body, put, drop) if put or drop else payload.raw,
        added,
        hides_usage,
    )


SALT = "cache_salt"
MAX_CLIENT_SALT_CHARS = 512
"""Engines take salts of 1,024 characters."""


def salted(exchange: Exchange, added: Outgoing) -> Outgoing:
    """Return what is added, with the tenant's salt. Within it a client's own salt tells its requests apart."""
    if not exchange.caller.cache_salt:
        return added
    own = (fields.text(exchange.payload.body, SALT) or "")[:MAX_CLIENT_SALT_CHARS]
    return replace(added, body={**added.body, SALT: exchange.caller.cache_salt + own})


def plain_call(exchange: Exchange, engine: RunningEngine) -> Call:
    """The call for a request that is no turn: its body, with the engine's name of the model, and its class where
    the engine's queue knows one."""
    request, payload = exchange.request, exchange.payload
    body = payload.body
    hints = Hints(urgency=max(-100, min(100, 10 * exchange.caller.priority_class)))
    asked = OutgoingRequest(request.path, body, hints, "", exchange.caller.may_prioritise, request.headers)
    added = engine.adapter.outgoing(asked, engine.abilities) if body else NOTHING
    put = dict(added.body)
    if payload.engine_model != payload.requested_model:
        put["model"] = payload.engine_model
    raw = splice(payload.raw, body, put, added.drop) if put or added.drop else payload.raw
    return Call(request.method, url(engine, exchange), headers(exchange, engine, added), raw or None, added)


def url(engine: RunningEngine, exchange: Exchange) -> str:
    query = exchange.request.query
    return engine.address.base_url + exchange.request.path + (f"?{query}" if query else "")


def headers(exchange: Exchange, engine: RunningEngine, added: Outgoing = NOTHING) -> list[tuple[str, str]]:
    """The client's own, less those that concern only its connection to us; then ours."""
    request = exchange.request
    hidden: tuple[str, ...] = _OUR_PREFIX
    gone = added.drop_headers.union([name.lower() for name, _ in added.headers])
    if engine.address.kind == THIRD_PARTY_KIND:
        gone, hidden = gone | _SESSION_NAMES, _OUR_PREFIX + _SESSION_PREFIXES
    kept = [
        pair
        for pair in (end_to_end(request.header_list) if "connection" in request.headers else request.header_list)
        if (name := pair[0].lower()) not in _NOT_SENT and name not in gone and not name.startswith(hidden)
    ]
    kept += [("Accept-Encoding", "identity"), *added.headers, ("X-Request-Id", exchange.request_id or exchange.id)]
    if engine.address.api_key:
        kept.append(("Authorization", f"Bearer {engine.address.api_key}"))
    return kept


def end_to_end(header_list: HeaderList) -> list[tuple[str, str]]:
    """Headers that travel on (RFC 9110, 7.6.1): not the hop-by-hop ones, nor those that `Connection` names."""
    kept = [pair for pair in header_list if pair[0].lower() not in HOP_BY_HOP]
    if len(kept) == len(header_list):
        return kept
    named = _tokens(value for name, value in header_list if name.lower() == "connection")
    return [pair for pair in kept if pair[0].lower() not in named]


def _tokens(values: Iterable[str]) -> set[str]:
    return {token.strip().lower() for value in values for token in value.split(",")}


def merged(ours: Any, client: Any) -> Any:
    """Two objects become one, in which the client's own keys win at every depth; otherwise ours replaces its."""
    if not (isinstance(ours, Mapping) and isinstance(client, Mapping)):
        return ours
    nested = {k: merged(ours[k], v) if isinstance(v, Mapping) and k in ours else v for k, v in client.items()}
    return {**ours, **nested}
