"""What charts share: rows as Vega data, number formats, where legends stand; and the charts of fleets.

Rows → Altair charts, without Streamlit: the same chart serves a page, a report and a notebook. Names, colours and
shapes of policies are in `looks`. Units are on the axes, intervals are drawn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt

from . import theme
from .looks import Looks

Rows = Sequence[Mapping[str, Any]]
PERCENT, TOKENS, COUNT = ".2~%", ",.0f", "d"
"""Formats of axes: as many decimals as tell the ticks apart (25%, 97.5%), thousands, whole numbers."""
NAMES_PX = 220
"""Width of a policy's short name."""


def data(rows: Rows, needed: Sequence[str], looks: Looks) -> dict[str, Any]:
    """Rows in which everything needed was measured, with the policy's short name added as `name`.

    Not as `alt.Data`, which is checked against the schema value by value, at each of the steps that copy a chart.
    """
    kept = [dict(row) for row in rows if all(row.get(key) is not None for key in needed)]
    return {"values": [row | {"name": looks.names[row["policy"]]} for row in kept]}


def looks_of(rows: Rows, among: Sequence[str] = ()) -> Looks:
    """The looks of the policies that the page speaks of (`among`), or else of those in the rows."""
    return Looks.of([*among, *(row["policy"] for row in rows)])


def legend(**more: Any) -> alt.Legend:
    """A legend of policies beside a chart that is as wide as the page: in half of it there is no room for one."""
    return alt.Legend(title=None, labelLimit=NAMES_PX, symbolOpacity=1, rowPadding=4, **more)


def height_px(looks: Looks) -> int:
    """How tall such a chart is, for every policy to stand in the legend."""
    return max(340, 60 + 29 * len(looks.names))


def policies_axis(looks: Looks, order: Sequence[str] = ()) -> alt.Y:
    """One line per policy, by its short name, in this order of names or else in the page's."""
    axis = alt.Axis(labelLimit=NAMES_PX, labelOverlap=False)
    return alt.Y("name:N", title=None, sort=list(order or looks.names.values()), axis=axis)


def gpus_needed(rows: Rows) -> alt.LayerChart:
    """GPUs per policy as a bar, with the interval from `gpus_low` to `gpus_high`."""
    looks = looks_of(rows)
    y = policies_axis(looks)
    bars = (
        alt.Chart(data(rows, ("gpus",), looks))
        .mark_bar(opacity=0.45)  # the interval, in full colour, is seen on it
        .encode(
            y=y,
            x=alt.X("gpus:Q", title="GPUs needed (simulated)", axis=alt.Axis(tickMinStep=1, format=COUNT)),
            color=looks.colour(),
            tooltip=[
                alt.Tooltip("policy:N"),
                alt.Tooltip("gpus:Q", title="GPUs"),
                alt.Tooltip("gpus_low:Q", title="95 %, low"),
                alt.Tooltip("gpus_high:Q", title="95 %, high"),
            ],
        )
    )
    interval = (
        alt.Chart(data(rows, ("gpus_low", "gpus_high"), looks))
        .mark_rule(strokeWidth=3)
        .encode(y=y, x="gpus_low:Q", x2="gpus_high:Q", color=looks.colour())
    )
    return alt.LayerChart(layer=[bars, interval]).properties(height=60 + 44 * max(1, len(rows)))


def p95_by_fleet(rows: Rows, metric: str, limit_s: float | None) -> alt.LayerChart:
    """p95 TTFT or TPOT against fleet size: mean and range over the replications, the SLO as a red line."""
    name = metric.upper()
    x = alt.X("gpus:Q", title="GPUs", axis=alt.Axis(tickMinStep=1, format=COUNT), scale=alt.Scale(zero=False))
    values = alt.Data(values=[dict(row) for row in rows if row.get(f"{metric}_p95_s") is not None])
    tip = [
        alt.Tooltip("gpus:Q", title="GPUs"),
        alt.Tooltip(f"{metric}_p95_s:Q", title=f"p95 {name} (s)", format=".4f"),
        alt.Tooltip("replications:Q"),
    ]
    points = (
        alt.Chart(values)
        .mark_point(size=90, filled=True, color=theme.BLUE)
        .encode(x=x, y=alt.Y(f"{metric}_p95_s:Q", title=f"p95 {name} (s, simulated)"), tooltip=tip)
    )
    ranges = (
        alt.Chart(values)
        .mark_rule(color=theme.BLUE, strokeWidth=2)
        .encode(x=x, y=f"{metric}_low_s:Q", y2=f"{metric}_high_s:Q")
    )
    layers = [ranges, points]
    if limit_s is not None:
        slo = alt.Chart(alt.Data(values=[{"limit": limit_s}]))
        layers.append(slo.mark_rule(color=theme.VERMILION, strokeDash=[6, 3], strokeWidth=2).encode(y="limit:Q"))
    return alt.LayerChart(layer=layers).properties(height=280)
