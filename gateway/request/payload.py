"""How many things one request may hold; how long it may be is checked while it is read."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from fnmatch import fnmatchcase

import orjson

from gateway.config.settings import Models, RequestLimits
from gateway.core.errors import Failure, Outcome, Refused
from gateway.core.fields import Json, excerpt
from gateway.engines.poller import RunningEngine


def too_many(body: Json, limits: RequestLimits) -> Failure | None:
    """The first list that is too long; None for an ordinary request."""
    for key, most, name in (
        ("messages", limits.messages, "messages"),
        ("input", limits.messages, "messages"),
        ("tools", limits.tools, "tools"),
    ):
        items = body.get(key)
        if isinstance(items, list) and len(items) > most:
            text = f"`{key}` has {len(items)} entries, and {most} are allowed (limits.{name})."
            return Failure(400, "invalid_request_error", text, param=key, code="too_many_items")
    return None


# --- Which engine model a name means, and the list that `/v1/models` shows.

MAX_NAME_CHARS = 2048
"""The longest names that are in use are those of Bedrock's inference profiles."""
_GLOB_CHARS = frozenset("*?[")


def engine_model(asked: str, models: Models, served: Collection[str]) -> str | None:
    """The name to send to the engine; None when nothing serves `asked`.

    In this order: 1. an alias or glob of the configuration, 2. a served name as it is, 3. the only served model.
    While nothing is served at all whatever can be a name goes through: the gate says what is wrong, and 503 may be
    retried.
    """
    for pattern, name in models.aliases.items():
        if pattern == asked or fnmatchcase(asked, pattern):
            return name
    if asked in served or (not served and len(asked) <= MAX_NAME_CHARS):
        return asked
    if models.answer_any_model and len(served) == 1:
        return next(iter(served))
    return None


def served_as(asked: str, models: Models, engines: Iterable[RunningEngine]) -> str:
    """`engine_model` of what these engines serve now. Raises Refused."""
    if not models.aliases:
        for engine in engines:
            if engine.is_up and asked in engine.report.models:
                return asked  # nearly every request
    served = {name for engine in engines if engine.is_up for name in engine.report.models}
    name = engine_model(asked, models, served)
    if name is None:
        text = f"The model {excerpt(asked)!r} does not exist here. Served: {', '.join(sorted(served))}."
        failure = Failure(404, "not_found_error", text, param="model", code="model_not_found")
        raise Refused(Outcome.NOT_FOUND, failure)
    return name


def listing(models: Models, max_model_len: Mapping[str, int | None]) -> bytes:
    """Body of `/v1/models`: what engines serve (name -> context length) and the aliases of it that are names."""
    rows = [_row(name, name, max_model_len) for name in sorted(max_model_len)]
    names = (name for name in _names(models.aliases) if models.aliases[name] in max_model_len)
    rows += [_row(alias, models.aliases[alias], max_model_len) for alias in names]
    return orjson.dumps({"object": "list", "data": rows})


def row(asked: str, models: Models, max_model_len: Mapping[str, int | None]) -> bytes | None:
    """Body of `/v1/models/{asked}`; None when nothing answers to that name."""
    root = engine_model(asked, models, max_model_len)
    return orjson.dumps(_row(asked, root, max_model_len)) if root in max_model_len else None


def _names(aliases: Iterable[str]) -> list[str]:
    return [alias for alias in aliases if not _GLOB_CHARS.intersection(alias)]


def _row(name: str, root: str | None, max_model_len: Mapping[str, int | None]) -> dict[str, object]:
    about: dict[str, object] = {"id": name, "object": "model", "created": 0, "owned_by": "turngate", "root": root}
    length = max_model_len.get(root or name)
    return about if length is None else about | {"max_model_len": length}
