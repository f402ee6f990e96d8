"""How many lines may be asked at once, from what the fleet looks like: less as soon as somebody waits."""

from __future__ import annotations

import math
from dataclasses import dataclass

from policies.view import FleetView

FREE_SHARE = 0.125
"""Of all slots: left to turns that come while lines run."""
FULL_SHARE = 0.9
"""Of a replica's ceiling: above it no line is added, so that an arriving session finds room."""
MOST_MORE = 16
"""Lines by which it grows at once, at most: that many may find out together that there is no room."""


@dataclass(frozen=True, slots=True)
class Load:
    """The fleet at one moment."""

    slots: int
    """Of healthy replicas whose cache has room."""
    used: int
    """Turns that hold one there, lines among them."""
    waiting: int
    """Turns at the gate, lines among them."""

    @staticmethod
    def of(view: FleetView) -> Load:
        roomy = [
            replica
            for replica in view.replicas
            if replica.is_healthy and replica.residency_tokens < FULL_SHARE * (replica.ceiling_tokens or math.inf)
        ]
        return Load(
            slots=sum(replica.assumed_slots for replica in roomy),
            used=sum(replica.slots_used for replica in roomy),
            waiting=sum(view.waiting.values()),
        )


class Pace:
    """Grows ever faster while nobody waits, and lets lines drain while somebody does.

    Law: never above `most`, and never below 1, so that lines trickle however busy the fleet is.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._step = 1
        self.size = 1

    def saw(self, load: Load, in_flight: int) -> None:
        """`in_flight`: lines that are being asked. Told a few times per second."""
        free = math.floor(load.slots * (1 - FREE_SHARE)) - max(load.used, min(in_flight, load.slots))
        if load.waiting or free < 0:
            self._step = 1
            self.size = max(1, min(self.size, in_flight) // 2)
        elif in_flight >= self.size:
            self.size = min(self._most, self.size + min(free, self._step))
            self._step = min(MOST_MORE, 2 * self._step)
