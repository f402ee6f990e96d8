"""Lessons: the throughput of a pool, the statistics of a family, the tokens per character of a model."""

from __future__ import annotations

import math
from collections.abc import Sequence

from policies.forecast import output_tokens
from policies.ledger import shared_length
from policies.types import BLOCK_CHARS, Family, IdleTimes, PaceLessons, Session, Turn, TurnId

PREFILL_TOKEN_S, OUTPUT_TOKEN_S = 1.25e-4, 0.018
CYCLE_S = 3.0
"""Assumed until they have been seen: a 32B-class model on one 80 GB GPU, and agents with short tools."""
BASE_ITERATIONS = 2.0
"""Iterations of decoding that a prefill of no tokens takes: it waits for half a one, then its own decodes beside
it, and each has its overhead."""
WIDTH_TOKENS = 128.0
"""Difference in size from which on two prefills show more of the time of a token than the guess does."""
MEMORY = 32
"""Samples that count, about: with each further one a sample loses this part of its weight."""
KEEP = 1 - 1 / MEMORY
FEWEST_PREFILLS, OUTLIER = 4, 1.25
LONG_PREFILL_S, SLOWEST = 0.25, 8.0
"""Prefills from this length on are timed one by one; none takes more than so many times as long as expected."""
MOST_FIRST_BLOCKS = 4_096
"""Of a first prompt that are compared with the next one: 2 MB."""
SLOPE = 2.0
"""Factor by which the fitted time of a token is at most below the mean: prompts may vary too little to show it."""
LEAST_TOKEN_S, MOST_TOKEN_S = 1e-6, 0.1
"""Bounds of the time of a prompt token."""
GUESSED_RETURNS = 8
"""Returns to an evicted prefix that weigh as much as the guess that it is computed again."""
LEAST_OUTPUT_TOKEN_S = 1e-4
"""No engine decodes one sequence faster: such an answer came whole, its first byte with its last."""


class Line:
    """Fits y = intercept + slope x by least squares, the newest samples weighing most."""

    __slots__ = ("_x", "_xx", "_xy", "_y", "num")

    def __init__(self) -> None:
        self.num = self._x = self._xx = self._xy = self._y = 0.0

    @property
    def sums(self) -> tuple[float, ...]:
        """All that it knows; `recall` takes it back."""
        return self.num, self._x, self._y, self._xx, self._xy

    def recall(self, sums: Sequence[float]) -> None:
        self.num, self._x, self._y, self._xx, self._xy = sums

    @property
    def mean(self) -> float | None:
        """Of y; None without samples."""
        return self._y / self.num if self.num else None

    def saw(self, x: float, y: float) -> None:
        """Record a sample."""
        self.num, self._x, self._y = KEEP * self.num + 1, KEEP * self._x + x, KEEP * self._y + y
        self._xx, self._xy = KEEP * self._xx + x * x, KEEP * self._xy + x * y

    def mean_rise(self, at_zero: float) -> float:
        """Return the mean of y over `at_zero`, per x; 0 where it is not above it."""
        return max(0.0, self._y - self.num * at_zero) / self._x if self._x else 0.0

    def fit(self, at_zero: float, slope: float = 0.0, width: float = 0.0) -> tuple[float, float]:
        """Return (intercept, slope), neither below 0. The guesses decide where the samples show little: `at_zero`
        counts as one more sample at x = 0, and `slope` as one that lies `width` beside the others."""
        num, y = self.num + 1, self._y + at_zero
        xx, xy = self._xx + width * width, self._xy + slope * width * width
        spread = num * xx - self._x * self._x
        if spread <= 0:
            return at_zero, slope
        fitted = max(0.0, (num * xy - self._x * y) / spread)
        intercept = (y - fitted * self._x) / num
        return (intercept, fitted) if intercept >= 0 else (0.0, xy / xx)


