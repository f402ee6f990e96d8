"""What the body of a request asks for: its JSON, bounds on its lists, and the engine model that its name means."""

from __future__ import annotations

from codecs import BOM_UTF8
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any

import orjson

from gateway.access.keys import Caller, may_use, model_not_allowed, says_one_model
from gateway.config.settings import Models, RequestLimits
from gateway.core import fields, pieces, values
from gateway.core.errors import Failure, Outcome, Refused
from gateway.core.fields import Json, excerpt
from gateway.core.json_edit import out_of_bounds
from gateway.core.pieces import RawParts
from gateway.core.slices import LARGE_BYTES, Steps, finished, freed
from gateway.core.transport import BodyTooLarge, Request
from gateway.dialects.base import Dialect
from gateway.engines.poller import RunningEngine
from gateway.exchange import Payload
from gateway.request.incoming_bodies import IncomingBodies
from gateway.request.parsed_beginnings import ParsedBeginnings


async def read_body(request: Request, limits: RequestLimits, bodies: IncomingBodies, key: str) -> bytes:
    """Return the bytes of a body, without the mark that some editors begin a text with (RFC 8259, 8.1). `key`: the
    name of the caller's key. Raises Refused."""
    most_bytes = limits.body_bytes
    try:
        raw = await bodies.read(request, most_bytes, limits.incoming_bytes, key)
        return raw.removeprefix(BOM_UTF8)
    except BodyTooLarge:
        text = f"The body is longer than {limits.body_bytes} bytes (limits.body_bytes)."
        raise Refused(Outcome.BAD_REQUEST, Failure(413, "invalid_request_error", text)) from None


def _counted(raw: bytes, limits: RequestLimits) -> Steps[None]:
    """Count the values of a body before it is parsed. Raises Refused."""
    for num in values.counted(raw):
        if num > limits.values:
            text = f"The body has more than {limits.values} values (limits.values)."
            failure = Failure(400, "invalid_request_error", text, code="too_many_values")
            raise Refused(Outcome.BAD_REQUEST, failure)
        yield


def parse_body(
    raw: bytes, dialect: Dialect, limits: RequestLimits, tenant: str, beginnings: ParsedBeginnings
) -> tuple[Payload, RawParts | None]:
    """Return what a body says that is read in one step, without an engine model, and fingerprints of its parts
    where they are known. Raises Refused."""
    if values.may_be_more(raw, limits.values, is_seen_sparse=len(raw) >= LARGE_BYTES):
        finished(_counted(raw, limits))
    parts = None
    try:
        if dialect.is_item_a_message:
            body, parts = beginnings.loads(raw, tenant)
        else:
            body = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise _not_json(f"{error.msg} (line {error.lineno}, column {error.colno})") from None
    return _payload(raw, body, dialect, limits), parts


def parse_in_steps(
    raw: bytes, dialect: Dialect, limits: RequestLimits
) -> Steps[tuple[Payload, pieces.Cut | None]]:
    """As `parse_body`, of a large body: also return its cut. Raises Refused."""
    if values.may_be_more(raw, limits.values):
        yield from _counted(raw, limits)
    try:
        body, cut = yield from pieces.parsed(raw)
    except pieces.OutOfBounds as error:
        raise out_of_bounds(error) from None
    except pieces.NotJson as error:
        raise _not_json(str(error)) from None
    try:
        payload = _payload(raw, body, dialect, limits)
        return (payload if cut is None else replace(payload, places=cut.places)), cut
    except Refused as refused:
        refused.__traceback__ = None  # its frames hold the body
        steps, body = freed([body]), None
        yield from steps
        raise


def _not_json(what: str) -> Refused:
    text = f"The body is not JSON: {what}."
    return Refused(Outcome.BAD_REQUEST, Failure(400, "invalid_request_error", text))


def _payload(raw: bytes, body: object, dialect: Dialect, limits: RequestLimits) -> Payload:
    if not isinstance(body, dict):
        text = f"The body must be a JSON object, not {type(body).__name__}."
        raise Refused(Outcome.BAD_REQUEST, Failure(400, "invalid_request_error", text))
    if len(body) > pieces.MOST_KEYS:
        raise out_of_bounds(pieces.OutOfBounds(f"it has more than {pieces.MOST_KEYS} keys"))
    failure = dialect.check(body)
    # An entry takes two bytes at least.
    if failure is None and dialect.is_conversation and len(raw) > 2 * min(limits.messages, limits.tools):
        failure = too_many(body, limits)
    if failure is not None:
        raise Refused(Outcome.BAD_REQUEST, failure)
    wants_stream = fields.flag(body, "stream")
    wants_usage = wants_stream and dialect.wants_usage(body)
    return Payload(raw, body, fields.text(body, "model") or "", "", wants_stream, wants_usage)


