import gc
import weakref

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvmill.replay.cache import BLOCK_ROWS, KvCache, process_bytes
from kvmill.replay.policies.base import KvShape

SHAPE = KvShape(layers=2, kv_heads=2, q_heads=4, head_dim=3, dtype_bytes=4)


def rows(first: int, count: int) -> torch.Tensor:
    """(H_kv, count, D): row r of head h holds 1000·h + r."""
    base = torch.arange(first, first + count).float()[None, :, None] + 1000 * torch.arange(2)[:, None, None]
    return base.expand(2, count, 3).clone()


def cache_with(count: int) -> KvCache:
    cache = KvCache(SHAPE, torch.float32, torch.device("cpu"))
    feed(cache, 0, count)
    return cache


def feed(cache: KvCache, first: int, count: int) -> None:
    for layer in range(SHAPE.layers):
        cache.append(layer, rows(first, count), -rows(first, count))


def held(cache: KvCache, layer: int = 1, head: int = 1) -> list[int]:
    keys, values = cache.view(layer)
    assert torch.equal(values, -keys)
    return [int(x) - 1000 * head for x in keys[head, :, 0]]


@st.composite
def steps(draw: st.DrawFn) -> list[tuple[str, int]]:
    return draw(
        st.lists(st.tuples(st.sampled_from(["append", "evict", "roll", "fork"]), st.integers(1, 300)), max_size=12)
    )


@settings(max_examples=40, deadline=None)
@given(steps())
def test_any_sequence_keeps_the_right_rows_and_never_a_spare_block(plan: list[tuple[str, int]]) -> None:
    cache, want, at, twins = cache_with(5), list(range(5)), 5, []
    for action, number in plan:
        if action == "append":
            feed(cache, at, number)
            want += range(at, at + number)
            at += number
        elif action == "evict" and want:
            start = min(number, len(want))
            pick = torch.arange(start, len(want))[::2]
            cache.evict(start, pick.expand(SHAPE.layers, SHAPE.kv_heads, -1))
            want = want[:start] + [want[i] for i in pick.tolist()]
        elif action == "roll":
            keep = max(0, len(want) - number)
            cache.roll_back(keep)
            want = want[:keep]
        elif action == "fork":
            twins.append((cache.fork(), list(want)))
        assert held(cache) == want
        assert cache.rows == len(want)
        spare = cache.nbytes - len(want) * SHAPE.row_bytes
        assert 0 <= spare < SHAPE.row_bytes * BLOCK_ROWS
    for twin, theirs in twins:
        assert held(twin) == theirs


def test_released_blocks_die() -> None:
    cache = cache_with(3 * BLOCK_ROWS)
    old = [weakref.ref(buffer.keys) for buffer in cache.buffers()]
    index = torch.arange(100).expand(SHAPE.layers, SHAPE.kv_heads, 100)
    cache.evict(0, index)
    gc.collect()
    assert [ref() for ref in old] == [None, None]
    assert cache.nbytes == BLOCK_ROWS * SHAPE.row_bytes


def test_heads_keep_different_rows() -> None:
    cache = cache_with(6)
    index = torch.tensor([[0, 5], [2, 3]]).expand(SHAPE.layers, 2, 2)
    cache.evict(0, index)
    assert held(cache, head=0) == [0, 5]
    assert held(cache, head=1) == [2, 3]


def test_a_fork_shares_until_one_side_writes() -> None:
    cache = cache_with(10)
    twin = cache.fork()
    assert process_bytes([cache, twin]) == cache.nbytes == twin.nbytes
    feed(twin, 10, 1)
    assert held(cache) == list(range(10))
    assert held(twin) == list(range(11))
    assert process_bytes([cache, twin]) == cache.nbytes + twin.nbytes
    twin.release()
    assert (twin.rows, twin.nbytes) == (0, 0)
    assert held(cache) == list(range(10))


@pytest.mark.parametrize("side", ["original", "fork"])
def test_the_last_owner_writes_in_place(side: str) -> None:
    cache = cache_with(10)
    twin = cache.fork()
    keep, gone = (cache, twin) if side == "original" else (twin, cache)
    gone.release()
    before = [id(buffer) for buffer in keep.buffers()]
    feed(keep, 10, 1)
    assert [id(buffer) for buffer in keep.buffers()] == before
