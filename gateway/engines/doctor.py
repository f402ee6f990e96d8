"""A report on every engine, for `/health` and as text: its kind, the hints that it honours, and advice. Pure.

What an engine says of itself is shown with its invisible characters escaped.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gateway.core.fields import visible
from gateway.engines.base import CONVERSATIONS, Advice, PolledPool
from gateway.engines.kinds import EMBEDDED
from gateway.engines.poller import RunningEngine, counted_pools

_ORDER = {
    True: "system before tools",
    False: "tools before system",
    None: "not known, taken as system before tools",
}
_LABEL_CHARS = 16
_WHEN_DOWN = {
    "does not accept connections": "start it; or write the host and port at which this machine reaches it",
    "answered 401": "give the engine its key: engines: [{url: ..., api_key: env:NAME}]",
    "answered 403": "give the engine its key: engines: [{url: ..., api_key: env:NAME}]",
    "answered 404": "the address of its OpenAI-compatible server, without a path",
}
"""Remedies by a part of the problem's text."""
_RENTED = Advice(
    "it is rented, and tells nothing of its KV cache, which all its customers share: no session is held or placed"
    " for the cache's sake, and its own queue takes no order from here",
    "nothing to set: its prompt cache is used as offered, and as many calls are open as its throttling allows."
    " If it is your own server behind TLS and a key, name its kind: vllm+https://, sglang+https:// or dynamo+https://",
)


def health_row(engine: RunningEngine) -> dict[str, object]:
    """An engine in `/health`: its models and pools, the hints that it honours, and advice. Null: not known."""
    report, abilities = engine.report, engine.abilities
    return {
        "name": engine.name,
        "kind": engine.adapter.kind,
        "is_rented": engine.is_rented,
        "is_up": engine.is_up,
        "version": abilities.version,
        "models": report.models,
        "pools": [
            {"name": pool.name, "capacity_tokens": pool.capacity_tokens, "slots": pool.slots}
            for pool in report.pools
        ],
        "honours": {
            "priority": abilities.honours_priority,
            "pool_addressing": abilities.can_address_pools,
            "refused_fields": sorted(abilities.refused_fields),
        },
        "reports_cached_tokens": abilities.reports_cached_tokens,
        "renders_system_before_tools": abilities.system_before_tools,
        "advice": [{"problem": found.problem, "remedy": found.remedy} for found in advice_of(engine)],
    }


def advice_of(engine: RunningEngine) -> tuple[Advice, ...]:
    """What its operator can change; nothing while it is down, nor at the embedded one, which has no flags."""
    if not engine.is_up or engine.adapter.kind == EMBEDDED:
        return ()
    if engine.is_rented:
        return (_RENTED,)
    if engine.abilities.looks_like:  # other advice would be for the wrong kind
        return (_of_another_kind(engine.adapter.kind, engine.abilities.looks_like),)
    return tuple(engine.adapter.advice(engine.report, engine.abilities))


def _of_another_kind(kind: str, found: str) -> Advice:
    if found == "turngate":
        return Advice("it is a gateway like this one, and no engine", "the engine's own address")
    problem = f"its metrics are those of {found}: what is done for {found} is not done"
    return Advice(problem, f"{found}:// in its address, not {kind}://")


# ---- the text


def as_text(engines: Iterable[RunningEngine]) -> str:
    """A block per engine for people, advice last."""
    return "\n\n".join(map(_block, engines))


def _block(engine: RunningEngine) -> str:
    state = "up" if engine.is_up else f"DOWN: {engine.problem}"
    lines = [visible(f"{engine.name}  {engine.adapter.kind} {engine.abilities.version}".rstrip() + f"  {state}")]
    lines += [f"    try: {remedy}" for sign, remedy in _WHEN_DOWN.items() if sign in engine.problem]
    if engine.is_up:
        lines += [visible(f"  {label:<{_LABEL_CHARS}}{text}") for label, text in _facts(engine)]
        lines += [f"  ! {found.problem}\n    try: {found.remedy}" for found in advice_of(engine)]
    return "\n".join(lines)


def _facts(engine: RunningEngine) -> Iterator[tuple[str, str]]:
    report, abilities = engine.report, engine.abilities
    if engine.is_rented:
        yield "rented", "each token costs money: not probed, and polled every five minutes"
    yield "models", ", ".join(_model(name, report.max_model_len.get(name)) for name in report.models)
    for pool in report.pools:
        yield "KV pool", _pool(engine.replica_id(pool.name), pool)
    yield "serves", "not known" if abilities.paths is None else " ".join(sorted(CONVERSATIONS & abilities.paths))
    yield "priority", engine.adapter.priority_words[abilities.honours_priority]
    reports = abilities.reports_cached_tokens
    yield "cached tokens", {True: "reported", False: "not reported", None: "not known"}[reports]
    yield "tools", {True: "taken", False: "refused", None: "not known"}[abilities.takes_tools]
    yield "prompt order", _ORDER[abilities.system_before_tools]
    if engine.kv_event_sources:
        yield "KV events", _kv_events(engine)
    if abilities.refused_fields:
        yield "not sent", " ".join(sorted(abilities.refused_fields))


def _model(name: str, max_model_len: int | None) -> str:
    return name if max_model_len is None else f"{name} (context {max_model_len:,} tokens)"


def _pool(replica_id: str, pool: PolledPool) -> str:
    capacity = pool.capacity_tokens
    size = "size not known: admission learns from evictions" if capacity is None else f"{capacity:,} tokens"
    block, slots = pool.block_tokens, pool.slots
    parts = [size, f"blocks of {block}" if block else "", f"{slots} slots" if slots else ""]
    return f"{replica_id}: {', '.join(part for part in parts if part)}"


def _kv_events(engine: RunningEngine) -> str:
    heard = engine.kv_events
    return heard.problem or (
        f"{heard.num_batches} batches heard"
        if heard.num_batches
        else "none heard yet (an engine sends none while nothing new is cached)"
    )


# ---- the lines about its engines that a gateway prints at its start


def start_lines(engine: RunningEngine) -> Iterator[str]:
    """One line about an engine, and its advice."""
    if not engine.is_up:
        yield visible(f"{engine.name}: {engine.problem}; it is used as soon as it answers")
        return
    report, version = engine.report, engine.abilities.version
    sizes = [pool.capacity_tokens for pool in report.pools]
    size = f"{sum(filter(None, sizes)):,} tokens" if all(sizes) else "unknown size"
    kind = (
        f"{engine.adapter.kind} {version}".rstrip() if engine.adapter.kind != EMBEDDED else "a model of an engine"
    )
    served = ", ".join(report.models)
    yield visible(f"{engine.name}: {kind} serving {served}; {counted_pools(report)}, {size}")
    for advice in advice_of(engine):
        yield f"  {advice.problem}: {advice.remedy}"
