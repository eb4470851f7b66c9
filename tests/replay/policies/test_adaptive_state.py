"""What adaptive keeps, against the definition written out in float64 on what the model really attended to."""

from __future__ import annotations

import math
from collections import defaultdict

import pytest
import torch
from stepping import start

from kvmill.replay.lockstep import Lockstep
from kvmill.replay.policies.adaptive_state import AdaptiveState
from kvmill.replay.segments import turns_of

EDGES = {"adaptive(keep=0)", "adaptive(keep=1)"}


def watched(policy: str, users: bool = False) -> tuple[Lockstep, list[dict]]:
    """Run it; per turn, by (layer, head): score and mass of every token from each query, and rows before and after."""
    step = start(policy, users=users)
    branch = step.branches[1]
    state = branch.state
    assert isinstance(state, AdaptiveState)
    turns: list[dict] = []
    right = state.observe

    def observe(layer, sight, index):
        right(layer, sight, index)
        queries, keys, scaling = sight.queries, sight.keys, sight.scaling
        now, length = turns[-1], queries.shape[1]
        names = torch.cat([index.long(), torch.arange(step.logical, step.logical + length).expand(2, -1)], dim=1)
        for head in range(2):
            for g in range(3):
                for i in range(length):
                    rows = keys.shape[1] - length + i + 1
                    logits = keys[head, :rows].double() @ queries[3 * head + g, i].double() * scaling
                    for name, weight in zip(names[head, :rows].tolist(), logits.softmax(0).tolist(), strict=True):
                        now["weights"][layer, head][name].append(weight)
            now["asked"][layer, head] += 3 * length

    state.observe = observe  # type: ignore[method-assign]
    for turn, segments in enumerate(turns_of(step.trajectory)):
        turns.append({"weights": defaultdict(lambda: defaultdict(list)), "asked": defaultdict(int)})
        for s in segments:
            for chunk in step.chunks(s):
                step.feed(chunk)
        turns[-1]["before"] = branch.index.clone()
        step.compact(turn)
        turns[-1]["after"] = branch.index.clone()
        step.settle(turn)
    assert branch.error is None
    return step, turns


def ends_of(step: Lockstep) -> list[int]:
    out, at = [], 0
    for segments in turns_of(step.trajectory):
        at += sum(len(s.ids) for s in segments)
        out.append(at)
    return out


def forced_of(step: Lockstep) -> set[int]:
    out, at = set(), 0
    for s in step.trajectory.segments:
        if s.kind != "prefix":
            out |= {at + o for o in (range(len(s.ids)) if s.kind == "user" else s.structural)}
        at += len(s.ids)
    return out


@pytest.mark.parametrize("users", [False, True])
def test_the_pool_keeps_the_best_of_the_largest_turn_scores(users: bool) -> None:
    step, turns = watched("adaptive(keep=0.25)", users)
    ends, forced, prefix = ends_of(step), forced_of(step), len(step.trajectory.segments[0].ids)
    score: dict[tuple[int, int], dict[int, float]] = defaultdict(lambda: defaultdict(float))
    for turn, now in enumerate(turns):
        for where, weights in now["weights"].items():
            for token, given in weights.items():
                if prefix <= token < (ends[turn - 1] if turn else 0):
                    rms = math.sqrt(sum(w * w for w in given) / now["asked"][where])
                    score[where][token] = max(score[where][token], rms)
        if turn < 1:
            assert torch.equal(now["before"], now["after"])
            continue
        for layer in range(3):
            for head in range(2):
                before, after = now["before"][layer, head].tolist(), now["after"][layer, head].tolist()
                pool = [t for t in before if prefix <= t < ends[turn - 1]]
                stay = [t for t in after if prefix <= t < ends[turn - 1]]
                must = [t for t in pool if t in forced]
                free = sorted((t for t in pool if t not in forced), key=lambda t: (-score[layer, head][t], t))
                assert stay == sorted([*must, *free[: len(stay) - len(must)]])
                assert [t for t in after if t >= ends[turn - 1]] == list(range(ends[turn - 1], ends[turn]))
    assert max(len(now["before"][0, 0]) - len(now["after"][0, 0]) for now in turns) > 50


def test_a_loss_target_keeps_the_fewest_that_hold_the_attention() -> None:
    step, turns = watched("adaptive(loss=0.3)")
    ends, forced, prefix = ends_of(step), forced_of(step), len(step.trajectory.segments[0].ids)
    checked = 0
    for turn in range(1, len(turns)):
        now = turns[turn]
        first = ends[turn - 2] if turn > 1 else prefix
        count = int((now["after"][0, 0] < ends[turn - 1]).sum()) - int((now["before"][0, 0] < first).sum())

        def share(keep: int, now=now, first=first, turn=turn) -> float:
            found = []
            for weights in now["weights"].values():
                due = range(first, ends[turn - 1])
                score = {t: math.sqrt(sum(w * w for w in weights[t])) for t in due}
                order = sorted(due, key=lambda t: (t not in forced, -score[t], t))
                total = sum(sum(weights[t]) for t in due)
                found.append(sum(sum(weights[t]) for t in order[:keep]) / total)
            return sum(found) / len(found)

        must = sum(t in forced for t in range(first, ends[turn - 1]))
        assert share(count) >= 0.7 - 1e-6
        if count > must:
            assert share(count - 1) < 0.7 + 1e-6
            checked += 1
    assert checked >= 3


def test_what_it_holds_under_a_memory_target_is_the_footprint_itself() -> None:
    """Its footprint counts as a bound, because of the loss target; here live and arithmetic must agree exactly."""
    for policy in ("adaptive(keep=0.2)", "adaptive(keep=0.3,delay=3)", "adaptive(budget=150)", *EDGES):
        step = start(policy)
        branch = step.branches[1]
        for turn, segments in enumerate(turns_of(step.trajectory)):
            for s in segments:
                for chunk in step.chunks(s):
                    step.feed(chunk)
            step.compact(turn)
            want, have = branch.expected[turn], branch.counters
            assert (branch.rows, have.rows_peak) == (want.kv_rows, want.kv_rows_peak)
            assert branch.aux_bytes == want.aux_bytes(branch.shape)
            assert have.aux_bytes_peak == want.aux_bytes_peak(branch.shape)
            assert have.compactions == want.compactions
            step.settle(turn)
        assert branch.error is None


def test_no_turn_is_touched_before_its_delay() -> None:
    step, turns = watched("adaptive(keep=0.1,delay=3)")
    ends = ends_of(step)
    for turn, now in enumerate(turns):
        young = ends[turn - 3] if turn >= 3 else 0
        for row in now["after"].flatten(0, 1).tolist():
            assert [t for t in row if t >= young] == list(range(young, ends[turn]))
