"""Shared arithmetic: exact shares, protected offsets, turns, bytes."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvmill.replay.policies.base import KvShape, SegmentSize, TurnFootprint, Work, ceil_share, split_turns
from kvmill.replay.policies.full import Full
from kvmill.replay.policies.protect import forced_before

SHAPE = KvShape(layers=30, kv_heads=3, q_heads=9, head_dim=64, dtype_bytes=4)


@pytest.mark.parametrize(
    ("keep", "tokens", "rows"),
    [
        ("0.1", 10, 1),  # 0.1·10 is 1, although the nearest double of 0.1 is above it
        ("0.1", 30, 3),
        ("0.2", 15, 3),
        ("0.7", 10, 7),
        ("0.2", 16, 4),
        ("0", 10, 1),
        ("1", 10, 10),
        ("0.2", 0, 0),
        ("0.000001", 5, 1),
    ],
)
def test_shares_are_exact_decimals_rounded_up(keep: str, tokens: int, rows: int):
    assert ceil_share(Decimal(keep), tokens) == rows


@given(st.decimals(0, 1, places=15), st.integers(1, 10**9))
def test_share_agrees_with_rational_arithmetic(keep: Decimal, tokens: int):
    exact = Fraction(keep) * tokens
    rows = ceil_share(keep, tokens)
    assert rows == max(1, -(-exact.numerator // exact.denominator))
    assert rows <= tokens


def test_protected_offsets_are_used_where_known_and_assumed_at_the_start_elsewhere():
    known = SegmentSize("tool", 10, protected=2, protected_at=(3, 9))
    assert [forced_before(known, "structure", n) for n in (0, 3, 4, 9, 10)] == [0, 0, 1, 1, 2]
    assumed = SegmentSize("tool", 10, protected=2)
    assert [forced_before(assumed, "structure", n) for n in (0, 1, 2, 10)] == [0, 1, 2, 2]


def test_a_turn_closes_after_its_tool_or_after_the_assistants_text():
    kinds = ["prefix", "assistant", "tool", "assistant", "user", "assistant", "tool"]
    turns = split_turns([SegmentSize(kind, 1 + i) for i, kind in enumerate(kinds)])  # type: ignore[arg-type]
    assert [[s.kind for s in turn.segments()] for turn in turns] == [
        ["prefix", "assistant", "tool"],
        ["assistant"],
        ["user", "assistant", "tool"],
    ]
    assert [turn.tokens for turn in turns] == [1 + 2 + 3, 4, 5 + 6 + 7]


def test_segments_outside_a_turn_are_an_error():
    with pytest.raises(ValueError, match="must follow an assistant"):
        split_turns([SegmentSize("prefix", 1), SegmentSize("tool", 1)])
    with pytest.raises(ValueError, match="after the last turn"):
        split_turns([SegmentSize("prefix", 1), SegmentSize("assistant", 1), SegmentSize("user", 1)])


def test_bytes_per_row_of_the_bundled_model():
    assert SHAPE.row_bytes == 45 * 1024  # craft.md 9: 45 KiB a token in float32
    assert SHAPE.group == 3


def test_aux_bytes_count_queries_of_all_heads_and_one_float_per_activity_row():
    held = TurnFootprint(100, 120, query_rows=10, query_rows_peak=20, scalar_rows=100, scalar_rows_peak=120)
    assert held.aux_bytes(SHAPE) == 10 * 30 * 9 * 64 * 4 + 100 * 30 * 3 * 4
    assert held.aux_bytes_peak(SHAPE) == 20 * 30 * 9 * 64 * 4 + 120 * 30 * 3 * 4


def test_work_adds_up():
    assert Work(1.0, 2.0) + Work(3.0, 4.0) == Work(4.0, 6.0)


def test_full_keeps_everything_and_does_nothing():
    text = [
        SegmentSize("prefix", 40),
        SegmentSize("assistant", 20),
        SegmentSize("tool", 100),
        SegmentSize("assistant", 5),
    ]
    assert Full().footprint(text) == [TurnFootprint(160, 160), TurnFootprint(165, 165)]
    assert Full().work(text, SHAPE) == [Work(), Work()]
