"""Policies held to one size, against the lengths they are solved from."""

from __future__ import annotations

import random

import pytest

from kvmill.errors import UserError
from kvmill.replay.equal import SIZES, hold_equal, rows_held
from kvmill.replay.policies.base import SegmentSize
from kvmill.replay.policies.registry import parse_policies, parse_policy

REFERENCE = parse_policy("te(proxy=assistant,delay=1,keep=0.2)")
OTHERS = ["full", "te(proxy=boundary)", "te(delay=3)", "random", "truncate", "sink_window", "attention(budget=40)"]


def lengths(seed: int, turns: int = 20) -> list[SegmentSize]:
    draw = random.Random(seed)
    out = [SegmentSize("prefix", 40, 4)]
    for _ in range(turns):
        out += [SegmentSize("assistant", draw.randrange(20, 60), 2), SegmentSize("tool", draw.randrange(80, 300), 2)]
    return out


TEXTS = [lengths(seed) for seed in range(4)]


@pytest.mark.parametrize("size", sorted(SIZES))
def test_all_hold_what_the_reference_holds(size: str) -> None:
    target = rows_held(REFERENCE, TEXTS, size)
    solved = hold_equal(parse_policies(OTHERS), REFERENCE, TEXTS, size)
    assert [p.name for p in solved] == [parse_policy(p).name for p in OTHERS]
    assert str(solved[0]) == "full"
    for policy in solved[1:]:
        assert rows_held(policy, TEXTS, size) == pytest.approx(target, rel=0.02)  # thresholds hold about that
        assert parse_policy(str(policy)) == policy, "it is written as it ran"


def test_boundary_may_keep_more_because_it_holds_no_raw_turn() -> None:
    boundary, late = hold_equal(
        [parse_policy("te(proxy=boundary)"), parse_policy("te(delay=3)")], REFERENCE, TEXTS, "final"
    )
    assert boundary.keep > REFERENCE.keep > late.keep  # type: ignore[attr-defined]


def test_the_reference_itself_is_left_alone() -> None:
    assert hold_equal([REFERENCE], REFERENCE, TEXTS) == [REFERENCE]


def test_adaptive_is_held_too_but_not_to_a_loss() -> None:
    solved = hold_equal([parse_policy("adaptive"), parse_policy("adaptive(budget=300)")], REFERENCE, TEXTS, "mean")
    for policy in solved:
        assert rows_held(policy, TEXTS, "mean") == pytest.approx(rows_held(REFERENCE, TEXTS, "mean"), rel=0.01)
    with pytest.raises(UserError, match="no keep ratio that could be solved"):
        hold_equal([parse_policy("adaptive(loss=0.1)")], REFERENCE, TEXTS)


def test_what_cannot_be_held_is_said() -> None:
    with pytest.raises(UserError, match=r"te\(delay=15\) cannot hold .* the nearest is"):
        hold_equal([parse_policy("te(delay=15)")], REFERENCE, TEXTS)
    with pytest.raises(UserError, match="unknown size"):
        rows_held(REFERENCE, TEXTS, "median")
