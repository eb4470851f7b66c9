"""`hybrid`: its pool by heap, by one sort, and by a brute force over the whole past; its options."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from lengths import segments

from kvmill.errors import UserError
from kvmill.replay.policies.base import SegmentSize
from kvmill.replay.policies.hybrid import Entry, Hybrid, pool_by_heap
from kvmill.replay.policies.hybrid_state import best_rows
from kvmill.replay.policies.registry import parse_policy

# Few values, so that ties of score, and of score and last use, are the rule.
SCORES = st.sampled_from([0.0, 0.5, 1.0, 100.0])


@st.composite
def arrivals(draw: st.DrawFn) -> list[tuple[list[Entry], int]]:
    """Batches of tokens that leave the window, and the pool's size after each: it may grow and shrink."""
    position, out = 0, []
    for _ in range(draw(st.integers(1, 5))):
        batch = []
        for _ in range(draw(st.integers(0, 8))):
            batch.append((draw(SCORES), draw(st.integers(0, 3)), position))
            position += 1
        out.append((batch, draw(st.integers(0, 8))))
    return out


def by_sort(pool: list[Entry], capacity: int) -> list[Entry]:
    """The vectorised selection of the state, on one head, rows in order of position."""
    if not pool:
        return []
    score, use, _ = (torch.tensor([column], dtype=torch.float32) for column in zip(*pool, strict=True))
    kept = best_rows(score, use, min(capacity, len(pool)))[0].tolist()
    return [pool[i] for i in kept]


@settings(max_examples=300, deadline=None)
@given(arrivals())
def test_heap_and_sort_keep_the_same_pool_ties_included(batches: list[tuple[list[Entry], int]]) -> None:
    heap: list[Entry] = []
    sorted_pool: list[Entry] = []
    for batch, capacity in batches:
        heap = pool_by_heap(heap, batch, capacity)
        sorted_pool = by_sort(sorted_pool + batch, capacity)
        assert sorted_pool == heap


@settings(max_examples=100, deadline=None)
@given(arrivals())
def test_a_pool_of_one_size_holds_the_best_of_all_that_ever_left(batches: list[tuple[list[Entry], int]]) -> None:
    """Final scores never change, so greedy replacement loses nothing against hindsight."""
    heap: list[Entry] = []
    past: list[Entry] = []
    for batch, _ in batches:
        heap, past = pool_by_heap(heap, batch, 4), past + batch
        assert heap == sorted(sorted(past, reverse=True)[:4], key=lambda entry: entry[2])


def test_a_tie_goes_to_the_later_use_and_then_to_the_later_token() -> None:
    assert pool_by_heap([(1.0, 5, 0)], [(1.0, 7, 1), (1.0, 7, 2)], 1) == [(1.0, 7, 2)]
    assert by_sort([(1.0, 5, 0), (1.0, 7, 1), (1.0, 7, 2), (0.5, 9, 3)], 2) == [(1.0, 7, 1), (1.0, 7, 2)]


@pytest.mark.parametrize(
    ("spec", "seen", "budget", "window"),
    [
        ("hybrid(keep=0.2)", 100, 20, 10),
        ("hybrid(keep=0.2)", 105, 21, 11),
        ("hybrid(keep=0.2,window=5)", 100, 20, 5),
        ("hybrid(keep=0.2,window=50)", 100, 20, 20),
        ("hybrid(budget=7)", 100, 7, 4),
        ("hybrid(budget=7,window=0)", 100, 7, 0),
        ("hybrid(window=30,pool=12)", 100, 42, 30),
        ("hybrid(window=0,pool=3)", 100, 3, 0),
        ("hybrid(keep=0)", 100, 1, 1),
        ("hybrid(keep=1)", 0, 0, 0),
    ],
)
def test_sizes(spec: str, seen: int, budget: int, window: int) -> None:
    policy = parse_policy(spec)
    assert isinstance(policy, Hybrid)
    assert (policy.budget_of(seen), policy.window_of(seen)) == (budget, window)


@pytest.mark.parametrize(
    "spec",
    [
        "hybrid(pool=3)",
        "hybrid(window=3,pool=3,keep=0.2)",
        "hybrid(window=3,pool=3,budget=6)",
        "hybrid(window=0,pool=0)",
        "hybrid(entities=all)",
        "hybrid(alpha=-1)",
    ],
)
def test_options_that_contradict_each_other_are_refused(spec: str) -> None:
    with pytest.raises(UserError):
        parse_policy(spec)


@settings(max_examples=50, deadline=None)
@given(segments(most_turns=5), st.integers(0, 40), st.integers(0, 40))
def test_fixed_sizes_are_the_budget_of_the_same_number(text: list[SegmentSize], window: int, pool: int) -> None:
    pool = max(pool, 1)
    fixed = parse_policy(f"hybrid(window={window},pool={pool})")
    assert fixed.footprint(text) == parse_policy(f"hybrid(budget={window + pool},window={window})").footprint(text)


def test_the_models_own_activity_costs_a_number_per_row_only_if_it_counts() -> None:
    text = [SegmentSize("prefix", 10), SegmentSize("assistant", 30)]
    assert parse_policy("hybrid(keep=1)").footprint(text)[0].scalar_rows == 3 * 30
    assert parse_policy("hybrid(keep=1,gamma=0)").footprint(text)[0].scalar_rows == 2 * 30
    assert parse_policy("hybrid(keep=1,prefix=drop)").footprint(text)[0].scalar_rows == 3 * 40
