"""Laws of watching engines, over real connections to small servers."""

from __future__ import annotations

import asyncio

import orjson
import pytest

from gateway.engines.base import EngineAddress
from gateway.engines.doctor import health_row
from policies.types import NO_LIMITS, ReplicaLost, ReplicaReported
from tests.engines.watched_engine import NewEngine, Watched
from tests.path.faults import ENGINE, fault, faults


async def test_after_start_every_engine_that_answers_is_reported(watched: Watched, new_engine: NewEngine) -> None:
    monitor = await watched.start(new_engine("vllm-0.32"), new_engine("vllm-0.32-plain"))
    assert {fact.replica_id: fact for fact in watched.take_facts() if isinstance(fact, ReplicaReported)} == {
        "e0": ReplicaReported(
            "e0", frozenset({"tiny"}), 64000, None, 0, running=0, is_on_trial=False, limits=NO_LIMITS
        ),
        "e1": ReplicaReported(
            "e1", frozenset({"plain"}), 9600, None, 0, running=0, is_on_trial=False, limits=NO_LIMITS
        ),
    }
    assert [engine.is_up for engine in monitor.engines] == [True, True]
    assert monitor.engines[0].abilities.version == "0.32.0"


async def test_where_an_engine_publishes_its_kv_events_is_read_as_it_comes_up(
    watched: Watched, new_engine: NewEngine
) -> None:
    engine = new_engine("vllm-0.32")
    engine.pages["/kv_event_sources"] = '{"0": {"endpoint": "tcp://*:5557"}}'
    monitor = await watched.start(engine)
    assert [source.url for source in monitor.engines[0].kv_event_sources] == ["tcp://127.0.0.1:5557"]
    assert watched.num_came_up == 1


@pytest.mark.parametrize(
    ("release", "kind"), [("vllm-0.32", "vllm"), ("dynamo-1.6-one", "dynamo"), ("sglang-0.5.23", "sglang")]
)
async def test_an_engine_at_a_plain_address_is_of_the_kind_that_it_shows(
    release: str, kind: str, watched: Watched, new_engine: NewEngine
) -> None:
    monitor = await watched.start(new_engine(release), kind="http")
    (engine,) = monitor.engines
    named = {"kind": kind, "looks_like": ""}
    assert named == {"kind": engine.adapter.kind, "looks_like": engine.abilities.looks_like}
    assert health_row(engine)["kind"] == kind
    assert [pool.capacity_tokens is not None for pool in engine.report.pools] == [True]


async def test_an_engine_at_a_plain_address_that_shows_no_kind_is_a_plain_server(
    watched: Watched, new_engine: NewEngine
) -> None:
    engine = new_engine("vllm-0.32")
    engine.pages = {"/v1/models": '{"data":[{"id":"m","owned_by":"organization_owner"},7]}'}
    monitor = await watched.start(engine, kind="http")
    assert (monitor.engines[0].adapter.kind, monitor.engines[0].is_up) == ("http", True)


async def test_an_engine_that_is_not_up_is_waited_for(watched: Watched, new_engine: NewEngine) -> None:
    engine = new_engine("vllm-0.32")
    url = await engine.start()
    await engine.stop()
    monitor = await watched.start(EngineAddress("vllm", url, name="late"))
    (late,) = monitor.engines
    assert not late.is_up
    assert "does not accept connections" in late.problem
    await watched.ticks.next_poll()
    assert watched.take_facts() == []
    await engine.start()
    await watched.ticks.next_poll()
    assert [fact.replica_id for fact in watched.take_facts() if isinstance(fact, ReplicaReported)] == ["late"]
    assert late.is_up
    assert late.problem == ""


