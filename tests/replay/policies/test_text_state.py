"""`drop_tool_outputs` on the tiny model: what is left is a shortened prompt, and reads like one."""

from __future__ import annotations

import pytest
import torch
from stepping import equal, run, start, walk
from tiny import trajectory

from kvmill.replay.lockstep import Lockstep
from kvmill.replay.policies.full import Full


def left(step: Lockstep, older_than: int, min_tokens: int = 0) -> list[int]:
    """The logical tokens that a text without old tool contents has."""
    last = max(s.turn for s in step.trajectory.segments)
    out, at = [], 0
    for s in step.trajectory.segments:
        old = s.kind == "tool" and s.turn <= last - older_than and len(s.ids) >= min_tokens
        out += [at + i for i in range(len(s.ids)) if not old or i in s.frame]
        at += len(s.ids)
    return out


@pytest.mark.parametrize(
    ("spec", "older_than", "least"), [("", 3, 0), ("older_than=1", 1, 0), ("older_than=2,min_tokens=100", 2, 100)]
)
def test_old_contents_go_and_frames_stay(spec: str, older_than: int, least: int) -> None:
    step = run(f"drop_tool_outputs({spec})")
    want = left(step, older_than, least)
    assert {tuple(row) for row in step.branches[1].index.flatten(0, 1).tolist()} == {tuple(want)}
    assert step.branches[1].lane.position == len(want)


def test_the_shortened_text_reads_like_a_fresh_prompt() -> None:
    step = run("drop_tool_outputs(older_than=1)", turns=4)
    branch = step.branches[1]
    fresh = Lockstep(step.forward, step.trajectory, [Full()], seed=0).branches[0].lane
    step.forward.feed([fresh], [step.ids[t] for t in branch.index[0, 0].tolist()])
    following = [3, 1, 4, 1, 5]
    a, b = (step.forward.feed([lane], following) for lane in (branch.lane, fresh))
    equal(a, b)
    for layer in range(3):
        for mine, theirs in zip(branch.lane.cache.view(layer), fresh.cache.view(layer), strict=True):
            equal(mine, theirs)


def test_nothing_to_drop_is_the_full_run() -> None:
    step = run("drop_tool_outputs(older_than=100)")
    full, branch = step.branches
    assert torch.equal(full.index, branch.index)
    step = walk(start("drop_tool_outputs(min_tokens=1000)"))
    assert torch.equal(step.branches[0].index, step.branches[1].index)
    assert step.trajectory.segments == trajectory().segments
