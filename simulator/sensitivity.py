"""How a plan's answer moves: slower or faster machines, more turns, another prefix share, other growth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from .bench import Bench
from .cost import HELD_OUT_ERROR
from .search import Side, mean_meets, smallest

MOST_GROWTH = 4.0  # extra turns beyond which break-even is not looked for
GROWTH_STEP = 0.1
SHAPES = {
    "no prefix shared": {"shared": False},
    "half the growth per turn": {"growth": 0.5},
}


def moved(bench: Bench, side: Side, full: Side, seeds: Sequence[int], most: int) -> dict[str, Any]:
    """How the answer moves: with machines slower or faster by the model's error, and with more turns."""
    if side.count is None:
        return {}
    few, tp, count = list(seeds[:2]), bench.scenarios[0].deployment.tp, side.count
    slos = bench.scenarios[0].slos

    def size(factor: float, low: int, high: int) -> int | None:
        variant = replace(side.variant, slowdown=factor)
        return smallest(lambda n: mean_meets(bench.run(variant, n, few), slos), low, high, count, stride=1)

    slower = size(1 + HELD_OUT_ERROR, count, most)
    faster = size(1 - HELD_OUT_ERROR, 1, count) or count
    row: dict[str, Any] = {"gpus_if_slower": slower and slower * tp, "gpus_if_faster": faster * tp}
    if side is not full and full.count is not None:
        row["turns_break_even"] = break_even(bench, side, full.count, few)
    return row


def break_even(bench: Bench, side: Side, replicas: int, seeds: Sequence[int]) -> float:
    """The relative growth in turns up to which the policy needs no more than `replicas`, the size of `full`.

    0 when nothing is saved; `MOST_GROWTH` when it is not reached by then.
    """
    if side.count is None or side.count >= replicas:
        return 0.0
    slos = bench.scenarios[0].slos
    steps = round(MOST_GROWTH / GROWTH_STEP)

    def too_much(step: int) -> bool:
        variant = replace(side.variant, extra_turns=step * GROWTH_STEP)
        return not mean_meets(bench.run(variant, replicas, seeds), slos)

    first = smallest(too_much, 1, steps, round((replicas / side.count - 1) / GROWTH_STEP))
    return MOST_GROWTH if first is None else round((first - 1) * GROWTH_STEP, 2)


def other_shapes(bench: Bench, sides: list[Side], seeds: Sequence[int], most: int) -> list[dict[str, Any]]:
    """GPUs of `full` and the last policy if the declared workload were shaped otherwise, on two replications."""
    slos, tp = bench.scenarios[0].slos, bench.scenarios[0].deployment.tp
    rows = []
    for what, change in SHAPES.items():
        row: dict[str, Any] = {"what": what}
        for side in sides[:1] + sides[1:][-1:]:
            if side.count is not None:
                variant = replace(side.variant, **change)
                meets = lambda n, v=variant: mean_meets(bench.run(v, n, list(seeds[:2])), slos)  # noqa: E731
                found = smallest(meets, 1, most, side.count)
                row[bench.scenarios[side.variant.index].policy] = found and found * tp
        rows.append(row)
    return rows