class Pace:
    """How fast one pool is, and the turns of its sessions. Written by the Scheduler.

    With x tokens to compute, and no other prefill beside it, the first byte of a turn comes after
    `prefill_base_s + prefill_token_s x`. Its own decoding takes `decode_s`, and its session is idle for `gap_s`.
    """

    def __init__(self) -> None:
        self.prefill_base_s, self.prefill_token_s = BASE_ITERATIONS * OUTPUT_TOKEN_S, PREFILL_TOKEN_S
        self.cycle_s = CYCLE_S
        """Time in which a session decodes and waits for its tool; the prefill of others while it decodes is in
        it."""
        self.gap_s: float | None = None
        """Idle time between two turns of a session."""
        self.gaps = IdleTimes()
        """The last of them, of all its sessions."""
        self.prefilled_tokens = 0.0
        """Prompt tokens that the pool has computed since the start."""
        self.prefilled_s, self.prefilled_until = 0.0, -math.inf
        """How long it took for that; and when the last of them was computed."""
        self._prefills, self._output_tokens = Line(), Line()
        """Seconds to the first byte by tokens computed; seconds per output token by running turns."""
        self._num_output_tokens: float | None = None
        self._num_returns = self._evicted_tokens = self._reload_s = 0.0
        """Of prompts that came back after their eviction: tokens evicted, and the time that they took; forgotten
        like samples."""
        self.counts_cached = False
        """Whether its engine has ever reported a cached token."""
        self._alone: tuple[TurnId, float] | None = None
        """The prefill that runs alone, and since when."""

    @property
    def miss_token_s(self) -> float:
        """Time that the pool needs per token to have an evicted prefix again: by computing it, unless a lower tier
        of its cache still has it."""
        if not self._evicted_tokens:
            return self.prefill_token_s
        seen_s = self._reload_s / self._evicted_tokens
        guessed_s = GUESSED_RETURNS * self.prefill_token_s
        return (guessed_s + self._num_returns * seen_s) / (GUESSED_RETURNS + self._num_returns)

    @property
    def knows_prefill(self) -> bool:
        """Whether enough prefills ran alone to say how long one takes."""
        return self._prefills.num > FEWEST_PREFILLS

    def decode_s(self, num_running: float) -> float | None:
        """Time from the first byte of a turn to its end beside so many running turns, itself included, and
        without the prefill of others; None where nothing is known."""
        mean_s = self._output_tokens.mean
        if mean_s is None or self._num_output_tokens is None:
            return None
        base_s, each_s = self._output_tokens.fit(mean_s)
        return self._num_output_tokens * (base_s + each_s * num_running)

    def prefill_s(self, tokens: float) -> float:
        """Time to compute so many prompt tokens, with nothing beside them."""
        return self.prefill_base_s + self.prefill_token_s * tokens

    def prefill_took_s(self, tokens: float, since: float, now: float) -> float:
        """Return how long the prefill of so many tokens took that may have begun at `since`, and ends now or is
        not over. That of a long prompt says itself how fast the engine is now, as prefills go one after the
        other."""
        expected_s = self.prefill_token_s * tokens
        if expected_s < LONG_PREFILL_S:
            return expected_s
        return min(max(0.0, now - max(since, self.prefilled_until)), SLOWEST * expected_s)

    def prefill_began(self, turn_id: TurnId, is_alone: bool, now: float) -> None:
        self._alone = (turn_id, now) if is_alone else None  # a second prefill slows down the first

    def prefill_ended(self, turn_id: TurnId, tokens: float, now: float) -> float | None:
        """Its first byte came. Return the time since it began if it was alone."""
        self.prefilled_tokens += tokens
        if self._alone is None or self._alone[0] != turn_id:
            return None
        began_at, self._alone = self._alone[1], None
        return now - began_at

    def saw_prefill(self, tokens: float, prefill_s: float) -> None:
        """Record how long a prefill of so many tokens took alone. One that took much longer than those before
        waited for room in the engine, and counts as OUTLIER times as long as expected."""
        if self.knows_prefill:
            prefill_s = min(prefill_s, OUTLIER * self.prefill_s(tokens))
        self._prefills.saw(tokens, prefill_s)
        base_s = BASE_ITERATIONS * (self._output_tokens.mean or OUTPUT_TOKEN_S)
        self.prefill_base_s, token_s = self._prefills.fit(base_s, PREFILL_TOKEN_S, WIDTH_TOKENS)
        token_s = max(token_s, self._prefills.mean_rise(base_s) / SLOPE)
        self.prefill_token_s = min(MOST_TOKEN_S, max(LEAST_TOKEN_S, token_s))

    def saw_return(self, tokens: float, evicted_tokens: float, prefill_s: float) -> None:
        """Record how long the prefill of a prompt took alone that counts as evicted in part. `tokens`: those that
        its session had not sent before."""
        most_s = 2 * self.prefill_token_s * evicted_tokens  # else it waited for room in the engine
        extra_s = min(most_s, max(0.0, prefill_s - self.prefill_s(tokens)))
        self._num_returns = KEEP * self._num_returns + 1
        self._evicted_tokens = KEEP * self._evicted_tokens + evicted_tokens
        self._reload_s = KEEP * self._reload_s + extra_s

    def saw_decode(self, decode_s: float, others_tokens: float, output_tokens: int, num_running: int) -> None:
        """Record a decoding, while the pool computed so many prompt tokens for others."""
        own_s = max(0.0, decode_s - self.prefill_token_s * others_tokens)
        self._output_tokens.saw(num_running, own_s / output_tokens)
        self._num_output_tokens = blend(self._num_output_tokens, output_tokens)

    @property
    def lessons(self) -> PaceLessons:
        """What is worth keeping over a restart of the gateway: all but what runs now."""
        return PaceLessons(
            prefill_base_s=self.prefill_base_s,
            prefill_token_s=self.prefill_token_s,
            prefills=self._prefills.sums,
            decodes=self._output_tokens.sums,
            output_tokens=self._num_output_tokens,
            cycle_s=self.cycle_s,
            gap_s=self.gap_s,
            gaps_s=self.gaps.recent,
            returns=(self._num_returns, self._evicted_tokens, self._reload_s),
            counts_cached=self.counts_cached,
        )

    def recall(self, lessons: PaceLessons) -> None:
        """Take in the lessons of an earlier gateway, in the place of the guesses."""
        self.prefill_base_s, self.prefill_token_s = lessons.prefill_base_s, lessons.prefill_token_s
        self._prefills.recall(lessons.prefills)
        self._output_tokens.recall(lessons.decodes)
        self._num_output_tokens, self.cycle_s, self.gap_s = lessons.output_tokens, lessons.cycle_s, lessons.gap_s
        self.gaps, self.counts_cached = IdleTimes(lessons.gaps_s), lessons.counts_cached
        self._num_returns, self._evicted_tokens, self._reload_s = lessons.returns

    def saw_cycle(self, decode_s: float, gap_s: float) -> None:
        """Record the cycle of a session that came back. Queues and its own prefill are not in it."""
        self.cycle_s = decode_s + gap_s if self.gap_s is None else blend(self.cycle_s, decode_s + gap_s)
        self.gap_s = blend(self.gap_s, gap_s)
        self.gaps.add(gap_s)


