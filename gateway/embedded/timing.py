"""The cost model of the embedded engine: how long one iteration takes.

    prefill   8 ms + 0.13 ms per uncached prompt token of the iteration
    decode   15 ms + 0.00011 ms per KV token that is read + 0.04 ms per sequence

The plausible linear profile of a 32B-class model on one 80 GB GPU that the project also gives to Dynamo's mocker
as a timing table, so that both engines agree. It is not measured: what rests on it is the result of a model.
An iteration that prefills and decodes takes the sum of both, the conservative choice: real kernels overlap.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Timing:
    """A linear profile; all values in seconds."""

    prefill_base_s: float = 0.008
    prefill_token_s: float = 0.000_13
    decode_base_s: float = 0.015
    decode_kv_token_s: float = 0.000_000_11
    decode_sequence_s: float = 0.000_04

    def prefill_s(self, num_tokens: int) -> float:
        """Time to compute `num_tokens` prompt tokens in one iteration; 0 for none."""
        return self.prefill_base_s + self.prefill_token_s * num_tokens if num_tokens else 0.0

    def decode_s(self, kv_tokens: int, num_sequences: int, num_iterations: int = 1) -> float:
        """Time of that many successive decode iterations; `kv_tokens` are the contexts at the first of them, and
        each iteration adds one token per sequence. 0 for no sequences."""
        if not num_sequences:
            return 0.0
        first_s = self.decode_base_s + self.decode_kv_token_s * kv_tokens + self.decode_sequence_s * num_sequences
        grown_tokens = num_sequences * (num_iterations * (num_iterations - 1) // 2)
        return num_iterations * first_s + self.decode_kv_token_s * grown_tokens

    def decodes_within(self, horizon_s: float, kv_tokens: int, num_sequences: int, most: int) -> int:
        """How many decode iterations start before `horizon_s` from now: at least 1, at most `most`."""
        counts = range(1, most)
        return 1 + bisect_left(counts, horizon_s, key=lambda n: self.decode_s(kv_tokens, num_sequences, n))