async def test_what_an_engine_counted_once_is_reported_once(watched: Watched, new_engine: NewEngine) -> None:
    engine = new_engine("sglang-0.5.23")
    await watched.start(engine, kind="sglang")
    watched.take_facts()
    seen = []
    for page in (engine.pages["/v1/loads"], engine.pages["/v1/loads"].replace("1795332850", "1795332851")):
        engine.pages["/v1/loads"] = page
        await watched.ticks.next_poll()
        seen += [fact.waiting for fact in watched.take_facts() if isinstance(fact, ReplicaReported)]
    assert seen == [None, 0]


async def test_an_engine_without_a_model_is_not_ready(watched: Watched, new_engine: NewEngine) -> None:
    engine = new_engine("dynamo-1.6-one")
    models = engine.pages["/v1/models"]
    engine.pages["/v1/models"] = '{"data":[]}'
    monitor = await watched.start(engine, kind="dynamo")
    assert monitor.engines[0].problem == "/v1/models lists no model yet"
    engine.pages["/v1/models"] = models
    await watched.ticks.next_poll()
    assert monitor.engines[0].is_up


async def test_a_failed_connection_takes_it_out_at_once_and_a_poll_brings_it_back(
    watched: Watched, new_engine: NewEngine
) -> None:
    monitor = await watched.start(new_engine("vllm-0.32"))
    (engine,) = monitor.engines
    watched.take_facts()
    monitor.failed(engine)
    monitor.failed(engine)
    assert watched.take_facts() == [ReplicaLost("e0")]
    await watched.ticks.next_poll()
    assert [type(fact) for fact in watched.take_facts()] == [ReplicaReported]


async def test_an_engine_is_not_taken_out_for_one_that_had_its_name(
    watched: Watched, new_engine: NewEngine
) -> None:
    monitor = await watched.start(new_engine("vllm-0.32"))
    (gone,) = monitor.engines
    monitor.remove_engine("e0")
    await monitor.add_engine(gone.address)
    watched.take_facts()
    monitor.failed(gone)
    assert watched.take_facts() == []


@fault(ENGINE, "a poll fails", "once: nothing; twice in a row: no turn until one works", faults("poll"))
async def test_one_failed_poll_is_a_hiccup_and_two_are_a_dead_engine(
    watched: Watched, new_engine: NewEngine
) -> None:
    engine = new_engine("vllm-0.32")
    await watched.start(engine)
    watched.take_facts()
    del engine.pages["/v1/models"]
    await watched.ticks.next_poll()
    assert watched.take_facts() == []
    await watched.ticks.next_poll()
    assert watched.take_facts() == [ReplicaLost("e0")]


async def test_a_dead_engine_is_asked_ever_more_rarely_up_to_a_bound(
    watched: Watched, new_engine: NewEngine
) -> None:
    engine = new_engine("vllm-0.32")
    await watched.start(engine)
    await engine.stop()
    for _ in range(5):
        await watched.ticks.next_poll()
    assert watched.ticks.delays_s == [1, 2, 4, 5, 5, 5]


async def test_the_workers_behind_a_frontend_are_replicas(watched: Watched, new_engine: NewEngine) -> None:
    monitor = await watched.start(new_engine("dynamo-1.6-four"), kind="dynamo")
    reports = [fact for fact in watched.take_facts() if isinstance(fact, ReplicaReported)]
    assert len({fact.replica_id for fact in reports}) == 4
    assert {(fact.capacity_tokens, fact.slots) for fact in reports} == {(40000, 64)}
    target = monitor.target("e0/3082979183884705254")
    assert (target.engine, target.pool) == (monitor.engines[0], "3082979183884705254")
    assert monitor.target("e0").pool == ""


async def test_a_worker_that_leaves_is_lost_alone(watched: Watched, new_engine: NewEngine) -> None:
    engine = new_engine("dynamo-1.6-four")
    await watched.start(engine, kind="dynamo")
    watched.take_facts()
    gone = "3082979183884705254"
    health = orjson.loads(engine.pages["/health"])
    health["instances"] = [row for row in health["instances"] if str(row["instance_id"]) != gone]
    engine.pages["/health"] = orjson.dumps(health).decode()
    await watched.ticks.next_poll()
    assert [fact for fact in watched.take_facts() if isinstance(fact, ReplicaLost)] == [ReplicaLost(f"e0/{gone}")]


