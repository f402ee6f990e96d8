"""No gateway: calls go to the engine at once, and to one of several by Dynamo's KV router."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from gateway.embedded.model import EngineModel
from policies.types import Arrived, Decision, Dispatch, Fact, Reason

ROUTED = ""
"""Replica of a dispatch that leaves the choice to the router of the engines."""


class Ungated:
    """In the Scheduler's place: dispatches everything at once."""

    def tell(self, fact: Fact, now: float) -> tuple[list[Decision], float | None]:
        if isinstance(fact, Arrived):
            return [Dispatch(fact.turn.id, ROUTED, Reason.FREE, 0)], None
        return [], None


@dataclass(slots=True)
class _Routed:
    replica_id: str
    blocks: Sequence[int]
    prefill_tokens: int
    """0 after its first token."""


class KvRouter:
    """Each call goes where the sum of two numbers of blocks is least: prompt tokens that are still to be computed,
    and blocks that calls in flight use; those of the call itself included.

    Source: ai-dynamo 1.6.1, `lib/kv-router/src/scheduling/selector.rs` with the frontend's defaults: cached blocks
    known from KV events, a credit of 1 for them, no temperature, no output blocks.
    """

    def __init__(self, models: Mapping[str, EngineModel]) -> None:
        self._models = models
        self._calls: dict[str, _Routed] = {}
        self._in_use: dict[str, Counter[int]] = {replica_id: Counter() for replica_id in models}
        self._prefill_tokens = dict.fromkeys(models, 0)

    def place(self, name: str, blocks: Sequence[int], prompt_tokens: int) -> str:
        """Choose the replica of a call. `blocks`: the whole blocks of its prompt."""
        block_tokens = {id: model.spec.block_tokens for id, model in self._models.items()}
        missing = {
            id: prompt_tokens - model.pool.peek(blocks, len(blocks))[0] * block_tokens[id]
            for id, model in self._models.items()
        }

        def cost(id: str) -> float:
            in_use = self._in_use[id]
            num_blocks = len(in_use) + sum(block not in in_use for block in blocks)
            return (self._prefill_tokens[id] + missing[id]) / block_tokens[id] + num_blocks

        replica_id = min(self._models, key=cost)
        self._calls[name] = _Routed(replica_id, blocks, missing[replica_id])
        self._in_use[replica_id].update(blocks)
        self._prefill_tokens[replica_id] += missing[replica_id]
        return replica_id

    def prefilled(self, name: str) -> None:
        """The call gave its first token."""
        if (call := self._calls.get(name)) is not None:
            self._prefill_tokens[call.replica_id] -= call.prefill_tokens
            call.prefill_tokens = 0

    def ended(self, name: str) -> None:
        if (call := self._calls.pop(name, None)) is not None:
            _remove(self._in_use[call.replica_id], call.blocks)


def _remove(counter: Counter[int], blocks: Iterable[int]) -> None:
    for block in blocks:
        if counter[block] == 1:
            del counter[block]
        else:
            counter[block] -= 1
