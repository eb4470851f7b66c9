"""The footprint of `te` against a brute-force simulation that moves tagged tokens turn by turn."""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lengths import LONG, segments

from kvmill.replay.policies.base import KvShape, SegmentSize, split_turns
from kvmill.replay.policies.registry import parse_policy
from kvmill.replay.policies.te import TokenEviction

SHAPE = KvShape(layers=4, kv_heads=2, q_heads=6, head_dim=8, dtype_bytes=2)
KEEPS = ["0", "0.1", "0.2", "0.33", "0.5", "1"]


@dataclass
class Token:
    turn: int
    kind: str
    protected: bool


@dataclass
class Seen:
    rows: int
    peak: int
    queries: int
    queries_peak: int
    compactions: int


def keep_of(policy: TokenEviction, kind: str) -> Decimal | None:
    own = {"tool": policy.keep_tool, "assistant": policy.keep_assistant, "user": policy.keep_user}[kind]
    return own if own is not None else (None if kind == "user" else policy.keep)


def brute_force(policy: TokenEviction, text: list[SegmentSize]) -> list[Seen]:
    """Feed every token, then evict token by token from turn t − delay; captured queries are listed one by one."""
    live: list[Token] = []
    # (turn it was captured in, for its own turn only, tokens)
    captured: list[tuple[int, bool]] = []
    out = []
    for t, turn in enumerate(split_turns(text)):
        for segment in turn.segments():
            shielded = set(segment.protected_at or ()) if policy.protect == "structure" else set()
            live += [Token(t, segment.kind, i in shielded) for i in range(segment.tokens)]
            if segment.kind in policy.proxy.split("+") and policy.delay and t:
                captured += [(t, False)] * segment.tokens
            if "boundary" in policy.proxy and segment.kind != "prefix" and keep_of(policy, segment.kind) is not None:
                captured += [(t, True)] * min(segment.closing, segment.tokens)
        peak, queries_peak, compactions = len(live), len(captured), 0
        due = t - policy.delay
        for kind in ("user", "assistant", "tool"):
            mine = [token for token in live if token.turn == due and token.kind == kind]
            keep = keep_of(policy, kind)
            if due < 0 or not mine or keep is None:
                continue
            m = max(1, math.ceil(Fraction(keep) * len(mine)))
            order = sorted(mine, key=lambda token: not token.protected)
            kept = order[: max(m, sum(token.protected for token in mine))]
            compactions += len(kept) < len(mine)
            drop = {id(token) for token in mine} - {id(token) for token in kept}
            live = [token for token in live if id(token) not in drop]
        # A later compaction, of a turn v > due at the close of v + delay, reads queries of v+1 … v+delay.
        captured = [
            (u, own)
            for u, own in captured
            if (u > due if own else any(v < u <= v + policy.delay for v in range(max(0, due + 1), u)))
        ]
        out.append(Seen(len(live), peak, len(captured), queries_peak, compactions))
    return out


@st.composite
def policies(draw: st.DrawFn) -> TokenEviction:
    proxy = draw(st.sampled_from(["assistant", "boundary", "tool", "assistant+boundary", "assistant+tool+boundary"]))
    delay = draw(st.integers(0 if proxy == "boundary" else 1, 5))
    parts = [f"proxy={proxy}", f"delay={delay}", f"keep={draw(st.sampled_from(KEEPS))}"]
    for name in ("keep_tool", "keep_assistant", "keep_user"):
        if draw(st.integers(0, 3)) == 0:
            parts.append(f"{name}={draw(st.sampled_from(KEEPS))}")
    parts.append(f"protect={draw(st.sampled_from(['structure', 'none']))}")
    policy = parse_policy(f"te({','.join(parts)})")
    assert isinstance(policy, TokenEviction)
    return policy


@settings(max_examples=150, deadline=None)
@given(policies(), segments())
def test_footprint_equals_brute_force(policy: TokenEviction, text: list[SegmentSize]):
    found = [
        Seen(f.kv_rows, f.kv_rows_peak, f.query_rows, f.query_rows_peak, f.compactions) for f in policy.footprint(text)
    ]
    assert found == brute_force(policy, text)


@settings(max_examples=50, deadline=None)
@given(policies(), segments(tokens=st.just(1)))
def test_footprint_equals_brute_force_on_one_token_segments(policy: TokenEviction, text: list[SegmentSize]):
    found = policy.footprint(text)
    assert [f.kv_rows for f in found] == [s.rows for s in brute_force(policy, text)]
    assert found[-1].kv_rows == len(text), "m is at least one, so nothing is ever evicted"


@given(segments())
def test_keep_one_is_the_full_cache(text: list[SegmentSize]):
    full = parse_policy("full").footprint(text)
    te = parse_policy("te(keep=1)").footprint(text)
    assert [(f.kv_rows, f.kv_rows_peak) for f in te] == [(f.kv_rows, f.kv_rows_peak) for f in full]
    assert all(f.compactions == 0 for f in te)


def test_a_trajectory_that_ends_inside_the_delay_saves_nothing():
    text = [SegmentSize("prefix", 50), *[SegmentSize("assistant", 20), SegmentSize("tool", 100)] * 3]
    delayed = parse_policy("te(delay=3)").footprint(text)
    assert delayed[-1].kv_rows == 50 + 3 * 120
    assert parse_policy("te(delay=2)").footprint(text)[-1].kv_rows == 50 + 2 * 120 + 4 + 20


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