async def test_a_page_that_stays_away_once_is_a_hiccup(watched: Watched, new_engine: NewEngine) -> None:
    engine = new_engine("dynamo-1.6-four")
    await watched.start(engine, kind="dynamo")
    watched.take_facts()
    health = engine.pages.pop("/health")
    await watched.ticks.next_poll()
    assert watched.take_facts() == []
    engine.pages["/health"] = health
    await watched.ticks.next_poll()
    assert [type(fact) for fact in watched.take_facts()] == [ReplicaReported] * 4


async def test_ranks_that_cannot_be_addressed_are_one_replica(watched: Watched, new_engine: NewEngine) -> None:
    engine = new_engine("vllm-0.32")
    engine.pages["/metrics"] += engine.pages["/metrics"].replace('engine="0"', 'engine="1"')
    engine.pages["/version"] = '{"version":"0.11.0"}'
    monitor = await watched.start(engine)
    [report] = watched.take_facts()
    assert isinstance(report, ReplicaReported)
    assert (report.replica_id, report.capacity_tokens, report.running, report.waiting) == ("e0", 128000, 0, 0)
    assert monitor.engines[0].abilities.num_pools == 2


async def test_a_page_that_an_engine_lacks_is_asked_for_once(watched: Watched, new_engine: NewEngine) -> None:
    engine = new_engine("vllm-0.32")
    await watched.start(engine, kind="sglang")
    await watched.ticks.next_poll()
    assert engine.gets.count("/v1/loads") == 1
    assert engine.gets.count("/v1/models") == 2


async def test_a_page_that_cannot_be_read_does_not_end_the_watch(watched: Watched, new_engine: NewEngine) -> None:
    engine = new_engine("vllm-0.32")
    await watched.start(engine, kind="tests.engines.watched_engine:Touchy")
    watched.take_facts()
    metrics = engine.pages["/metrics"]
    engine.pages["/metrics"] = "new in this release"
    await watched.ticks.next_poll()
    assert watched.take_facts() == []
    engine.pages["/metrics"] = metrics
    await watched.ticks.next_poll()
    assert [type(fact) for fact in watched.take_facts()] == [ReplicaReported]


async def test_a_field_that_a_version_refused_is_remembered_over_its_restart_and_not_longer(
    watched: Watched, new_engine: NewEngine
) -> None:
    engine = new_engine("vllm-0.32")
    monitor = await watched.start(engine)
    running = monitor.engines[0]
    running.abilities.refused_fields.add("priority")
    monitor.failed(running)
    await watched.ticks.next_poll()
    assert running.abilities.refused_fields == {"priority"}
    engine.pages["/version"] = '{"version":"0.33.0"}'
    monitor.failed(running)
    await watched.ticks.next_poll()
    assert running.abilities.refused_fields == set()


async def test_the_engines_key_is_sent(watched: Watched, new_engine: NewEngine) -> None:
    engine = new_engine("vllm-0.32")
    await watched.start(EngineAddress("vllm", await engine.start(), "secret", name="e"), probes=True)
    assert {headers["Authorization"] for _, headers, _ in engine.posts} == {"Bearer secret"}


async def test_hints_are_probed_once_by_the_second_poll_where_a_start_does_not_wait_for_them(
    watched: Watched, new_engine: NewEngine
) -> None:
    engine = new_engine("vllm-0.32")
    await watched.start(engine, probes=True, start_waits=False)
    assert not engine.posts
    await watched.ticks.next_poll()
    num_posts = len(engine.posts)
    assert num_posts > 0
    await watched.ticks.next_poll()
    assert len(engine.posts) == num_posts


async def test_stop_ends_every_task(watched: Watched, new_engine: NewEngine) -> None:
    monitor = await watched.start(new_engine("vllm-0.32"))
    await monitor.stop()
    assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("monitor")]
