"""Laws of what stands before the engines when no gateway does."""

from benchmarks.simulation.router import ROUTED, KvRouter, Ungated
from benchmarks.simulation.simulator import Simulation, World
from benchmarks.simulation.workloads import AgentRun, ModelCall, Text, plain
from gateway.cli.demo_fleet import FleetShape
from gateway.embedded.model import EngineModel, EngineSpec, ModelRequest
from policies.types import Arrived, Dispatch, Tick, Turn

BLOCK_TOKENS = 16
MODELS = ("r0", "r1")


def models_of(known: dict[str, range]) -> dict[str, EngineModel]:
    """Idle engines that have computed those blocks."""
    models = {name: EngineModel(EngineSpec(100)) for name in MODELS}
    for name, blocks in known.items():
        models[name].submit(ModelRequest("earlier", blocks, len(blocks) * BLOCK_TOKENS, 1))
        while models[name].step() is not None:
            pass
    return models


def test_call_goes_where_its_prompt_is_cached() -> None:
    router = KvRouter(models_of({"r1": range(10)}))
    assert router.place("a", range(12), 200) == "r1"
    assert router.place("b", range(50, 62), 200) == "r0"


def test_cached_prefix_is_left_for_an_engine_with_less_to_do() -> None:
    router = KvRouter(models_of({"r1": range(10)}))
    assert router.place("a", range(12), 200) == "r1"
    assert router.place("b", [*range(10), *range(50, 60)], 330) == "r1"
    assert router.place("c", [*range(10), *range(70, 80)], 330) == "r0"


def test_prefill_counts_until_the_first_token_and_blocks_until_the_end() -> None:
    router = KvRouter(models_of({}))
    assert router.place("a", range(20), 320) == "r0"
    assert router.place("b", range(100, 130), 480) == "r1"
    router.prefilled("b")
    assert router.place("c", range(200, 201), 16) == "r1"
    router.ended("a")
    assert router.place("d", range(300, 301), 16) == "r0"


def test_everything_is_dispatched_at_once() -> None:
    turn = Turn("t", "s", "family", "tenant", "model", 0.0, (), 100)
    [dispatch], wake_at = Ungated().tell(Arrived(turn), 1.0)
    assert isinstance(dispatch, Dispatch)
    assert (dispatch.turn_id, dispatch.replica_id, wake_at) == ("t", ROUTED, None)
    assert Ungated().tell(Tick(), 2.0) == ([], None)


def test_fleet_spreads_over_the_engines_and_a_lone_session_stays() -> None:
    world = World(EngineSpec(900), num_replicas=4)
    fleet = Simulation(Ungated(), world).run(plain(FleetShape(40), 1))
    assert {turn.replica_id for turn in fleet.turns} == {"r0", "r1", "r2", "r3"}
    text = Text((500, "family"), (2_000, "s"))
    calls = tuple(ModelCall(text, prompt_tokens, 50) for prompt_tokens in (1_000, 1_300, 1_600))
    lone = Simulation(Ungated(), world).run([AgentRun("s", "family", 0.0, calls)])
    assert len({turn.replica_id for turn in lone.turns}) == 1
