"""The footprint of `te` and `am` with every option, against a simulation that moves tagged tokens one by one."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lengths import LONG, segments

from kvmill.replay.policies.base import KvShape, SegmentSize, TurnFootprint, split_turns
from kvmill.replay.policies.proxy import PROXIES, ProxyPolicy
from kvmill.replay.policies.registry import parse_policy

SHAPE = KvShape(layers=4, kv_heads=2, q_heads=6, head_dim=8, dtype_bytes=2, readers=7)
KEEPS = ["0", "0.1", "0.2", "0.33", "0.5", "1"]


@dataclass(eq=False)
class Token:
    turn: int
    segment: SegmentSize
    offset: int
    beta: bool = False

    def protected(self, protect: str) -> bool:
        for part in protect.split("+"):
            name, _, count = part.partition(":")
            if name == "structure" and self.offset in (self.segment.protected_at or ()):
                return True
            if name == "sinks" and self.offset < int(count):
                return True
            if name == "last" and self.offset >= self.segment.tokens - int(count):
                return True
        return False


@dataclass
class Query:
    """One captured token: the turns whose compaction may still read it."""

    first: int
    last: int


def keep_of(policy: ProxyPolicy, kind: str) -> Decimal | None:
    own = {"tool": policy.keep_tool, "assistant": policy.keep_assistant, "user": policy.keep_user}[kind]
    return own if own is not None else (None if kind == "user" else policy.keep)


def staying(policy: ProxyPolicy, tokens: list[Token]) -> list[Token]:
    """Which of a segment's tokens stay: the protected ones, then as many others as m has room for."""
    kind = tokens[0].segment.kind
    keep = Decimal(1) if kind == "prefix" else keep_of(policy, kind)
    if keep is None:
        return tokens
    m = max(1, math.ceil(Fraction(keep) * len(tokens)))
    order = sorted(tokens, key=lambda token: not token.protected(policy.protect))
    return order[: max(m, sum(token.protected(policy.protect) for token in tokens))]


def brute_force(policy: ProxyPolicy, text: list[SegmentSize], prompt: int) -> Iterator[dict[str, int]]:
    """Feed token by token, list every captured query, then evict token by token."""
    sources = policy.proxy.split("+")
    logs = policy.normaliser == "global" or getattr(policy, "weighting", "none") == "share"
    live: list[Token] = []
    captured: list[Query] = []
    any_beta = False

    def aux() -> int:
        query = SHAPE.readers * SHAPE.q_heads * (SHAPE.head_dim * SHAPE.dtype_bytes + 4 * logs)
        return len(captured) * query + 4 * sum(SHAPE.layers * SHAPE.kv_heads for token in live if token.beta)

    turns = [
        [[Token(t, s, i) for i in range(s.tokens)] for s in turn.segments()] for t, turn in enumerate(split_turns(text))
    ]
    for t, turn in enumerate(turns):
        losing = [s for s in turn if s and len(staying(policy, s)) < len(s)]
        for tokens in turn:
            for token in tokens:
                token.beta = any_beta
                live.append(token)
                if token.segment.kind in sources and t > 0:
                    captured.append(Query(t - policy.delay, t - 1))
                if "boundary" in sources and tokens in losing and token.offset >= len(tokens) - token.segment.closing:
                    captured.append(Query(t, t))
        copied = 0
        if "repeat" in sources and losing:
            whole = [s for s in turn if s and s[0].segment.kind != "prefix"]
            whole = [s for s in whole if keep_of(policy, s[0].segment.kind) is not None]
            copied = prompt + sum(len(s) for s in whole)
            captured += [Query(t, t) for s in losing for _ in s]
        seen = {"kv_rows_peak": len(live), "copied_tokens": copied, "transient_rows": copied, "before": aux()}
        due = t - policy.delay
        compactions = 0
        for tokens in turns[due] if due >= 0 else ():
            stays = staying(policy, tokens) if tokens else []
            compactions += len(stays) < len(tokens)
            live = [token for token in live if token not in tokens or token in stays]
        if compactions and policy.name == "am":
            any_beta = True
            for token in live:
                token.beta = True
        captured = [query for query in captured if any(query.first <= v <= query.last for v in range(due + 1, t + 1))]
        yield {
            **seen,
            "kv_rows": len(live),
            "compactions": compactions,
            "aux_bytes": aux(),
            "aux_bytes_peak": max(seen["before"], aux()),
        }


@st.composite
def policies(draw: st.DrawFn) -> ProxyPolicy:
    proxies = draw(st.lists(st.sampled_from(PROXIES), min_size=1, max_size=4, unique=True))
    future = "assistant" in proxies or "tool" in proxies
    name = draw(st.sampled_from(["te", "am"]))
    parts = [f"proxy={'+'.join(proxies)}", f"keep={draw(st.sampled_from(KEEPS))}"]
    if draw(st.booleans()):
        parts.append(f"delay={draw(st.sampled_from([1, 2, 3, 5] if future else [0, 1, 2, 5]))}")
    for option in ("keep_tool", "keep_assistant", "keep_user"):
        if draw(st.integers(0, 3)) == 0:
            parts.append(f"{option}={draw(st.sampled_from(KEEPS))}")
    protect = draw(st.sets(st.sampled_from(["structure", "sinks", "last"]), max_size=3))
    spelled = [p if p == "structure" else f"{p}:{draw(st.integers(1, 9))}" for p in sorted(protect)]
    parts.append(f"protect={'+'.join(spelled) or 'none'}")
    parts += draw(st.sampled_from([[], ["normaliser=global"]]))
    parts += draw(st.sampled_from([[], ["granularity=token"], ["reduction=max"]]))
    if name == "am":
        parts += draw(st.sampled_from([[], ["weighting=share"], ["fallback=none"]]))
    policy = parse_policy(f"{name}({','.join(parts)})")
    assert isinstance(policy, ProxyPolicy)
    return policy


