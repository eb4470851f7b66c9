"""Same identity, same kept rows: whatever the order of dictionaries, policies and runs, and where scores tie."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest
import torch
from fuzzing import random_policy
from stepping import walk
from tiny import tiny_model, trajectory

from kvmill.replay.forward import Forward
from kvmill.replay.lockstep import Lockstep
from kvmill.replay.policies.base import Policy
from kvmill.replay.policies.full import Full
from kvmill.replay.policies.protect import forced_offsets
from kvmill.replay.policies.registry import POLICIES, parse_policy
from kvmill.replay.segments import size_of

SUPPORT = Path(__file__).parents[1] / "support"


def chosen() -> list[Policy]:
    """Every policy, with and without options given."""
    draw = Random(4)
    return list({str(p): p for name in POLICIES for p in (parse_policy(name), random_policy(draw, name))}.values())


def kept(forward: Forward, policies: list[Policy], number: int = 1) -> dict[str, list[list[list[int]]]]:
    step = walk(Lockstep(forward, trajectory(seed=number, turns=4), [Full(), *policies], seed=5))
    return {str(branch.policy): branch.index.tolist() for branch in step.branches}


def test_order_of_policies_other_runs_and_the_global_generator_do_not_matter() -> None:
    forward, policies = Forward(tiny_model()), chosen()
    first = kept(forward, policies)
    kept(forward, policies[:5], number=2)
    Random(1).shuffle(policies)
    torch.manual_seed(123)
    assert kept(forward, policies) == first


def test_the_order_of_dictionaries_and_sets_does_not_matter() -> None:
    """A process of its own for every seed of Python's hashes."""
    code = (
        f"import sys; sys.path[:0] = {[str(SUPPORT), str(SUPPORT.parent / 'replay')]!r}; import test_determinism as t"
    )
    code += "; print(t.json.dumps(t.kept(t.Forward(t.tiny_model()), t.chosen())))"
    outputs = [
        subprocess.run(
            [sys.executable, "-c", code], env=os.environ | {"PYTHONHASHSEED": seed}, capture_output=True, check=True
        ).stdout.splitlines()[-1]
        for seed in ("1", "4242")
    ]
    assert outputs[0] == outputs[1]
    assert json.loads(outputs[0]) == kept(Forward(tiny_model()), chosen())


@pytest.mark.parametrize("policy", ["te", "te(proxy=repeat,granularity=token)", "am", "knorm", "keydiff", "kvzip"])
def test_where_all_scores_tie_the_first_tokens_stay(policy: str) -> None:
    """Keys are all the same: the protected tokens of every segment, then those of lowest index, in every head."""
    model = tiny_model()
    for layer in model.module.model.layers:
        layer.self_attn.k_proj.weight.zero_()
    rule = parse_policy(policy)
    text = trajectory(turns=4, users=False)
    step = walk(Lockstep(Forward(model), text, [Full(), rule], seed=5))
    want, at = [], 0
    for segment in text.segments:
        size, count = size_of(segment), len(segment.ids)
        if segment.kind != "prefix" and segment.turn + rule.delay < 4:  # type: ignore[attr-defined]
            forced = list(forced_offsets(size, rule.protect))  # type: ignore[attr-defined]
            others = [i for i in range(count) if i not in forced]
            stay = sorted(forced + others[: rule.kept(size) - len(forced)])  # type: ignore[attr-defined]
        else:
            stay = list(range(count))
        want += [at + i for i in stay]
        at += count
    assert step.branches[1].index.tolist() == [[want] * 2] * 3
