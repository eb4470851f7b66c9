"""Paired tests of one policy and family: how each metric changed, and how likely that is by chance. No torch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from .gate_nouns import (
    DRIFT,
    FULL,
    GAIN,
    INSUFFICIENT,
    METRICS,
    OK,
    REGRESSION,
    ROWS_ADDED,
    ROWS_REMOVED,
    Cell,
    Finding,
    Metric,
    Pair,
    Rules,
)
from .statistics import FEW, difference

LEVEL = 0.025  # one tail of a two-sided 95 % interval
OF_FULL, OF_OTHERS = ("nll",), ("delta_nll", "kl")  # full's own ΔNLL and KL are 0 by definition


def tests(
    pair: Pair, before: Mapping[str, Cell], now: Mapping[str, Cell], both: Sequence[str], rules: Rules
) -> tuple[list[Finding], list[Finding]]:
    """Tests of one pair, not yet corrected, and what a metric that is not measured on both sides makes of it."""
    found, lost = [], []
    for metric in METRICS.values():
        margin = rules.margins.get(metric.name)
        if margin is None or metric.name in (OF_OTHERS if pair[0] == FULL else OF_FULL):
            continue
        was = {t for t in both if metric.name in before[t].values}
        here = {t for t in both if metric.name in now[t].values}
        if was - here:
            detail = f"{metric.label} of {len(was - here)} trajectories is no longer measured"
            lost.append(Finding(*pair, ROWS_REMOVED, detail, True, metric.name, len(was - here)))
        if here - was:
            detail = f"{metric.label} of {len(here - was)} trajectories was not measured in the baseline"
            lost.append(Finding(*pair, ROWS_ADDED, detail, True, metric.name, len(here - was)))
        paired = sorted(was & here)
        if not paired:
            continue
        if len(paired) < FEW:
            detail = f"{metric.label}: {len(paired)} trajectories in both runs: fewer than {FEW} decide nothing"
            lost.append(Finding(*pair, INSUFFICIENT, detail, metric=metric.name, n=len(paired)))
            continue
        values = [(before[t].values[metric.name], now[t].values[metric.name]) for t in paired]
        found.append(_tested(pair, metric, margin, values))
    return found, lost


def _tested(pair: Pair, metric: Metric, margin: float, values: Sequence[tuple[float, float]]) -> Finding:
    was, here = np.array([v for v, _ in values]), np.array([v for _, v in values])
    change = difference(metric.worse * here, metric.worse * was)
    p = worse_by_chance(metric.worse * (here - was))
    return Finding(
        *pair, OK, "", False, metric.name, change.n, float(was.mean()), float(here.mean()),
        change.value, change.low, change.high, margin, p,
    )  # fmt: skip


def worse_by_chance(losses: Sequence[float] | np.ndarray) -> float:
    """One-sided p of Student's test that paired losses have a mean above 0; 1 for fewer than two.

    Where all are the same the spread is 0 and the test has no answer. Two sides drawn alike differ by one given amount
    with probability at most 1/4 (Σ p_i·p_{i+1} over the values in steps of that amount), so n times with 4^−n.
    """
    d = np.asarray(losses, dtype=np.float64)
    if len(d) < 2:
        return 1.0
    if np.ptp(d) <= 1e-12 * np.abs(d).max(initial=0.0):
        return 4.0 ** -len(d) if d[0] > 0 else 1.0
    from scipy.stats import t

    return float(t.sf(d.mean() / (d.std(ddof=1) / math.sqrt(len(d))), len(d) - 1))


def judged(found: Finding, p: float) -> Finding:
    """The category of one test, from its corrected `p`."""
    assert found.metric is not None
    assert found.loss is not None
    assert found.margin is not None
    low, high = found.low or 0.0, found.high or 0.0
    blocks = found.loss > found.margin and low > 0 and p <= LEVEL
    category = REGRESSION if blocks else DRIFT if low > 0 else GAIN if high < 0 else OK
    metric = METRICS[found.metric]
    if found.loss == low == high == 0:
        detail = f"{metric.label} {found.now:.4g}{metric.unit} on {found.n} trajectories, unchanged"
        return replace(found, category=category, p=p, detail=detail)
    ends = sorted((metric.worse * low, metric.worse * high))
    detail = (
        f"{metric.label} {found.before:.4g} → {found.now:.4g}{metric.unit} ({metric.worse * found.loss:+.4g}, 95 % "
        f"interval {ends[0]:+.4g} to {ends[1]:+.4g}, {found.n} trajectories; margin {found.margin:g}, "
        f"corrected p {p:.2g})"
    )
    if category == DRIFT and found.loss > found.margin:
        detail += "; above the margin, but so many tests give that by chance"
    return replace(found, category=category, blocks=blocks, p=p, detail=detail)
