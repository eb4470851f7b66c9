"""What a saving is made of: the four effects of compaction, each worth the GPUs that switching it off moves.

`held`: rows that are not held any more, and with them the attention over them. `prefix`: caches that cannot be found
by their text any more, or rebuilt as they were. `seconds`: what compacting takes. `turns`: the turns that agents take
more. The first saves, the others cost. They work on each other (a smaller cache is cheaper to lose), so the four do not
add up to the saving: `together` is the rest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..console import table
from .bench import Bench, Variant
from .search import WIDEST, Side, mean_meets, smallest
from .session import EFFECTS

SEEDS = 4  # replications that each effect rests on
WORDS = {"held": "held bytes", "prefix": "prefix lost", "seconds": "compaction", "turns": "extra turns"}


def attribution(bench: Bench, side: Side, full: Side, seeds: Sequence[int], most: int) -> dict[str, Any]:
    """`attribution`: GPUs that each effect saves (costs, below 0), and `together`, which completes the saving.

    An effect's worth is the fleet without it less the fleet with all of them, both the smallest whose mean over the
    same few replications meets. None for an effect without which no fleet does; nothing where a side is infeasible or
    both are one replica. `attribution_low` and `_high`: the least and the most that one replication by itself says.
    """
    if side.count is None or full.count is None or side.count == full.count == 1:
        return {}
    tp, few = bench.scenarios[side.variant.index].deployment.tp, seeds[:SEEDS]
    whole = _sized(bench, side.variant, few, most, side.count)
    worth: dict[str, int | None] = {}
    ends: dict[str, tuple[int | None, int | None]] = {}
    for effect in EFFECTS:
        variant = replace(side.variant, without=frozenset({effect}))
        if idle(bench, side.variant, effect):
            worth[effect], ends[effect] = 0, (0, 0)
            continue
        off = _sized(bench, variant, few, most, full.count if effect == "held" else side.count)
        if off is None or whole is None:
            worth[effect], ends[effect] = None, (None, None)
            continue
        worth[effect] = (off[0] - whole[0]) * tp
        apart = [(a - b) * tp for a, b in zip(off, whole, strict=True)]
        ends[effect] = min(apart), max(apart)
    known = [value for value in worth.values() if value is not None]
    rest = (full.count - side.count) * tp - sum(known) if len(known) == len(worth) else None
    return {
        "attribution": worth | {"together": rest},
        "attribution_low": {effect: low for effect, (low, _) in ends.items()},
        "attribution_high": {effect: high for effect, (_, high) in ends.items()},
    }


def idle(bench: Bench, variant: Variant, effect: str) -> bool:
    """Whether switching an effect off changes nothing at all, so that it is worth nothing without a simulation."""
    plain = bench.shelf.get(variant)
    if effect == "turns":
        return not plain.extra_turns
    off = bench.shelf.get(replace(variant, without=frozenset({effect})))
    return all(plain.plan_of(index) == off.plan_of(index) for index in plain.positions.usable)


def _sized(bench: Bench, variant: Variant, seeds: Sequence[int], most: int, start: int) -> list[int] | None:
    """The smallest fleet whose mean meets, then the smallest that meets in each replication; None if none does."""
    slos = bench.scenarios[variant.index].slos
    count = smallest(lambda n: mean_meets(bench.run(variant, n, seeds), slos), 1, most, start, stride=1)
    if count is None:
        return None
    sizes = {count: bench.run(variant, count, seeds)}
    while not all(run.meets(slos) for run in sizes[max(sizes)]) and max(sizes) < min(most, count + WIDEST):
        sizes[max(sizes) + 1] = bench.run(variant, max(sizes) + 1, seeds)
    while any(run.meets(slos) for run in sizes[min(sizes)]) and min(sizes) > max(1, count - WIDEST):
        sizes[min(sizes) - 1] = bench.run(variant, min(sizes) - 1, seeds)
    by_size = sorted(sizes)
    return [count] + [next((n for n in by_size if sizes[n][r].meets(slos)), by_size[-1] + 1) for r in range(len(seeds))]


def attribution_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """Each policy's saving and what it is made of, in GPUs."""
    lines = [
        {"policy": row["policy"], "saved": row["gpus_saved"]}
        | {name: _worth(row, name) for name in (*WORDS, "together")}
        for row in rows
        if row.get("attribution")
    ]
    return table(lines, {"policy": "policy", "saved": "saved"} | WORDS | {"together": "together"})


def _worth(row: Mapping[str, Any], effect: str) -> str | None:
    worth = row["attribution"][effect]
    if worth is None:
        return None
    low, high = (row[f"attribution_{end}"].get(effect) for end in ("low", "high"))
    span = "" if low is None or low == high == worth else f" ({low:+d}…{high:+d})"
    return f"{worth:+d}{span}".replace("-", "−").replace("+0", "0")
