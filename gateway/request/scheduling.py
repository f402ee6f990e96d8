"""The Scheduler that a configuration asks for: its policy by name and its limits, and their record for the log."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, cast

from gateway.config import loading, settings
from gateway.config.settings import Settings
from gateway.core.errors import ConfigError
from gateway.telemetry.factlog import Header
from policies.admission import Limits
from policies.fifo import Fifo
from policies.passthrough import Passthrough
from policies.placement import Place, by_prefix
from policies.policy import Policy
from policies.turns import Turns

POLICIES: dict[str, Callable[[Place], Policy]] = {"turns": Turns, "fifo": Fifo, "passthrough": Passthrough}


def limits_of(settings: Settings) -> Limits:
    """What holds for every policy."""
    return Limits(
        ceiling=settings.policy.ceiling,
        price=settings.policy.price,
        hold_bound_s=settings.policy.hold_bound_s,
        max_queue=settings.limits.queue_turns,
        max_sessions=settings.identity.max_sessions,
        warms_up=settings.policy.warm_up_bytes > 0,
        sub_agents_return=settings.policy.sub_agents_return,
    )


def recorded(settings: Settings) -> Header:
    """What `limits_of` and `policy_of` read, for the log of facts."""
    sections = ("policy", "limits", "identity")
    return Header({name: getattr(settings, name).model_dump(mode="json", exclude={"secret"}) for name in sections})


def policy_of(section: settings.Policy) -> Policy:
    """The policy of a short name, or of an import path `package.module:Name`. Raises ConfigError."""
    if section.name in POLICIES:
        return POLICIES[section.name](_place_of(section.placement))
    if ":" not in section.name:
        known = ", ".join(POLICIES)
        meant = loading.did_you_mean(section.name, POLICIES)
        raise ConfigError(f"policy.name {section.name!r} is none of {known}, nor a module:Name{meant}")
    try:
        return cast(Policy, _imported(section.name)(**section.options))
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise ConfigError(f"policy.name {section.name!r}: {error}") from None


def _place_of(placement: str) -> Place:
    if placement == "prefix":
        return by_prefix
    try:
        return cast(Place, _imported(placement))
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"policy.placement {placement!r}: {error}") from None


def _imported(path: str) -> Any:
    module, _, name = path.partition(":")
    return getattr(import_module(module), name)
