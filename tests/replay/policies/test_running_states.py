"""Which rows the running policies keep, against brute force over explicit lists."""

from __future__ import annotations

import math

import pytest
import torch
from families import family_model
from stepping import equal, run, start, walk
from tiny import probe, tiny_model, trajectory

from kvmill.replay.engine import replay
from kvmill.replay.forward import Forward
from kvmill.replay.lockstep import Lockstep
from kvmill.replay.policies.full import Full
from kvmill.replay.policies.registry import parse_policies
from kvmill.replay.policies.running_states import RandomState
from kvmill.replay.segments import turns_of


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


def turned(key: list[float], offset: float) -> list[float]:
    """Rotary embedding of the tiny model (8 dimensions, base 10,000), dimension by dimension."""
    out = list(key)
    for i in range(4):
        angle = offset * 10_000 ** (-i / 4)
        out[i] = key[i] * math.cos(angle) - key[4 + i] * math.sin(angle)
        out[4 + i] = key[4 + i] * math.cos(angle) + key[i] * math.sin(angle)
    return out


@pytest.mark.parametrize("policy", ["sink_window(renumber=true,keep=0.3)", "sink_window(renumber=true,prefix=drop)"])
def test_renumbered_keys_are_those_of_the_full_cache_turned_to_their_row(policy: str) -> None:
    step = start(policy, long_tool=90)
    full, state = step.branches[0], step.branches[1].state
    first: list[tuple] = []
    cut = state.cut  # type: ignore[attr-defined]

    def spied(tail, allowed, cache):
        eviction = cut(tail, allowed, cache)
        first.append((eviction, [full.lane.cache.view(layer)[0].clone() for layer in range(3)]))
        return eviction

    state.cut = spied  # type: ignore[attr-defined]
    walk(step)
    # Until its first eviction the branch has the past of the full run, row for row.
    eviction, keys = first[0]
    assert eviction.position == eviction.start + eviction.index.shape[2]
    assert len(first) >= 3
    for layer in range(3):
        for head in range(2):
            rows = eviction.index[layer, head].tolist()
            moved = [turned(keys[layer][head, r].tolist(), eviction.start + i - r) for i, r in enumerate(rows)]
            equal(eviction.keys[layer, head], torch.tensor(moved), 1e-4)
    # Keys of the first layer depend on token and position alone: after all turns they are a fresh prompt's.
    branch = step.branches[1]
    assert branch.lane.position == branch.rows
    fresh = Lockstep(step.forward, step.trajectory, [Full()], seed=0).branches[0].lane
    (row,) = rows_of(step)
    step.forward.feed([fresh], [step.ids[t] for t in row])
    equal(branch.lane.cache.view(0)[0], fresh.cache.view(0)[0], 1e-4)


def test_moving_a_whole_window_changes_nothing() -> None:
    """Attention sees differences of positions: without sinks, renumbering shifts all keys and queries alike."""
    specs = ["sink_window(prefix=drop,sinks=0,keep=0.3)", "sink_window(prefix=drop,sinks=0,keep=0.3,renumber=true)"]
    plain, moved = replay(Forward(tiny_model()), trajectory(users=False), parse_policies(specs), [probe()], 0)[1:]
    assert plain.error is None
    assert moved.error is None
    for a, b in zip(plain.turns, moved.turns, strict=True):
        assert math.isclose(a.quality.nll, b.quality.nll, rel_tol=1e-4)
    assert plain.probes[0].likelihoods == pytest.approx(moved.probes[0].likelihoods, abs=1e-2)
    specs = [spec.replace("sinks=0", "sinks=4") for spec in specs]
    plain, moved = replay(Forward(tiny_model()), trajectory(users=False), parse_policies(specs), [], 0)[1:]
    assert any(abs(a.quality.nll - b.quality.nll) > 1e-2 for a, b in zip(plain.turns, moved.turns, strict=True)), (
        "with sinks the window moves up to them"
    )


def test_renumbering_a_model_without_plain_rotation_fails_its_own_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Forward, "frequencies", None)
    specs = ["sink_window(renumber=true)", "merge", "merge(space=post)", "sink_window"]
    runs = replay(Forward(tiny_model()), trajectory(turns=2), parse_policies(specs), [], 0)
    assert [run.error is None for run in runs] == [True, False, False, True, True]
    assert "rotary" in str(runs[1].error)
    assert "space=post" in str(runs[2].error)


def test_sliding_windows_cannot_be_renumbered() -> None:
    specs = ["sink_window(renumber=true)", "merge", "hybrid", "sink_window"]
    runs = replay(Forward(family_model("gemma3")), trajectory(turns=2), parse_policies(specs), [], 0)
    assert "sliding-window" in str(runs[1].error)
    assert [run.error for run in runs[2:]] == [None, None, None]


@pytest.mark.parametrize(
    "policy",
    [
        "hybrid(keep=0.3)",
        "merge(keep=0.3)",
        "attention(keep=0.3,window=20)",
        "attention(keep=0.3)",
        "sink_window(keep=0.3,renumber=true,trigger=tokens:9)",
    ],
)
def test_forced_decode_keeps_the_same_rows_as_a_chunked_prefill(policy: str) -> None:
    chunked = run(policy, long_tool=90)
    step = start(policy, long_tool=90)
    for turn, segments in enumerate(turns_of(step.trajectory)):
        for s in segments:
            size = len(s.ids)
            for begin in range(size) if s.kind == "assistant" else [0]:
                end = begin + 1 if s.kind == "assistant" else size
                for chunk in step.chunks(s, begin, end):
                    step.feed(chunk)
                    step.look(chunk)
        step.compact(turn)
        step.settle(turn)
    assert step.branches[1].error is None
    assert torch.equal(step.branches[1].index, chunked.branches[1].index)
    equal(step.branches[1].lane.cache.view(2)[1], chunked.branches[1].lane.cache.view(2)[1], 1e-3)
