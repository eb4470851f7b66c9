"""What charts share: the colour and shape of a policy, rows as Vega data; and the charts of fleets.

Rows → Altair charts, without Streamlit: the same chart serves a page, a report and a notebook. Colours are in `theme`,
a shape says the same again. Units are on the axes, intervals are drawn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt

from ..errors import UserError
from ..replay.policies.registry import parse_policy
from ..replay.policies.te import TokenEviction
from . import theme

Rows = Sequence[Mapping[str, Any]]
MARKS = {
    "full": (theme.GREY, "circle"),
    "te assistant": (theme.BLUE, "square"),
    "te boundary": (theme.SKY, "diamond"),
    "attention": (theme.GREEN, "triangle-up"),
    "random": (theme.PURPLE, "triangle-down"),
    "sink_window": (theme.ORANGE, "cross"),
    "truncate": (theme.VERMILION, "triangle-right"),
    "other": (theme.PALE, "triangle-left"),
}


def family(policy: str) -> str:
    """The group a policy is coloured by: its name, and for `te` its query source."""
    try:
        parsed = parse_policy(policy)
    except UserError:
        return "other"
    name = f"te {parsed.proxies[0]}" if isinstance(parsed, TokenEviction) else parsed.name
    return name if name in MARKS else "other"


def keep_of(policy: str) -> str:
    """The keep ratio as text, empty where none is in force."""
    try:
        keep = parse_policy(policy).ratio
    except UserError:
        return ""
    return "" if keep is None else str(keep)


def label(policy: str) -> str:
    """What stands beside a policy's point: its keep ratio, `full`, or a dash."""
    return keep_of(policy) or ("full" if policy == "full" else "–")


def data(rows: Rows, needed: Sequence[str]) -> alt.Data:
    """Rows in which everything needed was measured, with the colour group and the label added."""
    kept = [dict(row) for row in rows if all(row.get(key) is not None for key in needed)]
    return alt.Data(values=[row | {"group": family(row["policy"]), "label": label(row["policy"])} for row in kept])


def colour(rows: Rows, *, legend: bool = True) -> alt.Color:
    """The colours of the groups that occur."""
    names = _present(rows)
    scale = alt.Scale(domain=names, range=[MARKS[name][0] for name in names])
    return alt.Color("group:N", title="policy", scale=scale, legend=alt.Legend(symbolOpacity=1) if legend else None)


def shape(rows: Rows, *, legend: bool = True) -> alt.Shape:
    """The shapes of the groups that occur; with `colour` they share one legend."""
    names = _present(rows)
    scale = alt.Scale(domain=names, range=[MARKS[name][1] for name in names])
    return alt.Shape("group:N", title="policy", scale=scale, legend=alt.Legend(symbolOpacity=1) if legend else None)


def dashes(rows: Rows) -> alt.StrokeDash:
    """Dashes that tell keep ratios of one colour apart."""
    labels = sorted({label(row["policy"]) for row in rows}, key=lambda text: (text != "full", text))
    legend = alt.Legend(symbolType="stroke", symbolSize=300)
    return alt.StrokeDash("label:N", title="keep", sort=labels, legend=legend)


def _present(rows: Rows) -> list[str]:
    present = {family(row["policy"]) for row in rows}
    return [name for name in MARKS if name in present]


def gpus_needed(rows: Rows) -> alt.LayerChart:
    """GPUs per policy as a bar, with the interval from `gpus_low` to `gpus_high`."""
    order = [row["policy"] for row in rows]
    y = alt.Y("policy:N", title=None, sort=order, axis=alt.Axis(labelLimit=330))
    bars = (
        alt.Chart(data(rows, ("gpus",)))
        .mark_bar(opacity=0.85)
        .encode(
            y=y,
            x=alt.X("gpus:Q", title="GPUs needed (simulated)", axis=alt.Axis(tickMinStep=1, format="d")),
            color=colour(rows, legend=False),
            tooltip=[alt.Tooltip("policy:N"), alt.Tooltip("gpus:Q", title="GPUs")],
        )
    )
    interval = (
        alt.Chart(data(rows, ("gpus_low", "gpus_high")))
        .mark_rule(strokeWidth=3, color=theme.GREY)
        .encode(y=y, x="gpus_low:Q", x2="gpus_high:Q")
    )
    return alt.LayerChart(layer=[bars, interval]).properties(height=60 + 44 * max(1, len(rows)))


def p95_by_fleet(rows: Rows, metric: str, limit_s: float | None) -> alt.LayerChart:
    """p95 TTFT or TPOT against fleet size: mean and range over the replications, the SLO as a red line."""
    name = metric.upper()
    x = alt.X("gpus:Q", title="GPUs", axis=alt.Axis(tickMinStep=1, format="d"), scale=alt.Scale(zero=False))
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
