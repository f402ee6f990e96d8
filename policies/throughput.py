"""Whether holding sessions pays: the turns per second of a pool with as many residents as fit, and with all
sessions.

A fluid model of one pool. n sessions have P tokens each beside what they share, and the pool has room for R tokens
of such. X turns end per second. Each computes its new tokens and those that were evicted, which takes w seconds,
decodes for d0 seconds if nothing else is computed, and is followed by a gap g:

    d = d0 / (1 - X w) + w                     prefill delays the decoding of all
    X = n / (d + E[g])                         Little's law
    n P E[d + min(g, T)] / (d + E[g]) = R      T: the time for which an LRU cache keeps an idle prefix
                                               (Che et al., IEEE JSAC 20, 2002)

A turn has to compute its session's last prompt again with the probability Pr(g > T).

Where the contexts of the running turns alone exceed R, R / P turns run at once, and none finds its prefix. Between
the two numbers of residents lies a trough: the first session too many costs most. So these two are compared.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from policies.learning import Pace

FEWEST_GAPS = 6
"""Gaps from which the throughput is computed."""
ROUNDS, STEP, CLOSE = 30, 0.3, 1e-3
"""Of the damped iteration, which ends within a percent, or as soon as a step changes less than a thousandth."""
MOST_BUSY = 0.98
"""Part of its time that a pool computes prompts at most."""
BESIDE = 0.25
"""Part of the overhead of a prefill that it has beside others, in one iteration with them."""


@dataclass(frozen=True, slots=True)
class Load:
    """The sessions that use a pool or wait for it; sizes in tokens."""

    num_sessions: float
    own_tokens: float
    """That a session holds beside its shared prefix, on average over the rest of its life."""
    turn_tokens: float
    """That one more turn adds."""
    lost_tokens: float
    """That a turn has to compute again if its session's last prompt was evicted; first turns count as 0."""
    room_tokens: float
    """Of the pool beside what the sessions share."""

    @property
    def num_fitting(self) -> float:
        return min(self.num_sessions, self.room_tokens / self.own_tokens)


def turns_per_s(num_residents: float, load: Load, pace: Pace, means_s: Sequence[float]) -> float:
    """Return the throughput of so many residents. `means_s`: `means_kept_s` of the pace's gaps, of which it must
    have seen one."""
    mean_gap_s = means_s[-1]
    one_s, two_s = pace.decode_s(1) or 1.0, pace.decode_s(2) or 1.0
    new_s = pace.prefill_token_s * load.turn_tokens + BESIDE * pace.prefill_base_s
    held_tokens, most_running = num_residents * load.own_tokens, math.inf
    if held_tokens > load.room_tokens:
        most_running = load.room_tokens / load.own_tokens
    turn_s = one_s + new_s
    rate = num_residents / (mean_gap_s + turn_s)
    for _ in range(ROUNDS):
        kept_s = math.inf  # for which an idle prefix stays, on average over the gaps
        if held_tokens > load.room_tokens:
            kept_s = load.room_tokens / held_tokens * (mean_gap_s + turn_s) - turn_s
        work_s = new_s + share_longer(means_s, kept_s) * load.lost_tokens * pace.miss_token_s
        num_running = min(rate * turn_s, most_running)
        alone_s = one_s + (two_s - one_s) * (num_running - 1)
        next_turn_s = alone_s / (1 - min(MOST_BUSY, rate * work_s)) + work_s
        next_rate = min(num_residents / (mean_gap_s + next_turn_s), most_running / next_turn_s)
        turn_s, rate = turn_s + STEP * (next_turn_s - turn_s), rate + STEP * (next_rate - rate)
        if abs(next_turn_s - turn_s) < CLOSE * turn_s and abs(next_rate - rate) < CLOSE * rate:
            break
    return rate


def means_kept_s(gaps_s: Sequence[float]) -> list[float]:
    """Return E[min(g, T)] for each gap T, over gaps in order."""
    num = len(gaps_s)
    return [
        (below_s + (num - 1 - index) * gap_s) / num
        for index, (below_s, gap_s) in enumerate(zip(accumulate(gaps_s), gaps_s, strict=True))
    ]


def share_longer(means_s: Sequence[float], mean_s: float) -> float:
    """Return Pr(g > T) for the T with E[min(g, T)] = mean_s; 1 where that is not above 0. `means_s`: as
    `means_kept_s` returns them."""
    return 1 - bisect_left(means_s, mean_s) / len(means_s)


JUDGED_S, MEMORY_S = 0.5, 5.0
"""Least time between two judgements, and the time over which they are averaged."""
CLOSES = math.log(1.05)
"""Advantage of holding from which an open gate holds again. It opens as soon as there is none."""


class Switch:
    """Whether the gate of one pool is open, since holding sessions does not pay there."""

    def __init__(self) -> None:
        self.is_open = False
        self._advantage: float | None = None
        """Logarithm of the throughput of those that fit over that of all; None: not judged yet."""
        self._judged_at = -math.inf

    def is_due(self, now: float) -> bool:
        """Whether it is time to judge again."""
        return now >= self._judged_at + JUDGED_S

    def judge(self, load: Load, pace: Pace, now: float) -> None:
        """Compare both numbers of residents."""
        means_s = means_kept_s(pace.gaps.ordered)
        held, straight = (turns_per_s(num, load, pace, means_s) for num in (load.num_fitting, load.num_sessions))
        advantage = math.log(held / straight)
        if self._advantage is not None:
            weight = 1 - math.exp((self._judged_at - now) / MEMORY_S)
            advantage = self._advantage + weight * (advantage - self._advantage)
        self._advantage, self._judged_at = advantage, now
        self.is_open = advantage < (CLOSES if self.is_open else 0.0)
