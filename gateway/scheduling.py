"""The Scheduler that a configuration asks for: its policy by name and its limits, and their record for the log."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import cast

from gateway import config, settings
from gateway.factlog import Header
from gateway.settings import Settings
from policies.admission import Limits
from policies.fifo import Fifo
from policies.passthrough import Passthrough
from policies.place import Place, by_load, by_prefix, round_robin
from policies.policy import Policy
from policies.turns import Turns

PLACES: dict[str, Place] = {"prefix": by_prefix, "least_loaded": by_load, "round_robin": round_robin}
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
        return POLICIES[section.name](PLACES[section.placement])
    module, colon, name = section.name.partition(":")
    if not colon:
        known = ", ".join(POLICIES)
        meant = config.did_you_mean(section.name, POLICIES)
        raise config.ConfigError(f"policy.name {section.name!r} is none of {known}, nor a module:Name{meant}")
    try:
        return cast(Policy, getattr(import_module(module), name)(**section.options))
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise config.ConfigError(f"policy.name {section.name!r}: {error}") from None
