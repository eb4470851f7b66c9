"""The front of cost against accuracy loss: the settings that nothing else beats in both."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Point = tuple[float, float]


def front(points: Sequence[Point | None]) -> list[bool]:
    """Whether each point is on the front: no other costs no more and loses no more, and less of one of them.

    None (not measured, or infeasible) is on no front and keeps nothing off it. Equal points are on it together.
    """
    known = [point for point in points if point is not None]
    return [point is not None and not any(_beats(other, point) for other in known) for point in points]


def _beats(a: Point, b: Point) -> bool:
    return a[0] <= b[0] and a[1] <= b[1] and a != b


def pareto(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows on the front, cheapest first: cost per month (GPUs where there is no price) against accuracy loss.

    Adds `accuracy_loss` (`full`: 0; the measured difference to it; None where none was measured) and `on_front` (None
    where the loss is not known) to every row.
    """
    priced = all(row["cost_per_month"] is not None for row in rows if row["feasible"])
    cost = "cost_per_month" if priced else "gpus"
    for row in rows:
        row["accuracy_loss"] = _loss(row)
    points = [
        (row[cost], row["accuracy_loss"]) if row["feasible"] and row["accuracy_loss"] is not None else None
        for row in rows
    ]
    for row, point, on in zip(rows, points, front(points), strict=True):
        row["on_front"] = None if row["feasible"] and point is None else on
    return sorted((row for row in rows if row["on_front"]), key=lambda row: (row[cost], row["accuracy_loss"]))


def _loss(row: dict[str, Any]) -> float | None:
    if row["policy"] == "full":
        return 0.0
    return None if row["difference"] is None else -row["difference"]
