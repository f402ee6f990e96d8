"""What an engine is sent: the client's bytes with keys spliced in, its headers, and an output bound that fits.

Clients send `max_tokens` for the model that they assume, not for the real one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from gateway.core import fields, response_ids
from gateway.core.fields import Json
from gateway.core.json_edit import spliced
from gateway.core.slices import LARGE_BYTES
from gateway.core.transport import HOP_BY_HOP, Body, HeaderList
from gateway.engines.base import (
    PLACING_HEADERS,
    PLACING_KEYS,
    PLACING_MEMBERS,
    PLACING_PREFIXES,
    Outgoing,
    OutgoingRequest,
    Repair,
)
from gateway.engines.poller import RunningEngine
from gateway.exchange import Exchange, Payload
from policies.types import Hints, Usage, value

FEWEST_USEFUL_TOKENS = 256
"""A lower bound would cut the answer at once. The engine's 400 makes an agent compact its history instead."""
CHARS_PER_TOKEN = 3
"""Low estimate for a prompt that the engine has not counted."""
MOST_CHARS_PER_TOKEN = 8
"""No tokeniser of a current model reaches more over a whole prompt."""

# Engines quote the client: the patterns read a run of digits once, however long it is.
_LIMIT = re.compile(r"context length (?:is|of) (?:only )?(\d{1,9})(?!\d)")
_COUNTED = re.compile(
    r"(at least )?(?<!\d)(\d{1,9}) (?:input tokens|in the messages|in the prompt|tokens from the input)"
)


@dataclass(frozen=True, slots=True)
class Bound:
    """The bound to send instead of the client's."""

    tokens: int | None
    """None: send no bound, so that the engine fills the rest of its context (chat and responses do)."""


def before_asking(wanted_tokens: int, chars: int, max_model_len: int, may_omit: bool) -> Bound | None:
    """Return a bound that fits; None: the client's may fit. `chars`: the length of the prompt."""
    if wanted_tokens + chars // MOST_CHARS_PER_TOKEN < max_model_len:
        return None
    return _guessed(wanted_tokens, chars, max_model_len, may_omit)


def after_refusal(message: str, wanted_tokens: int, chars: int, may_omit: bool) -> Bound | None:
    """Return a bound to try after a 400 with this message. None: the 400 stands, since it has another cause, or
    the prompt leaves no useful room.

    Engines count the prompt exactly, or stop counting as soon as it cannot fit, and then say "at least".
    """
    limit = _LIMIT.search(message)
    if limit is None or wanted_tokens <= 0:
        return None
    counted = _COUNTED.search(message)
    if counted is not None and not counted[1]:
        return _useful(wanted_tokens, int(limit[1]) - int(counted[2]))
    return _guessed(wanted_tokens, chars, int(limit[1]), may_omit)


