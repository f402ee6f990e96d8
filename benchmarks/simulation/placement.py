"""Placements that are compared with that of the product, which weighs the cached prefix against load.

A configuration names them by import path: `policy.placement: benchmarks.simulation.placement:round_robin`.
"""

from __future__ import annotations

from collections.abc import Sequence

from policies.placement import Option, rendezvous_weight
from policies.types import FamilyId


def least_loaded(options: Sequence[Option], family_id: FamilyId, _ordinal: int) -> Option:
    """Fewest running turns."""
    return min(options, key=lambda option: (option.num_running, -rendezvous_weight(option.replica_id, family_id)))


def round_robin(options: Sequence[Option], _family_id: FamilyId, ordinal: int) -> Option:
    """Each replica in turn."""
    ordered = sorted(options, key=lambda option: option.replica_id)
    return ordered[ordinal % len(ordered)]
