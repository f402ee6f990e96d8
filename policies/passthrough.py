"""No waiting at all: every turn goes to the engine as it comes."""

from __future__ import annotations

from policies.fifo import Fifo


class Passthrough(Fifo):
    """Placement only."""

    name = "passthrough"
    bounds_slots = False