def _guessed(wanted_tokens: int, chars: int, max_model_len: int, may_omit: bool) -> Bound | None:
    return Bound(None) if may_omit else _useful(wanted_tokens, max_model_len - chars // CHARS_PER_TOKEN)


def _useful(wanted_tokens: int, room_tokens: int) -> Bound | None:
    return Bound(room_tokens) if FEWEST_USEFUL_TOKENS <= room_tokens < wanted_tokens else None


# ---- the call

_REPLACED = frozenset(
    (
        *("host", "authorization", "x-api-key", "x-request-id", "content-length", "accept-encoding"),
        *("openai-organization", "openai-project"),  # of the client's own account
    )
)
_NOT_SENT = _REPLACED | HOP_BY_HOP
_NOT_SENT_UNENTITLED = _NOT_SENT | PLACING_HEADERS
_OWN_PREFIX = ("x-turngate-",)
_UNENTITLED_PREFIXES = (*_OWN_PREFIX, *PLACING_PREFIXES)
_SESSION_PREFIXES = ("x-session-", "x-parent-session-", "x-opencode-", "x-codex-", "x-claude-code-", "x-dynamo-")
_SESSION_NAMES = frozenset(("session-id", "session_id", "thread-id"))

NOTHING = Outgoing()
NO_BOUND = Usage()
MOST_UNKNOWN_TOKENS = 2**21
"""Context of a model that states none: the longest that is offered."""


@value
class Call:
    """One request to an engine, ready to send."""

    method: str
    url: str
    headers: HeaderList
    body: Body | None
    added: Outgoing = NOTHING
    """The fields that the adapter adds; the engine's 400s are read against them."""
    hides_usage: bool = False
    """Whether the gateway asked for streamed usage and the client did not."""
    most: Usage = NO_BOUND
    """The largest usage that is believed of its answer. None: any."""


def turn_call(
    exchange: Exchange,
    payload: Payload,
    engine: RunningEngine,
    added: Outgoing,
    repair: Repair,
    bound: Bound | None,
) -> Call:
    """Return the call for a turn. Spliced into the body are hints, model name, usage, a bound on the output, and
    the repair of fields that this engine would refuse."""
    body, dialect = payload.body, exchange.dialect
    put = own_claims(exchange, body)
    put |= {key: merged(own, put.get(key, body[key])) if key in body else own for key, own in added.body.items()}
    put |= repair.body
    drop = placing_keys(exchange, body) | added.drop
    if payload.engine_model != payload.requested_model:
        put["model"] = payload.engine_model
    hides_usage = payload.wants_stream and not payload.wants_usage
    if hides_usage:
        put |= dialect.asking_for_usage(body)
    if bound is not None:
        keys = dialect.max_tokens_keys(body)
        if bound.tokens is None:
            drop.update(keys)
        else:
            put |= dict.fromkeys(keys, bound.tokens)
    return Call(
        "POST",
        url(engine, exchange),
        headers(exchange, engine, added),
        _spliced(payload, put, drop),
        added,
        hides_usage,
        most_usage(exchange, engine.report.max_model_len.get(payload.engine_model)),
    )


def most_usage(exchange: Exchange, max_model_len: int | None) -> Usage:
    """Return the largest usage that a call can have: by the model's length, the client's bound on the output, and
    the prompts and answers of one call."""
    body, dialect = exchange.payload.body, exchange.dialect
    longest = max_model_len or MOST_UNKNOWN_TOKENS
    num_prompts, wanted = dialect.num_prompts(body), exchange.max_output_tokens
    output_tokens = min(longest, wanted) if wanted else longest
    return Usage(longest * num_prompts, None, output_tokens * num_prompts * dialect.num_answers(body))


def placing_keys(exchange: Exchange, body: Json) -> set[str]:
    """Return the keys by which a client without the right would choose its worker."""
    if exchange.caller.may_prioritise or PLACING_KEYS.isdisjoint(body):
        return set()
    found = set(PLACING_KEYS.intersection(body))
    exchange.note(f"dropped, as the key may not choose: {', '.join(sorted(found))}")
    return found


def own_claims(exchange: Exchange, body: Json) -> Json:
    """Return the keys that would choose a worker from within an object, or name another tenant's request, with the
    values that they may have instead."""
    caller, put = exchange.caller, dict[str, Any]()
    if not caller.may_prioritise:
        for key, members in PLACING_MEMBERS.items():
            if key in body and (kept := _without(body[key], members)) is not body[key]:
                exchange.note(f"{key}: dropped what the key may not choose")
                put[key] = kept
    for key in _REQUEST_IDS if caller.id else ():
        if key in body:
            put[key] = _scoped(body[key], caller.tenant)
    return put


_REQUEST_IDS = ("request_id", "rid")
"""Keys of a client's own id of a request, under which an engine may store the answer: vLLM's and SGLang's."""


def _scoped(given: Any, tenant: str) -> Any:
    if isinstance(given, list):
        return [response_ids.scoped(one, tenant) for one in given if isinstance(one, str)]
    return response_ids.scoped(given, tenant) if isinstance(given, str) else None


def _without(value: Any, members: frozenset[str]) -> Any:
    """Return an object without these members, at its top and in the objects there; itself where it has none."""
    if not isinstance(value, dict):
        return value
    inner = [one for one in value.values() if isinstance(one, dict)]
    if all(map(members.isdisjoint, [value, *inner])):
        return value
    return {
        key: {k: v for k, v in one.items() if k not in members} if isinstance(one, dict) else one
        for key, one in value.items()
        if key not in members
    }


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
    """Return the call for a request that is no turn: its body with the engine's name of the model, and its
    priority class where the engine's queue knows one."""
    request, payload = exchange.request, exchange.payload
    body = payload.body
    hints = Hints(urgency=max(-100, min(100, 10 * exchange.caller.priority_class)))
    outgoing = OutgoingRequest(request.path, body, hints, "", exchange.caller.may_prioritise, request.headers)
    added = engine.adapter.outgoing(outgoing, engine.abilities) if body else NOTHING
    put = {**own_claims(exchange, body), **added.body}
    if payload.engine_model != payload.requested_model:
        put["model"] = payload.engine_model
    drop = placing_keys(exchange, body) | added.drop
    sent = _spliced(payload, put, drop) or None
    return Call(request.method, url(engine, exchange), headers(exchange, engine, added), sent, added)


def _spliced(payload: Payload, put: Json, drop: set[str]) -> Body:
    if not (put or drop):
        return payload.raw
    parts = spliced(payload.raw, payload.body, put, drop, payload.places)
    return tuple(parts) if len(payload.raw) >= LARGE_BYTES else b"".join(parts)


def url(engine: RunningEngine, exchange: Exchange) -> str:
    query = exchange.request.query
    return engine.address.base_url + exchange.request.path + (f"?{query}" if query else "")


def headers(exchange: Exchange, engine: RunningEngine, added: Outgoing = NOTHING) -> list[tuple[str, str]]:
    """Return the client's headers, without those about its connection to the gateway, and the gateway's own."""
    request, is_entitled = exchange.request, exchange.caller.may_prioritise
    hidden: tuple[str, ...] = _OWN_PREFIX if is_entitled else _UNENTITLED_PREFIXES
    not_sent = _NOT_SENT if is_entitled else _NOT_SENT_UNENTITLED
    gone = added.drop_headers.union([name.lower() for name, _ in added.headers])
    if engine.adapter.hides_sessions:
        gone, hidden = gone | _SESSION_NAMES, hidden + _SESSION_PREFIXES
    kept = [
        pair
        for pair in (end_to_end(request.header_list) if "connection" in request.headers else request.header_list)
        if (name := pair[0].lower()) not in not_sent
        and name not in gone
        and not name.startswith(hidden)
        and not ("_" in name and _is_hidden(name.replace("_", "-"), not_sent, hidden))
    ]
    kept += [("Accept-Encoding", "identity"), *added.headers, ("X-Request-Id", exchange.engine_request_id)]
    if engine.address.api_key:
        kept.append(("Authorization", f"Bearer {engine.address.api_key}"))
    return kept


def _is_hidden(name: str, names: frozenset[str], prefixes: tuple[str, ...]) -> bool:
    """Whether a header is hidden that some servers take for one with dashes."""
    return name in names or name.startswith(prefixes)


def end_to_end(header_list: HeaderList) -> list[tuple[str, str]]:
    """Return headers without the hop-by-hop ones and those that `Connection` names (RFC 9110, 7.6.1)."""
    kept = [pair for pair in header_list if pair[0].lower() not in HOP_BY_HOP]
    if len(kept) == len(header_list):
        return kept
    named = _tokens(value for name, value in header_list if name.lower() == "connection")
    return [pair for pair in kept if pair[0].lower() not in named]


def _tokens(values: Iterable[str]) -> set[str]:
    return {token.strip().lower() for value in values for token in value.split(",")}


def merged(own: Any, client: Any) -> Any:
    """Return two objects as one, in which the client's keys win at every depth. Other values of the client's are
    replaced by the gateway's `own`."""
    if not (isinstance(own, Mapping) and isinstance(client, Mapping)):
        return own
    nested = {k: merged(own[k], v) if isinstance(v, Mapping) and k in own else v for k, v in client.items()}
    return {**own, **nested}
