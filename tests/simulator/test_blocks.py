from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvmill.simulator.blocks import BlockPool, blocks_for


@dataclass(eq=False)
class Holder:
    blocks: int = 0


def test_rows_round_up_to_blocks_of_16():
    assert [blocks_for(rows) for rows in (-3, 0, 1, 16, 17)] == [0, 0, 1, 1, 2]


def test_the_least_recently_used_session_goes_first_and_whole():
    pool = BlockPool(10)
    first, second = Holder(4), Holder(4)
    pool.take(8)
    pool.park(first)
    pool.park(second)
    pool.take(3)
    assert (first.blocks, second.blocks) == (0, 4)
    assert not pool.unpark(first)
    assert pool.unpark(second)
    assert (pool.free, pool.active, pool.evictions) == (3, 7, 1)


def test_running_sessions_are_never_evicted():
    pool = BlockPool(10)
    pool.take(8)
    with pytest.raises(ValueError, match="3 blocks asked of a pool with 2 left"):
        pool.take(3)


def test_a_shared_prefix_is_kept_once():
    pool = BlockPool(20)
    pool.take(10)
    assert pool.share(0, 6)
    assert not pool.share(0, 6)
    assert (pool.active, pool.free) == (4, 10)
    pool.check(4)


def test_check_notices_a_lost_block():
    pool = BlockPool(10)
    pool.take(5)
    pool.free -= 1
    with pytest.raises(AssertionError, match="lost or doubled"):
        pool.check(5)


@given(st.lists(st.tuples(st.sampled_from(["take", "give", "park", "unpark"]), st.integers(0, 12)), max_size=60))
def test_nothing_is_lost_whatever_happens(moves):
    pool, running, idle = BlockPool(40), [], []
    for move, size in moves:
        if move == "take" and size <= pool.available:
            pool.take(size)
            running.append(Holder(size))
        elif move == "give" and running:
            pool.give(running.pop(size % len(running)).blocks)
        elif move == "park" and running:
            holder = running.pop(size % len(running))
            pool.park(holder)
            idle.append(holder)
        elif move == "unpark" and idle:
            holder = idle.pop(size % len(idle))
            if pool.unpark(holder):
                running.append(holder)
        pool.check(sum(holder.blocks for holder in running))
    assert pool.free + pool.active + pool.idle_blocks == 40
