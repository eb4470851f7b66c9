"""The ledger of the running policies against a brute force that feeds and evicts one token at a time."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lengths import LONG, segments

from kvmill.replay.policies.base import KvShape, SegmentSize, split_turns
from kvmill.replay.policies.registry import parse_policy
from kvmill.replay.policies.running import RunningPolicy
from kvmill.replay.policies.truncate import last_tokens, unchanged

SHAPE = KvShape(layers=4, kv_heads=2, q_heads=6, head_dim=8, dtype_bytes=2)
TRIGGERS = ["turn", "threshold:1", "threshold:1.1", "threshold:2.5", "tokens:1", "tokens:7", "tokens:50", "tokens:300"]


@dataclass
class Seen:
    rows: int
    peak: int
    compactions: int
    scalars: int
    scalars_peak: int


def looks_at(trigger: str, fed: int, of: int) -> bool:
    kind, _, value = trigger.partition(":")
    if kind == "threshold":
        return fed % 256 == 0 or fed == of
    return kind == "tokens" and fed % int(value) == 0


def is_forced(policy: RunningPolicy, segment: SegmentSize, offset: int) -> bool:
    if policy.name == "sink_window":
        return segment.kind == "user" or (segment.kind == "prefix" and offset < policy.sinks)  # type: ignore[attr-defined]
    if segment.kind == "user":
        return True
    return policy.name != "truncate" and policy.protect == "structure" and offset in (segment.protected_at or ())  # type: ignore[attr-defined]


def brute_force(policy: RunningPolicy, text: list[SegmentSize]) -> list[Seen]:
    live: list[bool] = []  # one entry per compactable row: whether it is forced
    seen_tokens = fixed = peak = evictions = scalars_peak = 0
    biased = False
    per_row = {"attention": 1, "hybrid": 3, "merge": 3}.get(policy.name, 0)
    if policy.name == "attention" and policy.window:  # type: ignore[attr-defined]
        per_row = 2

    def held() -> int:
        # β, once there is any, belongs to every row of the cache.
        return per_row * len(live) + (fixed + len(live) if biased else 0)

    def look() -> None:
        nonlocal live, evictions, biased, scalars_peak
        budget = policy.budget or max(1, math.ceil(Fraction(policy.keep) * seen_tokens))
        allowed = max(budget, sum(live))
        kind, _, value = policy.trigger.partition(":")
        limit = allowed * (Fraction(value) if kind == "threshold" else 1)
        if len(live) > limit:
            evictions += 1
            drop = len(live) - allowed
            for index in [i for i, forced in enumerate(live) if not forced][:drop][::-1]:
                del live[index]
            biased = policy.name == "merge" and policy.mass_bias  # type: ignore[attr-defined]
            scalars_peak = max(scalars_peak, held())

    out = []
    for turn in split_turns(text):
        peak, evictions, scalars_peak = len(live), 0, held()
        for segment in turn.segments():
            if segment.kind == "prefix" and policy.prefix == "keep":
                fixed += segment.tokens
                continue
            for offset in range(segment.tokens):
                live.append(is_forced(policy, segment, offset))
                seen_tokens += 1
                # A text-level policy cuts the tool response with the rest before it is fed.
                if policy.name != "truncate" or segment.kind != "tool":
                    peak, scalars_peak = max(peak, len(live)), max(scalars_peak, held())
                if looks_at(policy.trigger, offset + 1, segment.tokens):
                    look()
        if policy.trigger == "turn":
            look()
        peak = max(peak, len(live))
        out.append(Seen(fixed + len(live), fixed + peak, evictions, held(), scalars_peak))
    return out


@st.composite
def policies(draw: st.DrawFn) -> RunningPolicy:
    name = draw(st.sampled_from(["truncate", "sink_window", "random", "attention", "hybrid", "merge"]))
    parts = [f"prefix={draw(st.sampled_from(['keep', 'drop']))}"]
    keeps = [f"keep={k}" for k in ("0", "0.1", "0.2", "0.5", "1")]
    parts.append(draw(st.sampled_from([*keeps, "budget=1", "budget=30", "budget=400"])))
    if name != "truncate":
        parts.append(f"trigger={draw(st.sampled_from(TRIGGERS))}")
    if name == "sink_window" and parts[0] == "prefix=drop":
        parts.append(f"sinks={draw(st.integers(0, 6))}")
    elif name not in ("truncate", "sink_window"):
        parts.append(f"protect={draw(st.sampled_from(['structure', 'none']))}")
    if name == "merge":
        parts.append(f"mass_bias={draw(st.sampled_from(['true', 'false']))}")
    if name == "attention" and draw(st.booleans()):
        parts.append("window=20")
    policy = parse_policy(f"{name}({','.join(parts)})")
    assert isinstance(policy, RunningPolicy)
    return policy


@settings(max_examples=150, deadline=None)
@given(policies(), segments(tokens=LONG, most_turns=5))
def test_footprint_equals_brute_force(policy: RunningPolicy, text: list[SegmentSize]):
    found = [
        Seen(f.kv_rows, f.kv_rows_peak, f.compactions, f.scalar_rows, f.scalar_rows_peak)
        for f in policy.footprint(text)
    ]
    assert found == brute_force(policy, text)


@settings(max_examples=50, deadline=None)
@given(segments(), st.sampled_from(["truncate", "sink_window", "random", "attention", "hybrid", "merge"]))
def test_keep_one_is_the_full_cache(text: list[SegmentSize], name: str):
    rows = [f.kv_rows for f in parse_policy(f"{name}(keep=1)").footprint(text)]
    assert rows == [f.kv_rows for f in parse_policy("full").footprint(text)]


@settings(max_examples=60, deadline=None)
@given(policies(), segments(most_turns=5))
def test_work_is_never_negative_and_gathers_only_after_evictions(policy: RunningPolicy, text: list[SegmentSize]):
    for work, step in zip(policy.work(text, SHAPE), policy.footprint(text), strict=True):
        assert work.flops >= 0
        assert work.bytes >= 0
        if policy.name in ("sink_window", "random"):
            assert (work.bytes > 0) == (step.compactions > 0)
            assert work.flops == 0


def test_attention_scores_every_pair_of_a_causal_prefill():
    """n tokens in one go see n²/2 pairs; each costs the second product with the keys and the softmax."""
    n = 200
    policy = parse_policy("attention(keep=1)")
    work = policy.work([SegmentSize("prefix", 0), SegmentSize("assistant", n)], SHAPE)
    assert work[0].flops == n * n / 2 * SHAPE.layers * SHAPE.q_heads * (2 * SHAPE.head_dim + 5)


def test_watching_reads_keys_once_per_pass_and_numbers_twice():
    """30 generated tokens are 30 passes; a tool answer of 300 is two, cut at 256; P is seen by all of them."""
    policy = parse_policy("attention(keep=1,window=9)")
    text = [SegmentSize("prefix", 10), SegmentSize("assistant", 30), SegmentSize("tool", 300)]
    own = sum(range(1, 31)) + (30 + 256) + (30 + 300)
    work = policy.work(text, SHAPE)[0]
    keys = (own + 32 * 10) * SHAPE.row_bytes / 2
    assert work.bytes == keys + 2 * own * 2 * 4 * SHAPE.layers * SHAPE.kv_heads
    pairs = 330 * 10 + 30 * 30 / 2 + 300 * 30 + 300 * 300 / 2
    assert work.flops == pairs * SHAPE.layers * SHAPE.q_heads * (2 * SHAPE.head_dim + 5)


def test_merging_costs_what_clustering_compares():
    """One merger of 100 rows, 10 of them forced, into 20: 90 points and 10 clusters, in 2 of 4 layers."""
    text = [SegmentSize("prefix", 0), SegmentSize("user", 10), SegmentSize("assistant", 90)]
    spec = "merge(budget=20,trigger=turn,protect=none,layers=2-3,space=post)"
    merge, watch = parse_policy(spec).work(text, SHAPE)[0], parse_policy("attention(keep=1)").work(text, SHAPE)[0]
    distances = 90 * 90 / 2 + (3 * 90 + 90) * 10
    moved = 2 * (3 * 90) + 4 * 90
    assert merge.flops - watch.flops == 2 * SHAPE.kv_heads * SHAPE.head_dim * (2 * distances + moved)


@pytest.mark.parametrize(
    ("trigger", "tokens", "offsets"),
    [
        ("turn", 600, []),
        ("threshold:1.1", 600, [256, 512, 600]),
        ("threshold:1.1", 512, [256, 512]),
        ("threshold:1.1", 3, [3]),
        ("tokens:50", 120, [50, 100]),
        ("tokens:50", 49, []),
    ],
)
def test_where_a_rule_looks_inside_a_segment(trigger: str, tokens: int, offsets: list[int]):
    assert parse_policy(f"random(trigger={trigger})").checks(tokens) == offsets


def fed_again(text: list[SegmentSize], policy: RunningPolicy) -> list[int]:
    """Tokens of the new text, beyond P, after the longest start it shares with the old text."""
    live: list[tuple[int, bool]] = []
    fresh = seen = 0
    out = []
    for turn in split_turns(text):
        for segment in turn.segments():
            if segment.kind == "prefix" and policy.prefix == "keep":
                continue
            seen += segment.tokens
            for _ in range(segment.tokens):
                live.append((fresh, segment.kind == "user"))
                fresh += 1
        budget = policy.budget or max(1, math.ceil(Fraction(policy.keep) * seen))
        spare = budget - sum(user for _, user in live)
        new, left = [], max(0, spare)
        for token in reversed(live):
            if token[1] or left > 0:
                new.append(token)
                left -= not token[1]
        new.reverse()
        shared = 0
        while shared < min(len(new), len(live)) and new[shared] == live[shared]:
            shared += 1
        out.append(len(new) - shared)
        live = new
    return out


@settings(max_examples=100, deadline=None)
@given(segments(tokens=LONG), st.sampled_from(["keep=0", "keep=0.2", "keep=0.7", "keep=1", "budget=60"]), st.booleans())
def test_truncation_feeds_again_what_follows_the_first_changed_token(text: list[SegmentSize], size: str, drop: bool):
    policy = parse_policy(f"truncate({size},prefix={'drop' if drop else 'keep'})")
    assert isinstance(policy, RunningPolicy)
    assert [f.reprefill_tokens for f in policy.footprint(text)] == fed_again(text, policy)


def test_a_truncated_text_without_users_is_fed_again_whole():
    text = [SegmentSize("prefix", 50), *[SegmentSize("assistant", 20), SegmentSize("tool", 80)] * 3]
    steps = parse_policy("truncate(keep=0.2)").footprint(text)
    assert [s.kv_rows for s in steps] == [50 + 20, 50 + 40, 50 + 60]
    assert [s.reprefill_tokens for s in steps] == [20, 40, 60]


def test_last_tokens_keeps_user_tokens_whole_and_counts_them_inside():
    user = [True, True, False, False, False, True]
    assert last_tokens(user, 4) == [0, 1, 4, 5]
    assert last_tokens(user, 3) == [0, 1, 5]
    assert unchanged([0, 1, 4, 5]) == 2
    assert unchanged([2, 3]) == 0
    assert unchanged([]) == 0
