"""How much more load an answer carries before a promise breaks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from .bench import Bench
from .search import Side, mean_meets, smallest
from .sensitivity import FEW

STEP = 1.01  # loads are tried in steps of one percent
MOST_STEPS = 140  # four times the load: more is not tried


def load_of(step: int) -> float:
    """The load, as a factor, `step` steps up."""
    return STEP**step


def headroom(bench: Bench, side: Side, seeds: Sequence[int]) -> dict[str, Any]:
    """`headroom`: by what share the load may grow on the fleet of the answer until a mean no longer meets.

    Agents, or sessions per second. Found to one percent, on few replications. `headroom_note` says where it is only
    known to be beyond. Nothing for an infeasible side.
    """
    if side.count is None:
        return {}
    slos, count = bench.scenarios[side.variant.index].slos, side.count

    def too_much(step: int) -> bool:
        loaded = replace(side.variant, load=load_of(step))
        return not mean_meets(bench.run(loaded, count, seeds[:FEW]), slos)

    # The answer is the smallest size: the room is less than a replica's share of the load, half of it in the mean.
    # One replica alone may have any room.
    guess = MOST_STEPS if count == 1 else max(1, round(math.log1p(0.5 / count) / math.log(STEP)))
    first = smallest(too_much, 1, MOST_STEPS, guess, stride=max(1, guess // 2))
    last = (MOST_STEPS if first is None else first) - 1
    return {
        "headroom": round(load_of(last) - 1, 3),
        "headroom_note": "more was not tried" if first is None else None,
    }
