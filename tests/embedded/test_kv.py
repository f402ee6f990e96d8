from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gateway.embedded.kv import BlockHolding, BlockPool


def computed(pool: BlockPool, chain: list[int]) -> BlockHolding:
    """A holding of a whole chain, as after its prefill."""
    holding = pool.holding()
    pool.reuse(holding, chain, len(chain))
    pool.grow(holding, len(chain) - holding.num_shared)
    pool.commit(holding, chain, len(chain))
    return holding


def num_cached(pool: BlockPool, chain: list[int]) -> int:
    return pool.peek(chain, len(chain))[0]


def test_a_released_chain_is_found_again() -> None:
    pool = BlockPool(10)
    pool.release(computed(pool, [1, 2, 3]))
    assert pool.peek([1, 2, 3], 3) == (3, 3)
    assert (pool.num_used, pool.num_available) == (0, 10)


def test_a_chain_is_found_as_far_as_it_agrees_and_as_far_as_asked() -> None:
    pool = BlockPool(10)
    pool.release(computed(pool, [1, 2, 3, 4, 5]))
    assert num_cached(pool, [1, 2, 3, 9]) == 3
    assert pool.peek([1, 2, 3, 4, 5], 4) == (4, 4)
    assert num_cached(pool, [2, 3]) == 0


def test_siblings_share_their_prefix_and_count_it_once() -> None:
    pool = BlockPool(10)
    first, second = computed(pool, [1, 2, 3, 10]), computed(pool, [1, 2, 3, 20])
    assert pool.num_used == 5
    pool.release(first)
    assert pool.num_used == 4
    pool.release(second)
    assert pool.num_used == 0


def test_the_least_recently_released_chain_is_evicted_first_and_from_its_tail() -> None:
    pool = BlockPool(6)
    pool.release(computed(pool, [1, 2, 3]))
    pool.release(computed(pool, [11, 12, 13]))
    pool.grow(pool.holding(), 2)
    assert num_cached(pool, [1, 2, 3]) == 1
    assert num_cached(pool, [11, 12, 13]) == 3
    pool.grow(pool.holding(), 2)
    assert num_cached(pool, [1, 2, 3]) == 0
    assert num_cached(pool, [11, 12, 13]) == 2


def test_using_a_chain_again_makes_it_the_last_to_go() -> None:
    pool = BlockPool(6)
    pool.release(computed(pool, [1, 2, 3]))
    pool.release(computed(pool, [11, 12, 13]))
    pool.release(computed(pool, [1, 2, 3]))
    pool.grow(pool.holding(), 3)
    assert num_cached(pool, [1, 2, 3]) == 3
    assert num_cached(pool, [11, 12, 13]) == 0


def test_a_shared_prefix_outlives_the_private_tail_of_an_old_sibling() -> None:
    pool = BlockPool(6)
    pool.release(computed(pool, [1, 2, 3, 4]))
    pool.release(computed(pool, [1, 2, 30]))
    pool.grow(pool.holding(), 3)
    assert num_cached(pool, [1, 2, 3, 4]) == 2
    assert num_cached(pool, [1, 2, 30]) == 3


def test_held_blocks_are_never_evicted() -> None:
    pool = BlockPool(6)
    computed(pool, [1, 2, 3])
    pool.release(computed(pool, [11, 12]))
    assert pool.num_available == 3
    pool.grow(pool.holding(), 3)
    assert num_cached(pool, [1, 2, 3]) == 3


def test_a_block_that_two_sequences_computed_is_kept_once() -> None:
    pool = BlockPool(10)
    first, second = pool.holding(), pool.holding()
    pool.grow(first, 2)
    pool.grow(second, 2)
    pool.commit(first, [1, 2], 2)
    pool.commit(second, [1, 2], 2)
    assert pool.num_used == 2
    pool.release(first)
    assert pool.num_used == 2
    pool.release(second)
    assert pool.num_used == 0


def test_blocks_that_were_never_full_are_free_at_once() -> None:
    pool = BlockPool(4)
    holding = pool.holding()
    pool.grow(holding, 3)
    pool.commit(holding, [1], 1)
    pool.release(holding)
    assert (pool.num_free, pool.num_idle) == (3, 1)


CHAINS = st.lists(st.integers(0, 2), min_size=1, max_size=8).map(
    lambda path: [hash((3, *path[: i + 1])) for i in range(len(path))]
)


class PoolAgainstPlainLists(RuleBasedStateMachine):
    """The pool against the plain law: an LRU list of single blocks, with a holder count for each."""

    @initialize(size=st.integers(8, 24))
    def start(self, size: int) -> None:
        self.pool = BlockPool(size)
        self.size = size
        self.held: list[tuple[BlockHolding, list[int]]] = []
        self.holders: dict[int, int] = {}
        self.idle: list[int] = []

    @rule(chain=CHAINS)
    def compute(self, chain: list[int]) -> None:
        cached, idle = self.pool.peek(chain, len(chain))
        if len(chain) - cached > self.pool.num_available - idle:
            return
        self.held.append((computed(self.pool, chain), chain))
        for block in chain[:cached]:
            if block in self.idle:
                self.idle.remove(block)
        free = self.size - len(self.holders) - len(self.idle)
        num_new = len(chain) - cached
        free -= sum(1 for block in chain[:cached] if block not in self.holders)
        del self.idle[: max(0, num_new - free)]
        for block in chain:
            self.holders[block] = self.holders.get(block, 0) + 1

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        holding, chain = self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))
        self.pool.release(holding)
        for block in reversed(chain):
            self.holders[block] -= 1
            if not self.holders[block]:
                del self.holders[block]
                self.idle.append(block)

    @rule(chain=CHAINS)
    def is_cached_exactly_as_the_law_says(self, chain: list[int]) -> None:
        known = [block in self.holders or block in self.idle for block in chain]
        assert self.pool.peek(chain, len(chain))[0] == [*known, False].index(False)

    @invariant()
    def blocks_are_conserved(self) -> None:
        if not hasattr(self, "pool"):
            return
        assert self.pool.num_idle == len(self.idle)
        assert self.pool.num_used == len(self.holders)
        assert self.pool.num_free == self.size - len(self.idle) - len(self.holders)


TestPoolAgainstPlainLists = PoolAgainstPlainLists.TestCase
