"""Which rows the running policies keep, against brute force over explicit lists."""

from __future__ import annotations

import math

import pytest
import torch
from tiny import tiny_model, trajectory

from kvmill.replay.forward import Forward
from kvmill.replay.lockstep import Lockstep
from kvmill.replay.policies.attention_state import AttentionState
from kvmill.replay.policies.full import Full
from kvmill.replay.policies.registry import parse_policy
from kvmill.replay.policies.running_states import RandomState
from kvmill.replay.segments import turns_of


def run(policy: str, turns: int | None = None, **kwargs: object) -> Lockstep:
    """The whole trajectory (or its first turns) under one policy, footprints checked."""
    step = Lockstep(Forward(tiny_model()), trajectory(**kwargs), [Full(), parse_policy(policy)], seed=7)  # type: ignore[arg-type]
    for turn, segments in enumerate(turns_of(step.trajectory)[:turns]):
        for s in segments:
            for chunk in step.chunks(s):
                step.feed(chunk)
                step.look(chunk)
        step.compact(turn)
        step.catch_up()
        step.settle(turn)
    assert step.branches[1].error is None
    return step


def kinds(step: Lockstep) -> list[str]:
    return [s.kind for s in step.trajectory.segments for _ in s.ids][: step.logical]


def rows_of(step: Lockstep) -> set[tuple[int, ...]]:
    """The distinct kept sets over layers and heads."""
    return {tuple(row) for row in step.branches[1].index.flatten(0, 1).tolist()}


@pytest.mark.parametrize("policy", ["sink_window(keep=0.2)", "truncate(keep=0.2)"])
def test_recency_keeps_prefix_user_and_the_last_tokens_in_every_head(policy: str) -> None:
    step = run(policy)
    kind = kinds(step)
    beyond = [t for t, k in enumerate(kind) if k != "prefix"]
    budget = math.ceil(len(beyond) / 5)
    user = [t for t in beyond if kind[t] == "user"]
    others = [t for t in beyond if kind[t] != "user"]
    want = sorted({*(t for t, k in enumerate(kind) if k == "prefix"), *user, *others[-(budget - len(user)) :]})
    if policy.startswith("truncate"):
        # The truncated text lost earlier tokens for good, and its window is full: the last ones are the same.
        assert step.branches[1].lane.position == step.branches[1].rows == len(want)
    assert rows_of(step) == {tuple(want)}


def test_sinks_stay_when_the_prefix_is_dropped() -> None:
    step = run("sink_window(prefix=drop,keep=0.2,sinks=3)", users=False)
    (row,) = rows_of(step)
    assert row[:3] == (0, 1, 2)
    assert list(row[3:]) == list(range(step.logical - len(row) + 3, step.logical))


def test_truncated_text_sits_contiguously_and_reads_like_a_fresh_prompt() -> None:
    step = run("truncate(keep=0.3)", turns=3)
    branch = step.branches[1]
    (row,) = rows_of(step)
    fresh = Lockstep(step.forward, step.trajectory, [Full()], seed=0).branches[0].lane
    step.forward.feed([fresh], [step.ids[t] for t in row])
    following = [3, 1, 4, 1, 5]
    a = step.forward.feed([branch.lane], following)
    b = step.forward.feed([fresh], following)
    torch.testing.assert_close(a, b, atol=1e-5, rtol=0)