def check(policy: ProxyPolicy, text: list[SegmentSize]) -> list[TurnFootprint]:
    steps = policy.footprint(text)
    prompt = text[-1].repeat_prompt
    for step, want in zip(steps, brute_force(policy, text, prompt), strict=True):
        found = {
            "kv_rows": step.kv_rows,
            "kv_rows_peak": step.kv_rows_peak,
            "compactions": step.compactions,
            "copied_tokens": step.copied_tokens,
            "transient_rows": step.transient_rows,
            "aux_bytes": step.aux_bytes(SHAPE),
            "aux_bytes_peak": step.aux_bytes_peak(SHAPE),
        }
        assert found == {name: want[name] for name in found}
    return steps


@settings(max_examples=200, deadline=None)
@given(policies(), segments(tokens=st.one_of(st.integers(0, 12), st.integers(20, 60))))
def test_footprint_equals_brute_force(policy: ProxyPolicy, text: list[SegmentSize]) -> None:
    check(policy, text)


@settings(max_examples=20, deadline=None)
@given(policies(), segments(tokens=LONG, most_turns=3))
def test_footprint_equals_brute_force_on_long_segments(policy: ProxyPolicy, text: list[SegmentSize]) -> None:
    check(policy, text)


@settings(max_examples=50, deadline=None)
@given(policies(), segments(tokens=st.just(1)))
def test_a_segment_of_one_token_stays_and_nothing_is_done_for_it(policy: ProxyPolicy, text: list[SegmentSize]) -> None:
    steps = check(policy, text)
    assert steps[-1].kv_rows == len(text)
    assert not any(step.compactions or step.copied_tokens or step.scalar_rows for step in steps)


@settings(max_examples=50, deadline=None)
@given(policies(), segments(tokens=st.just(0)))
def test_empty_segments_hold_nothing(policy: ProxyPolicy, text: list[SegmentSize]) -> None:
    assert all(step == TurnFootprint(0, 0) for step in check(policy, text))


@pytest.mark.parametrize("delay", [1, 2, 3, 5])
def test_a_trajectory_that_ends_inside_the_delay_saves_nothing(delay: int) -> None:
    text = [SegmentSize("prefix", 50), *[SegmentSize("assistant", 20), SegmentSize("tool", 100)] * delay]
    for name in ("te", "am"):
        for proxy in ("assistant", "tool+assistant", "repeat"):
            policy = parse_policy(f"{name}(proxy={proxy},delay={delay})")
            steps = policy.footprint(text)
            assert [s.kv_rows for s in steps] == [50 + 120 * (t + 1) for t in range(delay)]
            assert not any(s.compactions or s.scalar_rows for s in steps)
            assert not any(w.flops for w in policy.work(text, SHAPE))
            assert policy.footprint([*text, *text[1:3]])[-1].kv_rows == 50 + 120 * delay + 4 + 20


def test_a_mix_of_one_turn_worked_out() -> None:
    """Assistant 20 (5 kept), tool 100 (20 kept), three closing tokens, a prompt of 9."""
    tool = SegmentSize("tool", 100, 0, (), 3, repeat_prompt=9)
    turn = [SegmentSize("assistant", 20, 0, (), 3, repeat_prompt=9), tool]
    text = [SegmentSize("prefix", 50), *turn * 3]
    policy = parse_policy("am(proxy=assistant+boundary+repeat,keep_assistant=0.25,normaliser=global)")
    first, second, third = policy.footprint(text)
    assert (first.query_rows, first.query_rows_peak) == (6 + 120, 6 + 120)
    assert (second.query_rows, second.query_rows_peak) == (6 + 120, 2 * (6 + 120) + 20)
    assert [s.transient_rows for s in (first, second, third)] == [9 + 120] * 3
    assert [s.scalar_rows for s in (first, second, third)] == [0, 50 + 25 + 120, 50 + 2 * 25 + 120]
    assert [s.scalar_rows_peak for s in (first, second, third)] == [0, 0, 50 + 25 + 240]
    assert third.normaliser_rows_peak == third.query_rows_peak
    partly = parse_policy("te(proxy=repeat,keep_tool=1)").footprint(text)
    assert [(s.copied_tokens, s.query_rows, s.query_rows_peak) for s in partly] == [(129, 0, 20)] * 3


OPTIONS: list[Callable[[str], str]] = [
    lambda name: f"{name}(proxy=boundary,keep=1)",
    lambda name: f"{name}(proxy=repeat+boundary,keep=1)",
    lambda name: f"{name}(keep=1,normaliser=global)",
]


@given(segments(), st.sampled_from(OPTIONS), st.sampled_from(["te", "am"]))
def test_keep_one_is_the_full_cache(text: list[SegmentSize], spelled: Callable[[str], str], name: str) -> None:
    full = parse_policy("full").footprint(text)
    found = parse_policy(spelled(name)).footprint(text)
    assert [(f.kv_rows, f.kv_rows_peak) for f in found] == [(f.kv_rows, f.kv_rows_peak) for f in full]
    assert not any(f.compactions or f.copied_tokens or f.scalar_rows for f in found)
