"""The arithmetic of `te`: worked examples and work. `test_segment_footprint` moves tokens one by one."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lengths import LONG, segments

from kvmill.replay.policies.base import KvShape, SegmentSize
from kvmill.replay.policies.registry import parse_policy
from kvmill.replay.policies.te import TokenEviction

SHAPE = KvShape(layers=4, kv_heads=2, q_heads=6, head_dim=8, dtype_bytes=2)


@st.composite
def policies(draw: st.DrawFn) -> TokenEviction:
    proxy = draw(st.sampled_from(["assistant", "boundary", "tool", "assistant+repeat", "assistant+tool+boundary"]))
    delay = draw(st.integers(0 if proxy == "boundary" else 1, 5))
    policy = parse_policy(f"te(proxy={proxy},delay={delay},keep={draw(st.sampled_from(['0', '0.2', '0.5']))})")
    assert isinstance(policy, TokenEviction)
    return policy


def test_a_worked_example():
    """P=50, turns of 20 + 100 tokens, keep a fifth: 4 + 20 rows stay of each compacted turn."""
    text = [SegmentSize("prefix", 50), *[SegmentSize("assistant", 20, 3), SegmentSize("tool", 100, 3)] * 3]
    steps = parse_policy("te(proxy=assistant,delay=1,keep=0.2)").footprint(text)
    assert [s.kv_rows for s in steps] == [170, 50 + 24 + 120, 50 + 48 + 120]
    assert [s.kv_rows_peak for s in steps] == [170, 290, 50 + 24 + 240]
    # The assistant queries of turn t+1 arrive with the compaction that reads them, and are released by it.
    assert [(s.query_rows, s.query_rows_peak) for s in steps] == [(0, 0), (0, 20), (0, 20)]


def test_all_protected_tokens_stay_when_there_are_more_than_m():
    text = [SegmentSize("prefix", 5), SegmentSize("assistant", 10, 6), SegmentSize("assistant", 10, 6)]
    assert parse_policy("te(proxy=boundary,keep=0.2)").footprint(text)[-1].kv_rows == 5 + 6 + 6
    assert parse_policy("te(proxy=boundary,keep=0.2,protect=none)").footprint(text)[-1].kv_rows == 5 + 2 + 2


@settings(max_examples=60, deadline=None)
@given(policies(), segments(tokens=LONG))
def test_work_is_charged_exactly_when_something_is_compacted(policy: TokenEviction, text: list[SegmentSize]):
    work, steps = policy.work(text, SHAPE), policy.footprint(text)
    assert len(work) == len(steps)
    for done, step in zip(work, steps, strict=True):
        assert (done.bytes > 0) == (step.compactions > 0)
        assert done.flops >= 0


def test_work_of_one_segment_in_closed_form():
    """100 tool tokens scored by 20 queries of 3 query heads, per layer and KV head; 20 rows gathered."""
    text = [
        SegmentSize("prefix", 5),
        SegmentSize("assistant", 1),
        SegmentSize("tool", 100),
        SegmentSize("assistant", 20),
    ]
    nothing, done = parse_policy("te(proxy=assistant,delay=1,keep=0.2)").work(text, SHAPE)
    assert (nothing.flops, nothing.bytes) == (0, 0)
    pairs, rows = 4 * 2, 3 * 20
    assert done.flops == pairs * rows * 100 * (2 * 8 + 5)
    read = pairs * (100 + rows) * 8 * 2
    assert done.bytes == read + 2 * 20 * SHAPE.row_bytes


@given(segments(tokens=LONG), st.integers(1, 4))
def test_work_grows_with_layers_and_with_the_delay(text: list[SegmentSize], delay: int):
    twice = KvShape(8, 2, 6, 8, 2)
    policy = parse_policy(f"te(delay={delay},keep=0.2)")
    for one, two in zip(policy.work(text, SHAPE), policy.work(text, twice), strict=True):
        assert (two.flops, two.bytes) == (2 * one.flops, 2 * one.bytes)
    longer = parse_policy(f"te(delay={delay + 1},keep=0.2)").work(text, SHAPE)
    for turn in range(len(longer) - 1):  # the same segment is scored one turn later, by more queries
        assert longer[turn + 1].flops >= policy.work(text, SHAPE)[turn].flops


@pytest.mark.parametrize("delay", [1, 2, 5])
def test_query_rows_are_capped(delay: int):
    long = [SegmentSize("prefix", 5), *[SegmentSize("assistant", 4000), SegmentSize("tool", 10)] * 7]
    work = parse_policy(f"te(delay={delay},keep=0.5,keep_assistant=1)").work(long, SHAPE)
    cap = 4096
    assert work[-1].flops == 4 * 2 * cap * 10 * (2 * 8 + 5)
    mixed = parse_policy(f"te(proxy=tool+assistant+boundary,delay={delay},keep=0.5,keep_assistant=1)")
    rows = 3 * 10 * delay + cap + 3 * 2  # every source is capped by itself
    assert mixed.work(long, SHAPE)[-1].flops == 4 * 2 * rows * 10 * (2 * 8 + 5)


def test_where_layers_share_caches_each_is_scored_by_all_who_read_it():
    shared = KvShape(layers=4, kv_heads=2, q_heads=6, head_dim=8, dtype_bytes=2, readers=12)
    text = [SegmentSize("prefix", 5), *[SegmentSize("assistant", 20), SegmentSize("tool", 10)] * 2]
    alone, together = (parse_policy("te(keep=0.5)").work(text, shape)[-1] for shape in (SHAPE, shared))
    assert together.flops == 3 * alone.flops
