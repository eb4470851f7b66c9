"""All or nothing: whatever a block feeds and evicts is taken back if the block raises."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from typing import Any

import torch

from .lockstep import Lockstep


@contextmanager
def undone_on_error(run: Lockstep, shared: Iterable[Any] = ()) -> Iterator[None]:
    """A block on the only branch of `run`, which ends as it began if the block raises (Ctrl-C too).

    Appended rows are taken back by a counter. An eviction goes to a fork of the cache, as it would if another branch
    rode on the same lane; so the old rows are held until the block ends, and nothing is copied before an eviction.
    `shared` objects are not copied with the policy's state: what never changes, such as segments.
    """
    branch = run.branches[0]
    lane = branch.lane
    rows, position, fixed = lane.cache.rows, lane.position, lane.fixed.fork()
    unchanging = [branch.policy, branch.shape, branch.state.scene, *shared]
    with torch.inference_mode():
        state = deepcopy(branch.state, {id(thing): thing for thing in unchanging})
    held = (branch.index, replace(branch.counters), list(branch.pending), branch.expected)
    logical, count, trajectory = run.logical, len(run.ids), run.trajectory
    lane.riders = 2
    try:
        yield
    except BaseException:
        if branch.lane is not lane:
            branch.lane.release()
        branch.lane, branch.state = lane, state
        branch.index, branch.counters, branch.pending, branch.expected = held
        lane.cache.roll_back(rows)
        lane.position, lane.fixed, lane.riders = position, fixed, 1
        run.logical, run.trajectory = logical, trajectory
        del run.ids[count:]
        raise
    lane.riders = 1
    if branch.lane is not lane:
        lane.release()
