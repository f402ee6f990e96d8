"""A continuous-batching engine as a pure model: requests in, iterations out; no clock, no I/O.

The cost of one iteration:

    prefill   8 ms + 0.13 ms per uncached prompt token of the iteration
    decode   15 ms + 0.00011 ms per KV token that is read + 0.04 ms per sequence

This is a plausible linear profile of a 32B-class model on one 80 GB GPU. Dynamo's mocker gets the same one as a
timing table, so both engines agree. It is not measured, so a result that rests on it is the result of a model. An
iteration that prefills and decodes takes the sum of both, which is conservative: real kernels overlap.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass, field

from gateway.embedded.kv import BlockHolding, BlockPool


@dataclass(frozen=True, slots=True)
class Timing:
    """A linear profile; all values in seconds."""

    prefill_base_s: float = 0.008
    prefill_token_s: float = 0.000_13
    decode_base_s: float = 0.015
    decode_kv_token_s: float = 0.000_000_11
    decode_sequence_s: float = 0.000_04

    def prefill_s(self, num_tokens: int) -> float:
        """Return the time to compute `num_tokens` prompt tokens in one iteration. 0 for none."""
        return self.prefill_base_s + self.prefill_token_s * num_tokens if num_tokens else 0.0

    def decode_s(self, kv_tokens: int, num_sequences: int, num_iterations: int = 1) -> float:
        """Return the time of that many successive decode iterations. 0 for no sequences.

        `kv_tokens` are the contexts at the first iteration. Each one adds one token per sequence.
        """
        if not num_sequences:
            return 0.0
        first_s = self.decode_base_s + self.decode_kv_token_s * kv_tokens + self.decode_sequence_s * num_sequences
        grown_tokens = num_sequences * (num_iterations * (num_iterations - 1) // 2)
        return num_iterations * first_s + self.decode_kv_token_s * grown_tokens

    def decodes_within(self, horizon_s: float, kv_tokens: int, num_sequences: int, most: int) -> int:
        """Return how many decode iterations start within `horizon_s`: at least 1, at most `most`."""
        counts = range(1, most)
        return 1 + bisect_left(counts, horizon_s, key=lambda n: self.decode_s(kv_tokens, num_sequences, n))


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """The size and speed of one engine."""

    num_blocks: int
    block_tokens: int = 16
    max_num_seqs: int = 256
    max_batched_tokens: int = 8192
    """Most tokens that one iteration computes."""
    timing: Timing = Timing()
    priority_scheduling: bool = False
    """Whether `ModelRequest.priority` counts. Without it the queue is first come, first served."""

    @property
    def capacity_tokens(self) -> int:
        return self.num_blocks * self.block_tokens


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """One model call. Its answer ends after exactly `output_tokens`."""

    id: str
    block_hashes: Sequence[int]
    """One chained id per full block of prompt *and answer*, as far as they are known. A full block without an id
    is never found again: without the answer's ids this models an engine that does not re-use generated tokens."""
    prompt_tokens: int
    output_tokens: int
    priority: int = 0


@dataclass(frozen=True, slots=True)
class Prefilled:
    """A prompt was computed and gave a token: the first one, unless the sequence was preempted while it
    decoded."""

    id: str
    cached_tokens: int
    """Prompt tokens that were found in the cache when the sequence was first admitted."""
    is_first: bool


@dataclass(slots=True)
class Step:
    """The events of one iteration as of its end, or of several decode iterations that ran as one.

    Each id in `prefilled` got one token, each in `decoded` got `num_iterations`.
    """

    duration_s: float = 0.0
    num_iterations: int = 1
    admitted: list[str] = field(default_factory=list)
    prefilled: list[Prefilled] = field(default_factory=list)
    decoded: list[str] = field(default_factory=list)
    finished: list[str] = field(default_factory=list)
    preempted: list[str] = field(default_factory=list)


@dataclass(slots=True)
class EngineCounters:
    """Totals since the start, in tokens unless named otherwise."""

    prefix_queries_tokens: int = 0
    """Prompt tokens looked up at first admission. As in vLLM, later admissions of a sequence do not count."""
    prefix_hits_tokens: int = 0
    prompt_tokens: int = 0
    """Tokens of prompts whose prefill is complete, cached or not."""
    computed_prompt_tokens: int = 0
    """Tokens that prefill computed, those that it computed again after a preemption included."""
    generation_tokens: int = 0
    preemptions: int = 0
    finished: int = 0


class NeverFits(ValueError):
    """Prompt and answer are larger than the whole KV pool, or one of them is empty."""


