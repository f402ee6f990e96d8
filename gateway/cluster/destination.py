"""Which process of a cluster answers a request. The route table of the API states it for each route.

Every gateway loads this file; what a member does with a destination is in `router.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import TypeAlias

from gateway.core.fields import Json

Join: TypeAlias = Callable[[Sequence[Json]], Json]
"""Makes one page of those of several members; the first is that of the member that was asked."""


class Site(Enum):
    """One member or all of them."""

    LOCAL = auto()
    """The member that received the request."""
    SESSION = auto()
    """The member that schedules the session of a model call."""
    RESPONSE = auto()
    """The member that knows the replica of the stored response in the path."""
    FILES = auto()
    """The first worker of the gateway, unless all members share the store of files and batches."""
    METRICS = auto()
    """All workers of the gateway; their metrics are added up."""
    HEALTH = auto()
    """The member that received the request, which adds its view of the cluster."""
    ALL = auto()
    """All members; their pages are joined."""


@dataclass(frozen=True, slots=True)
class Destination:
    site: Site = Site.LOCAL
    join: Join | None = None
    """Given for Site.ALL."""


LOCAL = Destination()
