"""How much of each replica is whose: by demand, less a part that all have alike."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from policies.types import ReplicaId

EQUAL = 0.1
"""Shared alike, so that whoever begins to have work can begin with it."""


def shares(
    me: str, demands: Mapping[str, Mapping[ReplicaId, float]], replicas: Iterable[ReplicaId]
) -> dict[ReplicaId, float]:
    """What `me` may fill of each replica, between 0 and 1. `demands`: by member, of all members, in tokens that
    are resident or wait. Members that know the same demands have shares that add up to 1."""
    return {replica: _share(me, demands, replica) for replica in replicas}


def _share(me: str, demands: Mapping[str, Mapping[ReplicaId, float]], replica: ReplicaId) -> float:
    equal = 1 / len(demands)
    total = sum(demand.get(replica, 0.0) for demand in demands.values())
    return EQUAL * equal + (1 - EQUAL) * (demands[me].get(replica, 0.0) / total if total else equal)