def permitted(payload: Payload, caller: Caller) -> Payload:
    """Return the payload such that it names one model, which its caller may use, and no other. Raises Refused."""
    if not may_use(caller.models, payload.engine_model):
        raise model_not_allowed(caller, payload.requested_model)
    if (odd := next(filter(_is_odd_model_key, payload.body), None)) is not None:
        text = f"Write `{excerpt(odd)}` in lower case."
        failure = Failure(400, "invalid_request_error", text, param=excerpt(odd))
        raise Refused(Outcome.BAD_REQUEST, failure)
    chosen = {key: payload.body[key] for key in MODEL_KEYS if key in payload.body}
    for key, names in chosen.items():
        for name in names if isinstance(names, list) else [names]:
            if name is not None and not (isinstance(name, str) and may_use(caller.models, name)):
                raise model_not_allowed(caller, name if isinstance(name, str) else "", key)
    if chosen:
        payload = payload.with_keys(**chosen)  # a key that is written twice has one value for every reader
    return payload if says_one_model(payload.raw) else payload.with_keys(model=payload.requested_model)


MODEL_KEYS = ("models", "lora_path")
"""Keys beside `model` that choose what answers: OpenRouter's list of substitutes, and SGLang's adapters, which
may be null."""


def _is_odd_model_key(key: str) -> bool:
    """Whether a key names a model to a server that reads keys in any case, as those in Go do."""
    folded = key.casefold()
    return folded != key and (folded == "model" or folded in MODEL_KEYS)


MOST_LISTED_PROMPTS = 65_536
"""Of one request."""


def too_many(body: Json, limits: RequestLimits) -> Failure | None:
    """Return the failure of the first list that is too long; None for an ordinary request."""
    for key, most, name in (
        ("messages", limits.messages, "messages"),
        ("input", limits.messages, "messages"),
        ("tools", limits.tools, "tools"),
        ("functions", limits.tools, "tools"),
    ):
        items = body.get(key)
        if isinstance(items, list) and len(items) > most:
            return _too_long(key, items, f"{most} are allowed (limits.{name})")
    prompts = body.get("prompt")
    if isinstance(prompts, list) and len(prompts) > MOST_LISTED_PROMPTS and not isinstance(prompts[0], int):
        return _too_long("prompt", prompts, f"{MOST_LISTED_PROMPTS} are allowed")
    return None


def _too_long(key: str, items: Sequence[Any], allowed: str) -> Failure:
    text = f"`{key}` has {len(items)} entries, and {allowed}."
    return Failure(400, "invalid_request_error", text, param=key, code="too_many_items")


# ---- engine models

MAX_NAME_CHARS = 2048
"""The longest names that are in use are those of Bedrock's inference profiles."""
_GLOB_CHARS = frozenset("*?[")


def engine_model(requested: str, models: Models, served: Collection[str]) -> str | None:
    """Return the name to send to the engine; None when no engine serves `requested`.

    In this order: 1. an alias or glob of the configuration, 2. a served name as it is, 3. the only served model.
    While no model is served at all, each possible name goes through: the gate refuses it with 503, which clients
    retry.
    """
    for pattern, name in models.aliases.items():
        if pattern == requested or fnmatchcase(requested, pattern):
            return name
    if requested in served or (not served and len(requested) <= MAX_NAME_CHARS):
        return requested
    if models.answer_any_model and len(served) == 1:
        return next(iter(served))
    return None


def served_as(requested: str, models: Models, engines: Sequence[RunningEngine]) -> str:
    """Return `engine_model` of what these engines serve now. Raises Refused."""
    if not models.aliases:
        for engine in engines:
            if engine.is_up and requested in engine.report.models:
                return requested  # nearly every request
    # A name of an engine that is down stays its name: another model may not answer to it meanwhile.
    is_any_up = any(engine.is_up for engine in engines)
    served = {name for engine in engines if is_any_up for name in engine.report.models}
    name = engine_model(requested, models, served)
    if name is None:
        text = f"The model {excerpt(requested)!r} does not exist here. Served: {', '.join(sorted(served))}."
        failure = Failure(404, "not_found_error", text, param="model", code="model_not_found")
        raise Refused(Outcome.NOT_FOUND, failure)
    return name


def listing(models: Models, max_model_len: Mapping[str, int | None]) -> bytes:
    """Return the body of `/v1/models`: served models (name -> context length) and their aliases that are names."""
    rows = [_row(name, name, max_model_len) for name in sorted(max_model_len)]
    names = (name for name in _names(models.aliases) if models.aliases[name] in max_model_len)
    rows += [_row(alias, models.aliases[alias], max_model_len) for alias in names]
    return orjson.dumps({"object": "list", "data": rows})


def row(requested: str, models: Models, max_model_len: Mapping[str, int | None]) -> bytes | None:
    """Return the body of `/v1/models/{requested}`; None when no model has that name."""
    root = engine_model(requested, models, max_model_len)
    return orjson.dumps(_row(requested, root, max_model_len)) if root in max_model_len else None


def _names(aliases: Iterable[str]) -> list[str]:
    return [alias for alias in aliases if not _GLOB_CHARS.intersection(alias)]


def _row(name: str, root: str | None, max_model_len: Mapping[str, int | None]) -> dict[str, object]:
    about: dict[str, object] = {"id": name, "object": "model", "created": 0, "owned_by": "turngate", "root": root}
    length = max_model_len.get(root or name)
    return about if length is None else about | {"max_model_len": length}
