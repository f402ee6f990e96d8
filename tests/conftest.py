"""What holds for all tests: no property fails because a machine is slow, or on another example than yesterday."""

from __future__ import annotations

import gc

from hypothesis import HealthCheck, settings

settings.register_profile(
    "turngate", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("turngate")


def pytest_collection_finish() -> None:
    """Half a million objects that all tests share are left out of collections: they took a tenth of the time."""
    gc.collect()
    gc.freeze()