class _Sequence:
    __slots__ = ("cached_tokens", "generated", "holding", "kv_tokens", "order", "request", "target_tokens")

    def __init__(self, request: ModelRequest, order: tuple[int, int], holding: BlockHolding) -> None:
        self.request = request
        self.order = order
        """(priority, arrival): the smallest is admitted first, the largest is preempted first."""
        self.holding = holding
        self.cached_tokens: int | None = None
        """None until the first admission."""
        self.kv_tokens = 0
        self.target_tokens = request.prompt_tokens
        """KV tokens at which the running prefill is complete."""
        self.generated = 0

    def missing_blocks(self, num_tokens: int, block_tokens: int) -> int:
        """Return the blocks that its next tokens need beyond those that it holds."""
        slack = self.holding.num_blocks * block_tokens - self.kv_tokens
        return 0 if num_tokens <= slack else -((slack - num_tokens) // block_tokens)


def _order(sequence: _Sequence) -> tuple[int, int]:
    return sequence.order


class EngineModel:
    """One engine: its queue, its batch and its KV pool."""

    def __init__(self, spec: EngineSpec) -> None:
        self.spec = spec
        self.pool = BlockPool(spec.num_blocks)
        self.counters = EngineCounters()
        self._num_submitted = 0
        self._live: dict[str, _Sequence] = {}
        self._waiting: list[_Sequence] = []
        """In the order of admission."""
        self._prefilling: list[_Sequence] = []
        self._decoding: list[_Sequence] = []

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        return len(self._prefilling) + len(self._decoding)

    @property
    def capacity_tokens(self) -> int:
        return self.spec.capacity_tokens

    def submit(self, request: ModelRequest) -> None:
        """Queue a request, whose id must not be live. Raises NeverFits."""
        assert request.id not in self._live
        num_prompt, num_output = request.prompt_tokens, request.output_tokens
        # The last generated token never enters the KV cache.
        if min(num_prompt, num_output) < 1 or num_prompt + num_output - 1 > self.capacity_tokens:
            raise NeverFits(f"{num_prompt} + {num_output} tokens do not fit into {self.capacity_tokens}")
        self._num_submitted += 1
        priority = request.priority if self.spec.priority_scheduling else 0
        sequence = _Sequence(request, (priority, self._num_submitted), self.pool.holding())
        self._live[request.id] = sequence
        insort(self._waiting, sequence, key=_order)

    def abort(self, request_id: str) -> bool:
        """Forget a request in any phase and release its blocks. Returns whether it was live."""
        sequence = self._live.pop(request_id, None)
        if sequence is None:
            return False
        self._stop(sequence)
        return True

    def step(self, horizon_s: float = 0.0) -> Step | None:
        """Run one iteration, and return its events. None: there is nothing to do.

        With a horizon, decode iterations that start within it and change nothing but token counts run as one step.
        With the time until the next arrival as the horizon no event is missed or late. Such a step takes the
        blocks of all its iterations at once; only an answer that repeats cached text of another sequence could
        need fewer.
        """
        step = Step()
        self._preempt_for_decode(step)
        decoding = self._decoding
        kv_tokens = sum(sequence.kv_tokens for sequence in decoding)
        num_prefill_tokens = self._prefill(step)
        if not decoding and not num_prefill_tokens:
            assert not self._waiting, "an empty engine admits any request that fits at all"
            return None
        if not num_prefill_tokens and not step.preempted:  # else the next iteration may admit
            step.num_iterations = self._mergeable(horizon_s, kv_tokens)
        timing = self.spec.timing
        step.duration_s = timing.prefill_s(num_prefill_tokens)
        step.duration_s += timing.decode_s(kv_tokens, len(decoding), step.num_iterations)
        self._decode(step)
        self._end_prefills(step)
        return step

    def _stop(self, sequence: _Sequence) -> None:
        for queue in (self._waiting, self._prefilling, self._decoding):
            if sequence in queue:
                queue.remove(sequence)
        self.pool.release(sequence.holding)

    def _preempt_for_decode(self, step: Step) -> None:
        while self._missing_blocks(1) > self.pool.num_available:
            victim = max(self._decoding + self._prefilling, key=_order)
            self._stop(victim)
            victim.target_tokens = victim.request.prompt_tokens + victim.generated
            insort(self._waiting, victim, key=_order)
            step.preempted.append(victim.request.id)
            self.counters.preemptions += 1

    def _missing_blocks(self, num_tokens: int) -> int:
        """Return the blocks that all decoding sequences need for that many tokens each."""
        block_tokens = self.spec.block_tokens
        return sum(sequence.missing_blocks(num_tokens, block_tokens) for sequence in self._decoding)

    def _prefill(self, step: Step) -> int:
        """Schedule prompt tokens of running, then of newly admitted sequences, and return their number."""
        budget = total = max(0, self.spec.max_batched_tokens - len(self._decoding))
        reserved = self._missing_blocks(1)
        for sequence in self._prefilling:
            budget -= self._schedule_chunk(sequence, budget)
        # After a preemption nothing is admitted in the same iteration, as in vLLM.
        while self._waiting and budget > 0 and self.num_running < self.spec.max_num_seqs and not step.preempted:
            sequence = self._waiting[0]
            if not self._admit(sequence, reserved):
                break
            del self._waiting[0]
            self._prefilling.append(sequence)
            step.admitted.append(sequence.request.id)
            budget -= self._schedule_chunk(sequence, budget)
        return total - budget

    def _admit(self, sequence: _Sequence, reserved_blocks: int) -> bool:
        """Give a waiting sequence its cached prefix and blocks for the rest, if all of it fits now."""
        request, block_tokens = sequence.request, self.spec.block_tokens
        limit = min(len(request.block_hashes), (sequence.target_tokens - 1) // block_tokens)
        num_cached, num_idle = self.pool.peek(request.block_hashes, limit)
        num_missing = -(-sequence.target_tokens // block_tokens) - num_cached
        if num_missing > self.pool.num_available - num_idle - reserved_blocks:
            return False
        self.pool.reuse(sequence.holding, request.block_hashes, limit)
        self.pool.grow(sequence.holding, num_missing)
        sequence.kv_tokens = num_cached * block_tokens
        if sequence.cached_tokens is None:
            sequence.cached_tokens = sequence.kv_tokens
            self.counters.prefix_queries_tokens += request.prompt_tokens
            self.counters.prefix_hits_tokens += sequence.kv_tokens
        return True

    def _schedule_chunk(self, sequence: _Sequence, budget: int) -> int:
        num_tokens = min(budget, sequence.target_tokens - sequence.kv_tokens)
        sequence.kv_tokens += num_tokens
        self.counters.computed_prompt_tokens += num_tokens
        self._commit(sequence)
        return num_tokens

    def _mergeable(self, horizon_s: float, kv_tokens: int) -> int:
        """Return how many decode iterations can run as one: no sequence finishes earlier, and the blocks last."""
        most = min(sequence.request.output_tokens - sequence.generated for sequence in self._decoding)
        num = self.spec.timing.decodes_within(horizon_s, kv_tokens, len(self._decoding), most)
        while num > 1 and self._missing_blocks(num) > self.pool.num_available:
            num //= 2
        return num

    def _decode(self, step: Step) -> None:
        num = step.num_iterations
        for sequence in self._decoding:
            self.pool.grow(sequence.holding, sequence.missing_blocks(num, self.spec.block_tokens))
            sequence.kv_tokens += num
            sequence.generated += num
            self._commit(sequence)
            step.decoded.append(sequence.request.id)
        self.counters.generation_tokens += num * len(step.decoded)
        self._end(step, self._decoding)

    def _end_prefills(self, step: Step) -> None:
        """Let sequences whose prompt is complete give one token and decode from now on."""
        complete = [s for s in self._prefilling if s.kv_tokens == s.target_tokens]
        if not complete:
            return
        self._prefilling = [s for s in self._prefilling if s.kv_tokens < s.target_tokens]
        for sequence in complete:
            is_first = not sequence.generated
            sequence.generated += 1
            self.counters.prompt_tokens += sequence.request.prompt_tokens if is_first else 0
            step.prefilled.append(Prefilled(sequence.request.id, sequence.cached_tokens or 0, is_first))
        self.counters.generation_tokens += len(complete)
        self._decoding += complete
        self._end(step, complete)

    def _commit(self, sequence: _Sequence) -> None:
        chain = sequence.request.block_hashes
        upto = min(len(chain), sequence.kv_tokens // self.spec.block_tokens)
        if upto > sequence.holding.num_shared:
            self.pool.commit(sequence.holding, chain, upto)

    def _end(self, step: Step, candidates: list[_Sequence]) -> None:
        """Release those of the decoding sequences that have given their last token."""
        done = [s for s in candidates if s.generated == s.request.output_tokens]
        if not done:
            return
        self._decoding = [s for s in self._decoding if s.generated < s.request.output_tokens]
        for sequence in done:
            self.pool.release(sequence.holding)
            del self._live[sequence.request.id]
            step.finished.append(sequence.request.id)
        self.counters.finished += len(done)
