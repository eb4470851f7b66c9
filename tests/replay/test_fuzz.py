"""Random policies on random trajectories and every layer layout: what must hold whatever the options.

`KVMILL_FUZZ=300` runs 300 trajectories per layout instead of a handful. Every failure names its seed.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from random import Random
from typing import Any, cast

import pytest
import torch
from families import FAMILIES, family_model
from fuzzing import VALUES, random_policy, random_text
from torch import Tensor

from kvmill.replay.branch import Branch
from kvmill.replay.forward import Forward
from kvmill.replay.lockstep import Lockstep
from kvmill.replay.policies.base import Policy
from kvmill.replay.policies.full import Full
from kvmill.replay.policies.options import in_order
from kvmill.replay.policies.protect import forced_offsets
from kvmill.replay.policies.registry import POLICIES, parse_policy
from kvmill.replay.policies.segment import SegmentPolicy
from kvmill.replay.policies.states import Chunk, Scene
from kvmill.replay.segments import size_of, turns_of
from kvmill.traces.tokens import TokenSegment, TokenTrajectory

ROUNDS = int(os.environ.get("KVMILL_FUZZ", "8"))
TABLES = ("is_forced", "is_entity", "uniform", "gains")  # one entry per token of the text, or of the chunk
REFUSED = ("rows cannot be renumbered beside sliding-window layers, which keep their positions",)


def test_every_option_of_every_policy_is_drawn() -> None:
    assert {f.name for cls in POLICIES.values() for f in in_order(cls)} == set(VALUES)


@pytest.mark.parametrize("family", FAMILIES)
def test_whatever_the_options_rows_memory_and_protected_tokens_are_as_promised(family: str) -> None:
    forward = Forward(family_model(family))
    names = list(POLICIES)
    for number in range(ROUNDS):
        draw = Random(f"{family}-{number}")
        text = random_text(draw, f"fuzz-{number}")
        draw.shuffle(names)
        policies = [random_policy(draw, name) for name in names[:9]]
        step = Lockstep(forward, text, [Full(), *policies], seed=number)
        for turn, segments in enumerate(turns_of(text)):
            for segment in segments:
                for chunk in step.chunks(segment):
                    step.feed(chunk)
                    step.look(chunk)
            step.compact(turn)
            step.catch_up()
            step.settle(turn)  # live rows, captured queries, β and counters against the footprint
            for branch in step.branches:
                where = f"{family}, trajectory {number}, turn {turn}: {branch.policy}"
                assert branch.error is None or branch.error in REFUSED, f"{where}: {branch.error}"
                if branch.error is None:
                    _no_hidden_copy(branch, where)
                    _what_must_stay(branch, text, turn, where)


def _no_hidden_copy(branch: Branch, where: str) -> None:
    """Every tensor that the state can reach is in its `aux_bytes`, with the storage behind it."""
    held: dict[int, int] = {}
    for tensor in _tensors(vars(branch.state), set()):
        storage = tensor.untyped_storage()
        held[storage.data_ptr()] = storage.nbytes()
    assert sum(held.values()) == branch.state.aux_bytes(), f"{where}: {held}"


def _tensors(thing: Any, seen: set[int]) -> Iterator[Tensor]:
    if id(thing) in seen or isinstance(thing, (str, int, float, Policy, Scene, TokenSegment, Chunk)):
        return
    seen.add(id(thing))
    if isinstance(thing, Tensor):
        yield thing
    elif isinstance(thing, dict):
        for name, value in cast(dict[Any, Any], thing).items():
            if name not in TABLES:
                yield from _tensors(value, seen)
    elif isinstance(thing, (list, tuple, set)):
        for value in cast(list[Any], thing):
            yield from _tensors(value, seen)
    elif hasattr(thing, "__dict__"):
        yield from _tensors(vars(thing), seen)


def _what_must_stay(branch: Branch, text: TokenTrajectory, turn: int, where: str) -> None:
    """By head: the tokens of every segment so far, counted in the live index."""
    policy, at = branch.policy, 0
    rows = branch.index.flatten(0, 1).long()
    present = torch.zeros(len(rows), text.tokens + 1, dtype=torch.bool).scatter(1, rows, True)
    if policy.name != "merge":
        assert bool((rows.diff(dim=1) > 0).all()), f"{where}: rows out of order"
        assert bool((present.sum(1) == rows.shape[1]).all()), f"{where}: a token twice"
    for segment in text.segments:
        if segment.turn > turn:
            break
        mine = present[:, at : at + len(segment.ids)]
        at += len(segment.ids)
        whole = segment.kind == "prefix" and getattr(policy, "prefix", "keep") == "keep"
        if whole or (segment.kind == "user" and getattr(policy, "keep_user", None) is None):
            assert bool(mine.all()), f"{where}: {segment.kind} of turn {segment.turn} lost tokens"
        forced = forced_offsets(size_of(segment), getattr(policy, "protect", "none"))
        assert bool(mine[:, list(forced)].all()), f"{where}: protected tokens of turn {segment.turn} lost"
        if isinstance(policy, SegmentPolicy):
            want = _share(policy, segment, len(forced)) if turn >= segment.turn + policy.delay else len(segment.ids)
            assert mine.sum(1).tolist() == [want] * len(mine), f"{where}: {segment.kind} of turn {segment.turn}"


def _share(policy: SegmentPolicy, segment: TokenSegment, forced: int) -> int:
    """DESIGN.md section 4: max(1, ⌈keep·n⌉), for peers ⌊ ⌋, all protected ones where there are more."""
    own = {"tool": policy.keep_tool, "assistant": policy.keep_assistant, "user": policy.keep_user}
    keep, count = own.get(segment.kind), len(segment.ids)
    if not count or segment.kind == "prefix" or (segment.kind == "user" and keep is None):
        return count
    exact = (policy.keep if keep is None else keep) * count
    m = math.ceil(exact) if policy.name in ("te", "am") else math.floor(exact)
    return min(count, max(1, m, forced))


def test_a_budget_is_kept_at_every_close() -> None:
    """`trigger=turn`: at most the budget beyond P after a turn, unless forced tokens are more; all of it when full."""
    forward = Forward(family_model("llama"))
    for number in range(ROUNDS * 2):
        draw = Random(f"budget-{number}")
        text = random_text(draw)
        budget = draw.choice((1, 5, 40, 300))
        names = ["truncate", "sink_window", "random", "attention", "merge", "hybrid"]
        policies = [parse_policy(f"{name}(budget={budget},trigger=turn)") for name in names]
        step = Lockstep(forward, text, [Full(), *policies], seed=number)
        fed = fixed = 0
        for turn, segments in enumerate(turns_of(text)):
            for segment in segments:
                fed += len(segment.ids) * (segment.kind != "prefix")
                fixed += len(segment.ids) * (segment.kind == "prefix")
                for chunk in step.chunks(segment):
                    step.feed(chunk)
                    step.look(chunk)
            step.compact(turn)
            step.catch_up()
            step.settle(turn)
            for branch in step.branches[1:]:
                assert branch.error is None
                forced = _forced(branch.policy, text, turn)
                assert branch.rows - fixed == min(fed, max(budget, forced)), f"{branch.policy}, {number}, turn {turn}"


def _forced(policy: Policy, text: TokenTrajectory, turn: int) -> int:
    count = 0
    for segment in text.segments:
        if segment.turn <= turn and segment.kind != "prefix":
            protected = len(forced_offsets(size_of(segment), getattr(policy, "protect", "none")))
            count += len(segment.ids) if segment.kind == "user" else protected
    return count