def test_random_keeps_the_largest_fixed_numbers_and_sets_are_nested() -> None:
    step = run("random(keep=0.3)", users=False)
    branch = step.branches[1]
    assert isinstance(branch.state, RandomState)
    kept_earlier = run("random(keep=0.3)", turns=4, users=False).branches[1].index
    limit = int(kept_earlier.max()) + 1
    for layer in range(3):
        for head in range(2):
            now = set(branch.index[layer, head].tolist())
            assert {t for t in now if t < limit} <= set(kept_earlier[layer, head].tolist())
    first = run("random(keep=0.3)", turns=1, users=False)
    structural, at = set(), 0
    for s in turns_of(first.trajectory)[0]:
        structural |= {at + o for o in s.structural} if s.kind != "prefix" else set()
        at += len(s.ids)
    prefix = sum(k == "prefix" for k in kinds(first))
    keep = math.ceil(0.3 * (first.logical - prefix) - 1e-9)
    state = first.branches[1].state
    assert isinstance(state, RandomState)
    for layer in range(3):
        for head in range(2):
            number = state.uniform[layer, head].tolist()
            free = sorted((t for t in range(prefix, first.logical) if t not in structural), key=lambda t: -number[t])
            want = sorted({*range(prefix), *structural, *free[: keep - len(structural)]})
            assert first.branches[1].index[layer, head].tolist() == want


@pytest.mark.parametrize("locality", ["none", "distance", "normalised"])
def test_activity_is_the_decayed_sum_written_out(locality: str) -> None:
    """keep=1 never evicts, so the final activity can be computed query by query from the full run."""
    policy = f"attention(keep=1,decay=0.95,locality={locality},distance=5)"
    step = Lockstep(Forward(tiny_model()), trajectory(turns=2, users=False), [Full(), parse_policy(policy)], seed=0)
    branch = step.branches[1]
    state = branch.state
    assert isinstance(state, AttentionState)
    prefix = len(step.trajectory.segments[0].ids)
    seen: list[list[torch.Tensor]] = [[] for _ in range(3)]
    right = state.observe

    def observe(layer, queries, keys, scaling, index, bias):
        seen[layer].append(queries.double())
        right(layer, queries, keys, scaling, index, bias)

    state.observe = observe  # type: ignore[method-assign]
    for turn, segments in enumerate(turns_of(step.trajectory)):
        for s in segments:
            for chunk in step.chunks(s):
                step.feed(chunk)
        step.compact(turn)
    total = step.logical
    for layer in range(3):
        keys = branch.lane.cache.view(layer)[0].double()
        queries = torch.cat(seen[layer], dim=1)
        assert queries.shape[1] == total - prefix
        for head in range(2):
            want, visible = [0.0] * total, [0.0] * total
            for i in range(prefix, total):
                want = [0.95 * a for a in want]
                visible = [0.95 * a for a in visible]
                for g in range(3):
                    logits = (keys[head, : i + 1] @ queries[3 * head + g, i - prefix]) / math.sqrt(8)
                    for j, weight in enumerate(logits.softmax(0).tolist()):
                        if locality != "distance" or i - j >= 5:
                            want[j] += 0.05 * weight / 3
                for j in range(i + 1):
                    visible[j] += 0.05
            if locality == "normalised":
                want = [a / v if v else 0.0 for a, v in zip(want, visible, strict=True)]
            tail = branch.index[:, :, prefix:]
            got = state.scores(tail)[layer, head].double()
            torch.testing.assert_close(got, torch.tensor(want[prefix:], dtype=torch.float64), atol=1e-5, rtol=1e-4)
    assert state.aux_bytes() == (total - prefix) * 3 * 2 * 4


def test_attention_evicts_the_least_active_but_the_forced() -> None:
    step = run("attention(keep=0.3,trigger=turn)", turns=1, users=False)
    branch = step.branches[1]
    state = branch.state
    assert isinstance(state, AttentionState)
    everything = run("attention(keep=1,trigger=turn)", turns=1, users=False)
    whole = everything.branches[1].state
    assert isinstance(whole, AttentionState)
    prefix = state.fixed
    forced = {t for t in range(prefix, step.logical) if state.is_forced[t]}
    keep = branch.rows - prefix
    for layer in range(3):
        for head in range(2):
            activity = whole.held[0, layer, head].tolist()
            free = sorted(
                (t for t in range(prefix, step.logical) if t not in forced), key=lambda t: -activity[t - prefix]
            )
            want = sorted({*range(prefix), *forced, *free[: keep - len(forced)]})
            assert branch.index[layer, head].tolist() == want
