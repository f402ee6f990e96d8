"""Laws of engines that fail while they are watched: circuits, pages that go, restarts, and other models."""

from __future__ import annotations

import orjson

from gateway.core.errors import EngineFault
from gateway.engines.base import EngineAddress
from gateway.engines.breaker import USUAL, BreakerState
from gateway.engines.monitor import Monitor
from policies.types import CacheLost, ReplicaLost, ReplicaReported
from tests.engines.watched_engine import NewEngine, Watched
from tests.path.faults import ENGINE, fault, faults

WORKER = "e0/3082979183884705254"


async def four_workers(watched: Watched, new_engine: NewEngine) -> Monitor:
    monitor = await watched.start(new_engine("dynamo-1.6-four"), kind="dynamo")
    watched.take_facts()
    return monitor


def on_trial(watched: Watched) -> dict[str, bool | None]:
    return {
        fact.replica_id: fact.is_on_trial for fact in watched.take_facts() if isinstance(fact, ReplicaReported)
    }


@fault(ENGINE, "its circuit is open", "no turn for 5 s and more; one call on trial; then all", faults("opened"))
async def test_a_replica_whose_calls_fail_leaves_alone_has_a_trial_and_comes_back(
    watched: Watched, new_engine: NewEngine
) -> None:
    monitor = await four_workers(watched, new_engine)
    for _ in range(USUAL.failures):
        monitor.erred(WORKER)
    assert watched.take_facts() == [ReplicaLost(WORKER)]
    assert watched.faults == [EngineFault.OPENED]
    await watched.ticks.next_poll()
    assert WORKER not in on_trial(watched)
    watched.now += USUAL.open_s
    await watched.ticks.next_poll()
    assert on_trial(watched)[WORKER] is True
    monitor.worked(WORKER)
    assert on_trial(watched)[WORKER] is False


async def test_a_trial_that_fails_opens_the_circuit_again(watched: Watched, new_engine: NewEngine) -> None:
    monitor = await four_workers(watched, new_engine)
    for _ in range(USUAL.failures):
        monitor.erred(WORKER)
    watched.now += USUAL.open_s
    watched.take_facts()
    monitor.erred(WORKER)
    assert watched.take_facts() == [ReplicaLost(WORKER)]
    assert monitor.state(WORKER) is BreakerState.OPEN


@fault(ENGINE, "the last of its model fails call after call", "it gets calls nevertheless", faults("status"))
async def test_the_last_replica_of_a_model_is_asked_however_it_fails(
    watched: Watched, new_engine: NewEngine
) -> None:
    monitor = await watched.start(new_engine("vllm-0.32"), new_engine("vllm-0.32-plain"))
    watched.take_facts()
    for _ in range(10 * USUAL.failures):
        monitor.erred("e0")
    assert watched.take_facts() == []


@fault(ENGINE, "its metrics are gone", "it stays up with its last metrics", faults("page"))
async def test_an_engine_whose_metrics_go_stays_up_as_it_was(watched: Watched, new_engine: NewEngine) -> None:
    engine = new_engine("vllm-0.32")
    monitor = await watched.start(engine)
    watched.take_facts()
    metrics = engine.pages.pop("/metrics")
    for _ in range(5):
        await watched.ticks.next_poll()
    assert watched.take_facts() == []
    assert monitor.engines[0].is_up
    assert watched.faults == [EngineFault.PAGE] * 5
    engine.pages["/metrics"] = metrics
    await watched.ticks.next_poll()
    assert [type(fact) for fact in watched.take_facts()] == [ReplicaReported]


@fault(ENGINE, "restarted between two polls", "its cached prefixes are forgotten", faults("restarted"))
async def test_a_restart_between_two_polls_empties_its_cache(watched: Watched, new_engine: NewEngine) -> None:
    engine = new_engine("vllm-0.32")
    await watched.start(engine)
    watched.take_facts()
    started_at = "process_start_time_seconds "
    engine.pages["/metrics"] = engine.pages["/metrics"].replace(started_at, started_at + "1")
    await watched.ticks.next_poll()
    assert watched.take_facts()[0] == CacheLost("e0", None)
    assert watched.faults == [EngineFault.RESTARTED]


@fault(ENGINE, "lists another model", "turns go to replicas that serve their model", faults("models"))
async def test_an_engine_that_serves_another_model_is_reported_as_such(
    watched: Watched, new_engine: NewEngine
) -> None:
    engine = new_engine("vllm-0.32")
    await watched.start(engine)
    watched.take_facts()
    engine.pages["/v1/models"] = orjson.dumps({"data": [{"id": "other"}]}).decode()
    await watched.ticks.next_poll()
    (report,) = (fact for fact in watched.take_facts() if isinstance(fact, ReplicaReported))
    assert report.models == frozenset({"other"})
    assert watched.faults == [EngineFault.MODELS]


async def test_engines_come_and_go_while_others_stay(watched: Watched, new_engine: NewEngine) -> None:
    monitor = await watched.start(new_engine("vllm-0.32"))
    watched.take_facts()
    await monitor.add_engine(EngineAddress("vllm", await new_engine("vllm-0.32-plain").start(), name="late"))
    assert [fact.replica_id for fact in watched.take_facts() if isinstance(fact, ReplicaReported)] == ["late"]
    monitor.remove_engine("e0")
    assert watched.take_facts() == [ReplicaLost("e0")]
    assert [engine.name for engine in monitor.engines] == ["late"]
    assert monitor.target("e0").engine.name == "e0"
