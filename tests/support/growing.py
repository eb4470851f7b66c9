"""A long run of short trajectories, and what it holds on its way.

As a program (`python -m growing MODEL STORE`) it prints the figures, which in a process of its own are
of that run alone.
"""

from __future__ import annotations

import gc
import json
import sys
from dataclasses import replace
from pathlib import Path

import psutil
import torch

from kvmill.replay import fanout
from kvmill.traces import samples
from kvmill.traces.store import Store
from kvmill.traces.trajectory import Message, Trajectory

POLICY = "te(proxy=boundary,keep=0.2)"


def short(count: int) -> list[Trajectory]:
    """One turn of a few words each, under names of their own."""
    run = samples.load()[0]
    first = run.turns[0]
    turn = replace(first, tools=tuple(replace(tool, content=tool.content[:20]) for tool in first.tools))
    prefix = (Message("user", "Go on."),)
    return [replace(run, id=f"run-{n:03d}", prefix=prefix, turns=(turn, turn), probes=()) for n in range(count)]


def held(model: str, folder: Path) -> dict[str, list[int]]:
    """Bytes of tensors after every 20th of 100 trajectories, and of the process after each."""
    process, right = psutil.Process(), fanout.Cells.quality
    tensors: list[int] = []
    resident: list[int] = []

    def counted(self: fanout.Cells, run: Trajectory) -> dict:
        found = right(self, run)
        if len(resident) % 20 == 19:
            gc.collect()
            alive = [thing for thing in gc.get_objects() if issubclass(type(thing), torch.Tensor)]
            tensors.append(sum(tensor.nbytes for tensor in alive))
        resident.append(process.memory_info().rss)
        return found

    fanout.Cells.quality = counted
    fanout.run_replay(
        store=Store.open(folder),
        trajectories=short(100),
        model=model,
        policies=[POLICY],
        mode="stepwise",
        max_action_tokens=2,
        dtype="float32",
        threads=1,
        progress=False,
    )
    return {"tensors": tensors, "resident": resident}


if __name__ == "__main__":
    print(json.dumps(held(sys.argv[1], Path(sys.argv[2]))))
