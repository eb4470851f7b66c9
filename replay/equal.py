"""Equal size: every policy held to the same number of KV rows, its `keep` solved from the recorded lengths.

At one keep ratio policies hold different amounts: a delayed one has its raw turns, a window its floor. Here `keep` is
the four-digit ratio whose rows, averaged over the trajectories, come nearest to those of a reference policy. Only the
footprint's arithmetic is used: nothing is replayed, and no torch is loaded.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any, TypeVar

from ..errors import UserError, unknown
from .policies.base import Policy, SegmentSize, TurnFootprint

P = TypeVar("P", bound=Policy)
STEP = Decimal("0.0001")

SIZES: dict[str, Callable[[Sequence[TurnFootprint]], float]] = {
    "peak": lambda turns: max(t.kv_rows_peak + t.transient_rows for t in turns),
    "mean": lambda turns: sum(t.kv_rows for t in turns) / len(turns),
    "final": lambda turns: turns[-1].kv_rows,
}
"""Rows of one trajectory: the most inside any turn, the mean after its turns, or what is left after the last."""


def rows_held(policy: Policy, trajectories: Sequence[Sequence[SegmentSize]], size: str = "peak") -> float:
    """Mean rows over trajectories that a policy holds, by its footprint. UserError on an unknown size."""
    if size not in SIZES:
        raise unknown("size", size, SIZES)
    return sum(SIZES[size](policy.footprint(segments)) for segments in trajectories) / len(trajectories)


def with_keep(policy: P, keep: Decimal) -> P:
    """The same policy at another ratio; a fixed budget gives way to it."""
    changed: dict[str, Any] = {"keep": keep, "given": (policy.given | {"keep"}) - {"budget"}}
    if hasattr(policy, "budget"):
        changed["budget"] = None
    return dataclasses.replace(policy, **changed)


def hold_equal(
    policies: Sequence[Policy], reference: Policy, trajectories: Sequence[Sequence[SegmentSize]], size: str = "peak"
) -> list[Policy]:
    """The policies that have a `keep`, each solved to hold as many rows as `reference`; `full` stays as it is.

    UserError for a policy that has none, for one whose footprint is only a bound, and where no ratio comes within
    5 % of the reference's rows.
    """
    target = rows_held(reference, trajectories, size)
    out: list[Policy] = []
    for policy in policies:
        if policy.name == "full" or policy == reference:
            out.append(policy)
            continue
        if not hasattr(policy, "keep") or not policy.exact:
            raise UserError(
                f"policy {policy} has no keep ratio that could be solved: leave it out of an equal-size run"
            )
        solved = _solve(policy, target, trajectories, size)
        rows = rows_held(solved, trajectories, size)
        if abs(rows - target) > 0.05 * target:
            raise UserError(
                f"policy {policy} cannot hold {target:.0f} rows ({size}) as {reference} does: the nearest is {rows:.0f}"
            )
        out.append(solved)
    return out


def _solve(policy: Policy, target: float, trajectories: Sequence[Sequence[SegmentSize]], size: str) -> Policy:
    """Bisection over multiples of `STEP`: rows never shrink when the ratio grows."""
    low, high = 0, int(1 / STEP)
    while high - low > 1:
        middle = (low + high) // 2
        if rows_held(with_keep(policy, STEP * middle), trajectories, size) <= target:
            low = middle
        else:
            high = middle
    ends = [with_keep(policy, STEP * end) for end in (low, high)]
    return min(ends, key=lambda p: abs(rows_held(p, trajectories, size) - target))
