"""adaptive's arithmetic: what it may hold, and what a simulation makes of a loss target."""

from __future__ import annotations

import math
import random

import pytest

from kvmill.errors import UserError
from kvmill.replay.policies.adaptive import Adaptive
from kvmill.replay.policies.base import KvShape, SegmentSize
from kvmill.replay.policies.registry import parse_policy

SHAPE = KvShape(3, 2, 6, 8, 4)


def text(turns: int = 9, seed: int = 2, users: bool = True) -> list[SegmentSize]:
    draw = random.Random(seed)
    out = [SegmentSize("prefix", 30, 2)]
    for turn in range(turns):
        if users and turn in (3, 5):
            out.append(SegmentSize("user", 11, 2))
        out.append(SegmentSize("assistant", draw.randrange(1, 40), 2))
        if turn != 4:
            out.append(SegmentSize("tool", draw.randrange(1, 200), 2))
    return out


def test_at_equal_keep_it_holds_what_te_holds_up_to_the_rounding_of_segments() -> None:
    """te rounds every segment up, adaptive the whole pool once."""
    for delay in (1, 2, 4):
        mine = parse_policy(f"adaptive(keep=0.2,delay={delay})").footprint(text())
        theirs = parse_policy(f"te(keep=0.2,delay={delay})").footprint(text())
        segments = 0
        for t, (a, b) in enumerate(zip(mine, theirs, strict=True)):
            segments += 2 * (t >= delay)
            assert 0 <= b.kv_rows - a.kv_rows <= 2 * segments


def test_a_budget_is_used_before_anything_is_evicted_and_kept_as_far_as_it_can_be() -> None:
    full, mine = parse_policy("full").footprint(text()), parse_policy("adaptive(budget=400)").footprint(text())
    recent = [sum(s.tokens for s in turn) for turn in _turns(text())]
    evicted = False
    for t, (a, b) in enumerate(zip(mine, full, strict=True)):
        evicted = evicted or b.kv_rows - 30 > 400
        if not evicted:
            assert a.kv_rows == b.kv_rows
        else:
            assert a.kv_rows - 30 <= max(400, recent[t] + 4 * (t + 1) + 22)
    assert evicted


def _turns(segments: list[SegmentSize]) -> list[list[SegmentSize]]:
    out: list[list[SegmentSize]] = [[]]
    for i, s in enumerate(segments):
        if s.kind == "prefix":
            continue
        out[-1].append(s)
        after = segments[i + 1].kind if i + 1 < len(segments) else None
        if s.kind == "tool" or (s.kind == "assistant" and after != "tool"):
            out.append([])
    return out[:-1]


def test_a_loss_target_holds_at_most_everything_and_is_simulated_at_what_was_measured() -> None:
    lossy = parse_policy("adaptive(loss=0.1,delay=2)")
    full = parse_policy("full").footprint(text())
    assert [f.kv_rows for f in lossy.footprint(text())] == [f.kv_rows for f in full]
    stands = lossy.as_measured(0.31234)
    assert stands == parse_policy("adaptive(keep=0.3123,delay=2)")
    assert parse_policy("adaptive(keep=0.2)").as_measured(0.5) == parse_policy("adaptive(keep=0.2)")
    with pytest.raises(UserError, match="replay it first"):
        lossy.as_measured(None)


def test_one_target_at_a_time() -> None:
    for two in ("keep=0.2,budget=9", "keep=0.2,loss=0.1", "budget=9,loss=0.1"):
        with pytest.raises(UserError, match="one of keep, budget and loss"):
            parse_policy(f"adaptive({two})")


def test_work_grows_with_what_is_asked_and_what_is_held() -> None:
    policy = Adaptive()
    work, prints = policy.work(text(), SHAPE), policy.footprint(text())
    assert work[0].flops == 0, "nobody has asked yet"
    for step, done in zip(prints[1:], work[1:], strict=True):
        pairs = step.query_rows_peak * (2 * step.kv_rows_peak - 30)
        assert math.isclose(done.flops, pairs * 3 * 6 * (2 * 8 + 5))
