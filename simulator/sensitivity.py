"""How a plan's answer moves: slower or faster machines, more turns, another prefix share, other growth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from .bench import Bench, Variant
from .positions import NOMINAL_TPOT_S
from .search import Side, mean_meets, smallest

FEW = 4  # replications that break-even and headroom rest on
FEWEST = 2  # replications that other shapes rest on
MOST_GROWTH = 4.0  # extra turns beyond which break-even is not looked for
GROWTH_STEP = 0.1
CUT_SHARE = 0.05  # sessions that the window may end at a growth in turns that is still called real
AT_WINDOW = "sessions then reach the model's window"
NOT_TRIED = "more was not tried"
SHAPES: dict[str, dict[str, Any]] = {
    "no prefix shared": {"shared": False},
    "half the growth per turn": {"growth": 0.5},
}


def assumed(replications: int) -> str:
    """What the moved answers rest on, for the list of assumptions."""
    return (
        f"slower and faster machines (by how much the answer of the same replications moves), headroom and more turns "
        f"rest on {min(FEW, replications)} replications, other shapes on {min(FEWEST, replications)}; "
        f"more turns: as many tasks per second (agents as sessions last at "
        f"{NOMINAL_TPOT_S * 1e3:g} ms per token), each with more of its own turns until the model's window"
    )


def moved(bench: Bench, side: Side, full: Side, seeds: Sequence[int], most: int) -> dict[str, Any]:
    """How the answer moves: with machines slower or faster by the cost model's own error, and with more turns.

    Slower and faster: the answer, moved by what a few replications of it move by; at least one replica. A slower
    machine is not looked for below what does at the modelled speed, nor a faster one above it: in a few replications
    such a fleet may meet, or miss, by chance. None when no fleet is enough.
    """
    if side.count is None:
        return {}
    scenario, few = bench.scenarios[side.variant.index], seeds[:FEW]
    tp, error = scenario.deployment.tp, scenario.cost.error
    slow, fast = (replace(side.variant, slowdown=factor) for factor in (1 + error, 1 - error))
    base = _size(bench, side.variant, few, (1, most), side.count, stride=1)
    found = {"gpus_if_slower": base and _size(bench, slow, few, (base, most), base, stride=1)}
    found["gpus_if_faster"] = base and (_size(bench, fast, few, (1, base), base, stride=1) or base)
    row: dict[str, Any] = {
        name: max(1, side.count + size - base) * tp if size and base else None for name, size in found.items()
    }
    if side is not full and full.count is not None:
        row |= break_even(bench, side, full.count, seeds)
    return row


def _size(
    bench: Bench, variant: Variant, seeds: Sequence[int], ends: tuple[int, int], start: int, stride: int | None = None
) -> int | None:
    """The smallest fleet of a variant whose mean over `seeds` meets, in replicas, between both `ends`."""
    slos = bench.scenarios[0].slos
    return smallest(lambda n: mean_meets(bench.run(variant, n, seeds), slos), *ends, start, stride)


def break_even(bench: Bench, side: Side, replicas: int, seeds: Sequence[int]) -> dict[str, Any]:
    """`turns_break_even`: how many more turns, as a share, the policy can take on `replicas`, the size of `full`.

    Counted in turns served per session, at the same tasks per second. It is the point where the saving is gone unless
    `turns_break_even_note` says why it is only known to be beyond: the model's window ends too many of the longer
    sessions (`turns_break_even_cut_share`), or the search ended. 0 when nothing is saved.
    """
    if side.count is None or side.count >= replicas:
        return {"turns_break_even": 0.0}
    slos = bench.scenarios[0].slos
    steps = round(MOST_GROWTH / GROWTH_STEP)
    base = bench.shelf.get(side.variant).positions

    def longer(step: int) -> Variant:
        return replace(side.variant, extra_turns=step * GROWTH_STEP)

    def too_much(step: int) -> bool:
        return not mean_meets(bench.run(longer(step), replicas, seeds[:FEW]), slos)

    most_served = bench.shelf.get(longer(steps)).positions.mean_turns / base.mean_turns
    guess = (replicas / side.count - 1) / GROWTH_STEP if most_served > replicas / side.count else steps
    first = smallest(too_much, 1, steps, round(guess))
    there = bench.shelf.get(longer(steps if first is None else first - 1)).positions
    note = AT_WINDOW if there.cut_share > CUT_SHARE else NOT_TRIED if first is None else None
    return {
        "turns_break_even": round(there.mean_turns / base.mean_turns - 1, 2),
        "turns_break_even_note": note,
        "turns_break_even_cut_share": there.cut_share,
    }


def other_shapes(bench: Bench, sides: list[Side], seeds: Sequence[int], most: int) -> list[dict[str, Any]]:
    """GPUs of `full` and the last policy if the declared workload were shaped otherwise."""
    tp = bench.scenarios[0].deployment.tp
    rows = []
    for what, change in SHAPES.items():
        row: dict[str, Any] = {"what": what}
        for side in sides[:1] + sides[1:][-1:]:
            if side.count is not None:
                start = max(1, round(side.count * change.get("growth", 1.0)))
                found = _size(bench, replace(side.variant, **change), seeds[:FEWEST], (1, most), start)
                row[bench.scenarios[side.variant.index].policy] = found and found * tp
        if len(row) > 1:
            rows.append(row)
    return rows
