"""What holds for all tests: no property fails because a machine is slow, or on another example than yesterday."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile(
    "turngate", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("turngate")
