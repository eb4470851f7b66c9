from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvmill.simulator.blocks import BlockPool, blocks_for


@dataclass(eq=False)
class Holder:
    blocks: int = 0
    divisible: bool = False
    group: int | None = None
    parked: int = 0
    since: float = 0.0
    plan: SimpleNamespace = field(init=False)

    def __post_init__(self) -> None:
        self.plan = SimpleNamespace(shared=16 if self.group is not None else 0, group=self.group)


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


def test_a_text_goes_from_its_tail_and_no_further_than_needed():
    pool, lost = BlockPool(10, lambda holder, count: lost.append((holder, count))), []
    first, second = Holder(4, divisible=True), Holder(4, divisible=True)
    pool.take(8)
    pool.park(first)
    pool.park(second)
    pool.take(3)
    assert (first.blocks, first.parked, second.blocks) == (3, 4, 4)
    pool.take(4)
    assert (first.blocks, second.blocks) == (0, 3)
    assert list(pool.idle) == [second]
    assert lost == [(first, 1), (first, 3), (second, 1)]
    pool.check(7)


def test_the_prefix_of_a_group_stays_while_anybody_reads_it():
    pool, reader, other = BlockPool(10), Holder(3, group=7), Holder(3)
    pool.take(3 + 2 + 3)
    assert pool.share(7, 2)
    pool.enter(reader)
    assert (pool.available, pool.room(7)) == (2, 2), "a running session keeps the prefix"
    pool.park(other)
    pool.leave(reader, 1.0)
    pool.park(reader)
    assert (pool.available, pool.room(7), pool.room(8)) == (10, 8, 10)
    pool.check(0)
    pool.take(5)  # the older session, and no more
    assert (other.blocks, reader.blocks, pool.shared) == (0, 3, {7: 2})
    pool.give(5)
    assert pool.unpark(reader)
    pool.give(3)
    assert list(pool.unread) == [7]
    pool.take(9)
    assert (pool.shared, pool.free, pool.loose) == ({}, 1, 0)
    pool.check(9)


def test_a_prefix_that_nobody_reads_any_more_goes_in_its_turn_among_the_sessions():
    pool, before, reader, after = BlockPool(10), Holder(2), Holder(2, group=7), Holder(2)
    pool.take(2 + 2 + 2 + 2)
    pool.share(7, 2)
    pool.park(before)
    pool.enter(reader)
    pool.leave(reader, 1.0)
    pool.give(2)
    pool.park(after)
    pool.check(0)
    assert pool.available == 10
    pool.take(6)
    assert (before.blocks, pool.shared, after.blocks) == (0, {7: 2}, 2)
    pool.take(2)
    assert (pool.shared, after.blocks) == ({}, 2)
    pool.check(8)


MOVES = ["take", "give", "park", "unpark", "share"]


@given(st.lists(st.tuples(st.sampled_from(MOVES), st.integers(0, 12)), max_size=80))
def test_nothing_is_lost_whatever_happens(moves):
    """Holders of blocks run (inside the group they read) or are idle, and prefixes come and go with them."""
    pool, running, idle = BlockPool(40), [], []
    for move, size in moves:
        if move == "take" and size <= pool.available:
            pool.take(size)
            running.append(Holder(size, divisible=size % 2 == 0, group=size % 3 or None))
            pool.enter(running[-1])
        elif move == "give" and running:
            holder = running.pop(size % len(running))
            pool.leave(holder, 0.0)
            pool.give(holder.blocks)
        elif move == "park" and running:
            holder = running.pop(size % len(running))
            pool.leave(holder, 0.0)
            pool.park(holder)
            idle.append(holder)
        elif move == "unpark" and idle:
            holder = idle.pop(size % len(idle))
            if pool.unpark(holder):
                pool.enter(holder)
                running.append(holder)
        elif move == "share" and size % 3 and size <= pool.available:
            pool.take(size)
            if not pool.share(size % 3, size):
                pool.give(size)
        pool.check(sum(holder.blocks for holder in running))
        assert pool.available == 40 - pool.active - sum(
            count for group, count in pool.shared.items() if pool.readers.get(group, (0,))[0]
        )
    assert pool.free + pool.active + pool.idle_blocks + pool.read == 40


def test_a_prefix_goes_right_after_the_last_session_that_read_it():
    """Older than what was used after its reader: the reader's eviction puts it first in line."""
    pool = BlockPool(10)
    reader, other = Holder(2, group=1), Holder(3)
    pool.take(2 + 3 + 3)
    pool.share(1, 3)
    pool.park(reader)
    pool.park(other)
    pool.take(4)
    assert (reader.blocks, other.blocks, 1 in pool.shared) == (0, 3, True)
    pool.take(1)
    assert (other.blocks, 1 in pool.shared) == (3, False)
