"""The policy and the placement that a configuration names; and the log line of a gate that opens."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from gateway.config.settings import Policy, Settings
from gateway.core.errors import ConfigError
from gateway.request.gate import Gate, limits_of, policy_of
from policies.admission import Limits
from policies.fifo import Passthrough
from policies.placement import Option
from policies.scheduler import Scheduler
from policies.types import Decision, Fact, Switched, Tick

OPTIONS = [Option(name, 0, 0, 0, 8, False) for name in "ab"]


def test_a_placement_is_given_by_its_import_path() -> None:
    policy = policy_of(Policy(placement="benchmarks.simulation.placement:round_robin"))
    assert [policy.place(OPTIONS, "f", n).replica_id for n in range(4)] == ["a", "b", "a", "b"]


@pytest.mark.parametrize("name", ["least_loaded", "round_robin"])
def test_a_placement_that_left_the_product_says_where_it_is(name: str) -> None:
    with pytest.raises(ValidationError, match=f"{name} is now benchmarks.simulation.placement:{name}"):
        Policy(placement=name)


def test_an_unknown_placement_is_refused_with_what_to_write() -> None:
    with pytest.raises(ValidationError, match=r"use prefix, or the import path"):
        Policy(placement="prefx")


@pytest.mark.parametrize("path", ["no_such_module:name", "policies.policy:no_such_name", ":x", "policies.policy:"])
def test_a_placement_that_cannot_be_imported_is_a_fault_of_the_configuration(path: str) -> None:
    with pytest.raises(ConfigError, match=r"policy.placement"):
        policy_of(Policy(placement=path))


class OneSwitch(Scheduler):
    """Announces that the gate of a replica opens, whatever happens."""

    def tell(self, fact: Fact, now: float) -> tuple[list[Decision], float | None]:
        return [Switched("r", True, 12.4)], None


def test_a_gate_that_opens_is_logged_with_its_reason_and_its_net(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"):
        Gate(OneSwitch(Passthrough(), Limits()), lambda: 0.0).tell(Tick())
    assert caplog.messages == [
        "the gate of r opens: all sessions together are faster than those that fit; net so far +12 s"
    ]


@pytest.mark.parametrize("key", ["price", "warm_up_bytes"])
def test_a_key_that_lost_its_meaning_is_accepted_with_a_warning(
    key: str, caplog: pytest.LogCaptureFixture
) -> None:
    limits_of(Settings())
    assert not caplog.records
    limits_of(Settings.model_validate({"policy": {key: 1}}))
    [record] = caplog.records
    assert f"policy.{key} has no effect" in record.getMessage()
