"""What the gate is about: metrics with their margins, the two sides, and the rows of its verdict. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

OK, INSUFFICIENT = "OK", "INSUFFICIENT"
REGRESSION, DRIFT, GAIN = "REGRESSION", "DRIFT", "GAIN"
STATUS_CHANGE, ROWS_ADDED, ROWS_REMOVED = "STATUS_CHANGE", "ROWS_ADDED", "ROWS_REMOVED"
CATEGORIES = (REGRESSION, STATUS_CHANGE, ROWS_REMOVED, ROWS_ADDED, INSUFFICIENT, DRIFT, GAIN, OK)
FULL = "full"


@dataclass(frozen=True, slots=True)
class Metric:
    """`worse` is +1 where growth is a loss, −1 where it is a gain; `margin` in the metric's own unit."""

    name: str
    label: str
    worse: int
    margin: float
    unit: str = ""


METRICS = {
    metric.name: metric
    for metric in (
        Metric("answer_accuracy", "answer accuracy", -1, 0.05),
        Metric("delta_nll", "ΔNLL", +1, 0.02, " nats"),
        Metric("kl", "KL to full", +1, 0.02, " nats"),
        Metric("nll", "NLL", +1, 0.02, " nats"),
        Metric("action_match", "action match", -1, 0.05),
        Metric("answer_correct", "closed-loop answers", -1, 0.05),
    )
}
"""What is tested, where it was measured. `nll` is tested for `full` alone, whose ΔNLL and KL are 0 by definition."""


@dataclass(frozen=True, slots=True)
class Rules:
    """`margins` by metric (None: not tested); `peak`: growth of the peak KV, `kept`: share of kept rows that moved,
    both as shares; `peak_share`: by policy, the largest peak KV that is promised, as a share of full's.
    """

    margins: Mapping[str, float | None] = field(default_factory=lambda: {m.name: m.margin for m in METRICS.values()})
    peak: float = 0.01
    kept: float | None = 0.02
    peak_share: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Cell:
    """One trajectory under one policy: `status` ok, failed or skipped; `values` of the metrics that were measured."""

    status: str
    values: Mapping[str, float] = field(default_factory=dict)
    peak: float | None = None
    error: str | None = None


Pair = tuple[str, str]  # policy, family
Cells = Mapping[Pair, Mapping[str, Cell]]


@dataclass(frozen=True, slots=True)
class Side:
    """One run: cells by policy and family, then trajectory. `promised`: trajectories that the other side must have."""

    cells: Cells
    promised: frozenset[str]


@dataclass(frozen=True, slots=True)
class Finding:
    """One row of the verdict. `loss` is positive where tonight is worse, with its paired 95 % interval."""

    policy: str
    family: str
    category: str
    detail: str
    blocks: bool = False
    metric: str | None = None
    n: int | None = None
    before: float | None = None
    now: float | None = None
    loss: float | None = None
    low: float | None = None
    high: float | None = None
    margin: float | None = None
    p: float | None = None
