from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.embedded.model import EngineModel, EngineSpec, ModelRequest, NeverFits, Step, Timing

SPEC = EngineSpec(num_blocks=100, block_tokens=4, max_num_seqs=8, max_batched_tokens=64)


def request(
    name: str, prompt_tokens: int = 16, output_tokens: int = 4, path: str | None = None, priority: int = 0
) -> ModelRequest:
    """A request whose blocks follow `path`: requests of one path agree as far as both are long."""
    chain = [hash((path or name, i)) for i in range((prompt_tokens + output_tokens) // SPEC.block_tokens)]
    return ModelRequest(name, chain, prompt_tokens, output_tokens, priority)


def with_own_answer(shared: ModelRequest) -> ModelRequest:
    num_prompt = shared.prompt_tokens // SPEC.block_tokens
    answer = [hash((shared.id, "answer", i)) for i in range(num_prompt, len(shared.block_hashes))]
    return replace(shared, block_hashes=[*shared.block_hashes[:num_prompt], *answer])


def run(model: EngineModel, horizon_s: float = 0.0) -> list[Step]:
    steps = []
    while step := model.step(horizon_s):
        steps.append(step)
    return steps


def order_of(model: EngineModel) -> list[str]:
    return [name for step in run(model) for name in step.finished]


def test_a_request_is_prefilled_then_decoded_one_token_per_iteration() -> None:
    model = EngineModel(SPEC)
    model.submit(request("a", output_tokens=3))
    first, second, third = run(model)
    assert (first.admitted, [p.id for p in first.prefilled], first.decoded) == (["a"], ["a"], [])
    assert (second.decoded, second.finished) == (["a"], [])
    assert (third.decoded, third.finished) == (["a"], ["a"])
    assert model.step() is None
    assert model.counters.generation_tokens == 3


def test_an_iteration_takes_the_sum_of_its_prefill_and_its_decodes() -> None:
    model = EngineModel(SPEC)
    model.submit(request("a"))
    model.step()
    model.submit(request("b", 20))
    step = model.step()
    assert step is not None
    assert step.duration_s == pytest.approx(Timing().prefill_s(20) + Timing().decode_s(16, 1))


def test_a_long_prompt_is_prefilled_in_chunks_beside_running_decodes() -> None:
    model = EngineModel(SPEC)
    model.submit(request("short", 4, 10))
    model.step()
    model.submit(request("long", 130, 1))
    steps = run(model)
    assert [bool(step.prefilled) for step in steps[:3]] == [False, False, True]
    assert all(step.decoded == ["short"] for step in steps[:3])


def test_the_next_turn_finds_prompt_and_answer_cached() -> None:
    model = EngineModel(SPEC)
    model.submit(request("turn 1", 16, 9, path="session"))
    run(model)
    model.submit(request("turn 2", 40, 1, path="session"))
    assert run(model)[0].prefilled[0].cached_tokens == 24


def test_the_last_prompt_token_is_always_computed() -> None:
    model = EngineModel(SPEC)
    for name in ("a", "b"):
        model.submit(request(name, 16, 1, path="same"))
        [step] = run(model)
    assert step.prefilled[0].cached_tokens == 12
    assert model.pool.num_used == 0


def test_siblings_that_arrive_together_compute_their_prefix_once() -> None:
    model = EngineModel(SPEC)
    for name in ("a", "b"):
        model.submit(request(name, 18, 1, path="same"))
    model.step()
    assert model.counters.computed_prompt_tokens == 18 + 2


def test_no_more_sequences_run_than_allowed() -> None:
    model = EngineModel(replace(SPEC, max_num_seqs=2))
    for i in range(5):
        model.submit(request(str(i), 4, 3))
    while model.step():
        assert model.num_running <= 2
    assert model.counters.finished == 5


def test_the_queue_is_first_come_first_served_whatever_the_priority() -> None:
    model = EngineModel(replace(SPEC, max_num_seqs=1))
    for name, priority in (("a", 0), ("b", 5), ("c", -5)):
        model.submit(request(name, priority=priority))
    assert order_of(model) == ["a", "b", "c"]


def test_with_priorities_the_lowest_number_goes_first_but_takes_no_slot_away() -> None:
    model = EngineModel(replace(SPEC, max_num_seqs=1, priority_scheduling=True))
    model.submit(request("running", priority=9))
    model.step()
    for name, priority in (("b", 5), ("c", -5), ("d", 5)):
        model.submit(request(name, priority=priority))
    assert order_of(model) == ["running", "c", "b", "d"]


def test_a_prompt_waits_until_all_of_it_fits() -> None:
    model = EngineModel(replace(SPEC, num_blocks=10))
    model.submit(request("a", 24, 8))
    model.submit(request("b", 24, 1))
    step = model.step()
    assert step is not None
    assert (step.admitted, model.num_waiting) == (["a"], 1)
    assert order_of(model) == ["a", "b"]
    assert model.counters.preemptions == 0


def test_what_can_never_fit_is_refused_at_once() -> None:
    model = EngineModel(replace(SPEC, num_blocks=10))
    with pytest.raises(NeverFits):
        model.submit(request("a", 30, 12))
    model.submit(request("b", 30, 11))  # the last token needs no room
    assert order_of(model) == ["b"]


@pytest.mark.parametrize(("priorities", "victim"), [((0, 0), "second"), ((9, 0), "first"), ((0, 9), "second")])
def test_when_blocks_run_out_the_least_urgent_then_the_youngest_is_recomputed(
    priorities: tuple[int, int], victim: str
) -> None:
    model = EngineModel(replace(SPEC, num_blocks=10, priority_scheduling=True))
    for name, priority in zip(("first", "second"), priorities, strict=True):
        model.submit(request(name, 16, 12, priority=priority))
    steps = run(model)
    assert {name for step in steps for name in step.preempted} == {victim}
    assert sorted(name for step in steps for name in step.finished) == ["first", "second"]
    assert model.counters.generation_tokens == 24
    resumed = [p for step in steps for p in step.prefilled if not p.is_first]
    assert [p.id for p in resumed] == [victim]
    assert model.counters.prompt_tokens == model.counters.prefix_queries_tokens == 32
    assert model.counters.computed_prompt_tokens > 32


def test_thrash_shows_as_recomputed_tokens() -> None:
    computed = []
    for num_blocks in (100, 20):
        model = EngineModel(replace(SPEC, num_blocks=num_blocks))
        for turn in range(1, 4):
            for session in "abcd":
                model.submit(request(f"{session}{turn}", 12 * turn, 4, path=session))
                run(model)
        computed.append(model.counters.computed_prompt_tokens)
    assert computed[1] > 1.5 * computed[0]


@pytest.mark.parametrize("num_steps", [0, 1, 2, 4])
def test_an_abort_in_any_phase_gives_everything_back(num_steps: int) -> None:
    model = EngineModel(SPEC)
    model.submit(request("a", 130, 8))
    for _ in range(num_steps):
        model.step()
    assert model.abort("a")
    assert not model.abort("a")
    assert (model.num_running, model.num_waiting, model.pool.num_used) == (0, 0, 0)
    assert model.step() is None


JOBS = st.lists(
    st.tuples(
        st.integers(1, 60), st.integers(1, 20), st.sampled_from("abc"), st.integers(-1, 1), st.integers(0, 9)
    ),
    min_size=1,
    max_size=12,
)
SPECS = st.builds(
    EngineSpec,
    num_blocks=st.integers(20, 45),
    block_tokens=st.just(4),
    max_num_seqs=st.integers(1, 8),
    max_batched_tokens=st.sampled_from([16, 64]),
    priority_scheduling=st.booleans(),
)


@settings(max_examples=200)
@given(spec=SPECS, jobs=JOBS, abort_at=st.dictionaries(st.integers(0, 11), st.integers(0, 20)))
def test_each_request_finishes_once_or_was_aborted_and_nothing_leaks(
    spec: EngineSpec, jobs: list[tuple[int, int, str, int, int]], abort_at: dict[int, int]
) -> None:
    model = EngineModel(spec)
    tokens: dict[str, int] = {}
    finished: list[str] = []
    aborted: set[str] = set()
    for iteration in range(3000):
        for i, (prompt, output, path, priority, arrives_at) in enumerate(jobs):
            if arrives_at == iteration:
                model.submit(request(str(i), prompt, output, path, priority))
            if abort_at.get(i) == iteration and model.abort(str(i)):
                aborted.add(str(i))
        step = model.step()
        if step is None and iteration > 20:
            break
        for prefilled in step.prefilled if step else ():
            tokens[prefilled.id] = tokens.get(prefilled.id, 0) + 1
            assert prefilled.cached_tokens < jobs[int(prefilled.id)][0]
            assert prefilled.cached_tokens % spec.block_tokens == 0
        for name in step.decoded if step else ():
            tokens[name] += 1
        finished += step.finished if step else []
        pool = model.pool
        assert min(pool.num_free, pool.num_idle, pool.num_used) >= 0
        assert pool.num_free + pool.num_idle + pool.num_used == spec.num_blocks
    assert sorted([*finished, *aborted]) == sorted(str(i) for i in range(len(jobs)))
    assert all(tokens[name] == jobs[int(name)][1] for name in finished)
    assert (model.num_running, model.num_waiting, model.pool.num_used) == (0, 0, 0)


def events(spec: EngineSpec, jobs: list[tuple[int, int, str, int, int]], merge: bool) -> list[tuple[float, str]]:
    """When each request gave its first token and ended, in virtual time; job[4] is its arrival in 0.1 s."""
    model, now = EngineModel(spec), 0.0
    log: list[tuple[float, str]] = []
    arrivals = sorted((job[4] / 10, i, job) for i, job in enumerate(jobs))
    while True:
        while arrivals and arrivals[0][0] <= now:
            _, i, job = arrivals.pop(0)
            model.submit(with_own_answer(request(str(i), *job[:4])))
        until = arrivals[0][0] - now if arrivals else 1e9
        step = model.step(until if merge else 0.0)
        if step is None and not arrivals:
            return log
        now = now + step.duration_s if step else arrivals[0][0]
        for name in [*(p.id for p in step.prefilled), *step.finished, *step.preempted] if step else ():
            log.append((round(now, 6), name))


@given(spec=SPECS, jobs=JOBS)
def test_iterations_run_as_one_change_no_event_and_no_time(
    spec: EngineSpec, jobs: list[tuple[int, int, str, int, int]]
) -> None:
    one_by_one, merged = events(spec, jobs, merge=False), events(spec, jobs, merge=True)
    assert [name for _, name in merged] == [name for _, name in one_by_one]
    assert [at for at, _ in merged] == pytest.approx([at for at, _ in one_by_one], abs=1e-5)