# ---- what finished turns teach

WEIGHT = 0.1
"""Weight of a new value in the running means; about the last ten turns count."""
MAX_NAMES_CHARS = 128
STALE = 4
"""Most lessons of a family after which the values derived from its statistics are computed again."""
LEAST_EDGE = 0.25
"""Part of what a session holds of its own, first prompt and answer, from which on the block in which its prefix
ends does not count as its own. Below it that is a margin: without it 80 sessions in a pool for 20 take 2 % longer
in the mean (simulated)."""
MAX_TOOLS = 64
"""Sets of tools of a family whose idle times are kept apart."""


def blend(old: float | None, new: float, weight: float = WEIGHT) -> float:
    """Return the exponentially weighted mean, which starts at the first value."""
    return new if old is None else old + weight * (new - old)


def is_news(family: Family) -> bool:
    """Count a lesson; return whether it is time to compute again what is derived from the family's statistics.
    Each lesson counts while there are few, later each sixteenth part of them. If so, the family's caches are
    emptied."""
    family.num_lessons += 1
    if family.num_lessons < family.next_lesson:
        return False
    family.next_lesson = family.num_lessons + min(STALE, 1 + family.num_lessons // 16)
    family.expected_remaining, family.forecasts = [], {}
    return True


def saw_bound(family: Family, max_output_tokens: int | None) -> None:
    """Record the bound that a turn puts on its answer."""
    if max_output_tokens is not None:
        family.most_output_tokens = max(family.most_output_tokens or 0, max_output_tokens)


def saw_gap(family: Family, session: Session, gap_s: float) -> None:
    """Record that a session came back after `gap_s` of idle time."""
    for tools in ("", session.tools) if session.tools else ("",):
        gaps_s = family.gaps_s.get(tools)
        if gaps_s is None:
            if len(family.gaps_s) >= MAX_TOOLS:
                continue
            gaps_s = family.gaps_s[tools] = IdleTimes()
        gaps_s.add(gap_s)


def saw_continuation(family: Family, session: Session) -> None:
    """Record a further turn of a session, and take back the end that its silence suggested."""
    _reach(family, session.num_begun)
    if session.is_presumed_ended:
        session.is_presumed_ended = False
        family.ended[session.num_begun] -= 1
        family.num_closed -= not session.tools
    family.num_reopened += not session.tools
    family.continued[session.num_begun] += 1


def saw_end(family: Family, session: Session) -> None:
    """Record the end of a session, or a silence that counts as its end."""
    if not session.is_presumed_ended:
        session.is_presumed_ended = True
        _reach(family, session.num_begun)
        family.ended[session.num_begun] += 1
        family.num_closed += not session.tools


def _reach(family: Family, num_turns: int) -> None:
    """Make both histograms this long."""
    while len(family.ended) <= num_turns:
        family.ended.append(0)
        family.continued.append(0)


def saw_first_prompt(family: Family, turn: Turn, parent: Session | None, has_history: bool = False) -> int:
    """Record the arrival of a first prompt: what follows its siblings' prefix, and its parent's, is its own. A
    session that waits at the gate teaches that, too. Return the characters of the prefix: whole blocks, and where
    it ends with the head, which both have, all of that.

    `has_history`: it came with a history, which shows the first prompt, and by how much a turn grew. That says
    nothing about the chance to go on, since those that ended earlier are not seen (left truncation).
    """
    shared_blocks = shared_length(family.first_blocks, turn.blocks)
    edge_chars, head = 0, turn.head
    if head is not None and head == family.first_head and shared_blocks == head.chars // BLOCK_CHARS:
        edge_chars = head.chars % BLOCK_CHARS
    shared_chars = shared_blocks * BLOCK_CHARS + edge_chars
    if parent is not None:
        shared_chars = max(shared_chars, shared_length(parent.blocks, turn.blocks) * BLOCK_CHARS)
    first_chars, history = turn.chars, turn.history
    if has_history and history is not None:
        first_chars = history.first_chars
        append_chars = (turn.chars - first_chars) / history.num_turns
        family.append_tokens = blend(family.append_tokens, append_chars * family.tokens_per_char)
    own_chars = max(0, first_chars - shared_chars)
    answer_chars = output_tokens(family) / family.tokens_per_char
    family.edge_chars = edge_chars if edge_chars >= LEAST_EDGE * (own_chars + answer_chars) else 0
    if family.first_chars:
        own_chars += edge_chars - family.edge_chars
        family.private_chars = blend(family.private_chars, own_chars)
    family.first_blocks, family.first_chars = turn.blocks[:MOST_FIRST_BLOCKS], first_chars
    family.first_head = head
    return shared_chars


def forget(family: Family) -> None:
    """Drop the lessons of a family that take much memory."""
    family.first_blocks, family.first_chars, family.first_head = (), 0, None
    family.gaps_s.clear()


def saw_answer(
    family: Family, session: Session, prompt_tokens: int, output_tokens: int | None, is_retry: bool
) -> None:
    """Record a complete call of the session, and the growth of its prompt since the call before."""
    if session.prompt_tokens and prompt_tokens > session.prompt_tokens and not is_retry:
        family.append_tokens = blend(family.append_tokens, prompt_tokens - session.prompt_tokens)
    session.prompt_tokens = prompt_tokens
    if output_tokens is not None:
        family.output_tokens = blend(family.output_tokens, output_tokens)


def saw_tools(family: Family, session: Session, names: Sequence[str], tool_s: float | None) -> None:
    """Record the tools that an answer called, and how long they take if that is known."""
    joined = "+".join(sorted(set(names))) if len(names) > 1 else "".join(names)
    session.tools, session.tool_s = joined[:MAX_NAMES_CHARS], tool_s
    family.calls_tools = family.calls_tools or bool(session.tools)


class TokenRatio:
    """Tokens per character of a model's prompts: a prior, then the ratio of a sample, then those that `usage`
    shows, each with the weight of its length."""

    PRIOR = 1 / 4
    """Of recorded requests of seven agents, in characters as the gateway counts them: 0.23 to 0.28, 0.25 in the
    mean, with a vocabulary of 131,072 (Mistral's Tekken); 0.25 to 0.32, 0.275 in the mean, with one of 32,000
    (Llama 2's). Plain English has 0.23, Python 0.26."""

    def __init__(self) -> None:
        self.value = self.PRIOR
        self._tokens = self._chars = 0.0
        """Of prompts that were answered; forgotten like samples."""

    @property
    def sums(self) -> tuple[float, float]:
        """(tokens, characters) of prompts that were answered; zeros: it is a guess."""
        return self._tokens, self._chars

    def recall(self, sums: tuple[float, float]) -> None:
        self._tokens, self._chars = sums
        self.value = _bounded(self._tokens / self._chars)

    def suppose(self, value: float) -> None:
        """Take the ratio of a sample, unless answers have shown a better one."""
        if not self._chars:
            self.value = _bounded(value)

    def saw(self, chars: int, prompt_tokens: int) -> None:
        """Record the usage of an answer."""
        if chars > 0:
            self._tokens, self._chars = KEEP * self._tokens + prompt_tokens, KEEP * self._chars + chars
            self.value = _bounded(self._tokens / self._chars)


def _bounded(ratio: float) -> float:
    return min(2.0, max(0.05, ratio))
