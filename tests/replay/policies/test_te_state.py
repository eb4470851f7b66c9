"""Which rows te keeps, against a float64 implementation written from the formula, on captured tensors."""

from __future__ import annotations

import math

import pytest
import torch
from tiny import tiny_model, trajectory

from kvmill.replay.forward import Forward
from kvmill.replay.lockstep import Lockstep
from kvmill.replay.policies.full import Full
from kvmill.replay.policies.registry import parse_policy
from kvmill.replay.policies.te import TokenEviction
from kvmill.replay.segments import turns_of
from kvmill.traces.tokens import TokenSegment

Captured = dict[tuple[int, str], list[torch.Tensor]]


def recorded(policy: str, turns: int) -> tuple[Lockstep, Captured, dict[tuple[int, str], tuple[int, TokenSegment]]]:
    """Run `turns` turns without the compaction at the end of the last; all queries of the branch by (turn, kind)."""
    forward = Forward(tiny_model())
    step = Lockstep(forward, trajectory(users=False), [Full(), parse_policy(policy)], seed=0)
    captured: Captured = {}
    starts: dict[tuple[int, str], tuple[int, TokenSegment]] = {}
    spot: list[tuple[int, str]] = [(0, "prefix")]
    branch = step.branches[1]
    right = branch.state.observe
    branch.state.begin = lambda chunk, begin=branch.state.begin: begin(chunk) or True  # type: ignore[method-assign]

    def observe(layer, sight, index):
        pieces = captured.setdefault(spot[0], [torch.zeros(6, 0, 8)] * 3)
        pieces[layer] = torch.cat([pieces[layer], sight.queries], dim=1)
        right(layer, sight, index)

    branch.state.observe = observe  # type: ignore[method-assign]
    for turn, segments in enumerate(turns_of(step.trajectory)[:turns]):
        for s in segments:
            spot[0] = (s.turn, s.kind)
            starts[spot[0]] = (step.logical, s)
            for chunk in step.chunks(s):
                step.feed(chunk)
        if turn < turns - 1:
            step.compact(turn)
            step.settle(turn)
    return step, captured, starts


def float64_choice(
    queries: torch.Tensor, keys: torch.Tensor, keep: int, forced: list[int], reduction: str
) -> list[list[int]]:
    """Per KV head: forced, then the best by the score of the formula; queries (H_q, L, D), keys (H_kv, n, D)."""
    group = queries.shape[0] // keys.shape[0]
    chosen = []
    for h in range(keys.shape[0]):
        scores = [0.0] * keys.shape[1]
        rows = [q for g in range(group) for q in queries[h * group + g].double()]
        for q in rows:
            logits = [float(q @ k) / math.sqrt(q.shape[0]) for k in keys[h].double()]
            top = max(logits)
            total = sum(math.exp(x - top) for x in logits)
            for j, x in enumerate(logits):
                weight = math.exp(x - top) / total
                scores[j] = max(scores[j], weight) if reduction == "max" else scores[j] + weight**2
        rest = sorted((j for j in range(len(scores)) if j not in forced), key=lambda j: -scores[j])
        chosen.append(sorted(forced + rest[: keep - len(forced)]))
    return chosen


@pytest.mark.parametrize(
    ("policy", "source"),
    [
        ("te(keep=0.2)", "assistant"),
        ("te(keep=0.3,reduction=max,protect=none)", "assistant"),
        ("te(proxy=tool,keep=0.2)", "tool"),
        ("te(proxy=boundary,keep=0.2)", "own"),
    ],
)
def test_te_keeps_what_the_formula_in_float64_keeps(policy: str, source: str) -> None:
    step, captured, starts = recorded(policy, turns=2)
    branch = step.branches[1]
    rule = branch.policy
    assert isinstance(rule, TokenEviction)
    due = 1 - rule.delay
    before = [branch.lane.cache.view(layer)[0].clone() for layer in range(3)]
    held_before = branch.index.clone()
    step.compact(1)
    for kind in ("assistant", "tool"):
        start, s = starts[(due, kind)]
        n = len(s.ids)
        keep = max(1, math.ceil(float(rule.keep) * n - 1e-9))
        forced = list(s.structural) if rule.protect == "structure" else []
        for layer in range(3):
            if source == "own":
                queries = captured[(due, kind)][layer][:, n - s.closing :]
            else:
                queries = captured[(1, source)][layer]
            at = int((held_before[layer, 0] < start).sum())
            want = float64_choice(queries, before[layer][:, at : at + n], keep, forced, rule.reduction)
            for head in range(2):
                index = branch.index[layer, head]
                got = [int(t) - start for t in index if start <= int(t) < start + n]
                assert got == want[head]


def test_a_mix_fills_the_budget_from_both_sources_and_token_granularity_is_shared() -> None:
    step, _, starts = recorded("te(proxy=assistant+tool,keep=0.4,granularity=token)", turns=2)
    branch = step.branches[1]
    step.compact(1)
    start, s = starts[(0, "tool")]
    held = [[int(t) for t in row if start <= int(t) < start + len(s.ids)] for row in branch.index.flatten(0, 1)]
    assert {len(h) for h in held} == {math.ceil(0.4 * len(s.ids) - 1e-9)}
    by_layer = [held[2 * layer : 2 * layer + 2] for layer in range(3)]
    assert all(a == b for a, b in by_layer)
    assert by_layer[0] != by_layer[1]


def test_frozen_segments_are_never_touched_again() -> None:
    forward = Forward(tiny_model())
    step = Lockstep(forward, trajectory(), [Full(), parse_policy("te(keep=0.2)")], seed=0)
    branch, seen = step.branches[1], {}
    first_of: dict[int, tuple[int, int]] = {}
    for turn, segments in enumerate(turns_of(step.trajectory)):
        begin = step.logical
        for s in segments:
            for chunk in step.chunks(s):
                step.feed(chunk)
        first_of[turn] = (begin, step.logical)
        step.compact(turn)
        step.settle(turn)
        for old in range(turn - 1):
            low, high = first_of[old]
            inside = (branch.index >= low) & (branch.index < high)
            now = branch.index[inside].tolist()
            assert seen.setdefault(old, now) == now
    assert branch.error is None
    assert len(seen) >= 3
