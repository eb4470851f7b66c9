"""Charts of nights and of two runs: verdicts over time, and one trajectory's turns before and after."""

from __future__ import annotations

from typing import Any

import altair as alt

from . import theme
from .charts import NAMES_PX, Rows
from .looks import short_names

VERDICTS = {
    "REGRESSION": (theme.VERMILION, "✖"),
    "STATUS_CHANGE": (theme.PURPLE, "!"),
    "ROWS_REMOVED": (theme.PURPLE, "−"),
    "ROWS_ADDED": (theme.PURPLE, "+"),
    "INSUFFICIENT": (theme.ORANGE, "?"),
    "DRIFT": (theme.SKY, "~"),
    "GAIN": (theme.GREEN, "▲"),
}
"""Colour and sign of a verdict, the worst first; any other is a pale dot: nothing to report."""
NOTHING = (theme.PALE, "·")
SIDES = {"before": (theme.ORANGE, [5, 3]), "after": (theme.BLUE, [1, 0])}


def verdicts(rows: Rows) -> alt.LayerChart:
    """A field per night and policy × family, coloured by its worst finding, whose sign is in it. `rows`: `gates`."""
    names = short_names([row["policy"] for row in rows])
    worst: dict[tuple[str, str, str], dict[str, Any]] = {}
    for row in rows:
        worst.setdefault((row["run"], row["policy"], row["family"]), dict(row))
    values = [
        row
        | {
            "line": f"{names[row['policy']]} · {row['family']}",
            "sign": VERDICTS.get(row["category"], NOTHING)[1],
            "ink": "#FFFFFF" if row["category"] in ("REGRESSION", "GAIN") else "#1A1A1A",
        }
        for row in worst.values()
    ]
    found = {value["category"] for value in values}
    shown = [*(name for name in VERDICTS if name in found), *sorted(found.difference(VERDICTS))]
    scale = alt.Scale(domain=shown, range=[VERDICTS.get(name, NOTHING)[0] for name in shown])
    legend = alt.Legend(orient="top", title=None)
    lines = sorted({value["line"] for value in values})
    nights = list(dict.fromkeys(row["night"] for row in rows))
    base = alt.Chart(alt.Data(values=values)).encode(
        x=alt.X("night:N", sort=nights, title="night (UTC)", axis=alt.Axis(labelAngle=-60, labelOverlap=True)),
        y=alt.Y("line:N", sort=lines, title=None, axis=alt.Axis(labelLimit=NAMES_PX + 80, labelOverlap=False)),
        tooltip=["night:N", "policy:N", "family:N", "category:N", "detail:N", "run:N"],
    )
    fields = base.mark_rect(opacity=0.9).encode(color=alt.Color("category:N", scale=scale, legend=legend))
    signs = base.mark_text(fontSize=11).encode(text="sign:N", color=alt.Color("ink:N", scale=None))
    return alt.LayerChart(layer=[fields, signs]).properties(height=120 + 20 * max(1, len(lines)))


def loss_over_nights(rows: Rows) -> alt.FacetChart:
    """What was lost against the baseline, night by night, with its paired interval and the margin as a line.

    One panel per metric and its unit; positive is worse. `rows`: those of one policy and family.
    """
    nights = list(dict.fromkeys(row["night"] for row in rows))
    x = alt.X("night:N", sort=nights, title="night (UTC)", axis=alt.Axis(labelAngle=-60, labelOverlap=True))
    title = "loss against the baseline (in the metric's unit)"
    y = alt.Y("loss:Q", title=title)
    names = list(VERDICTS)
    scale = alt.Scale(domain=[*names, "OK"], range=[*(VERDICTS[name][0] for name in names), theme.BLUE])
    hue = alt.Color("category:N", scale=scale, legend=alt.Legend(orient="top", title=None))
    tip = ["night:N", "category:N", "detail:N", alt.Tooltip("loss:Q", format=".4f"), alt.Tooltip("n:Q")]
    points = alt.Chart().mark_point(size=70, filled=True, opacity=1).encode(x=x, y=y, color=hue, tooltip=tip)
    rules = alt.Chart().mark_rule(strokeWidth=2).encode(x=x, y=alt.Y("low:Q", title=title), y2="high:Q", color=hue)
    margin = alt.Chart().mark_rule(strokeDash=[6, 3], color=theme.VERMILION).encode(y="mean(margin):Q")
    values = [dict(row) for row in rows if row["loss"] is not None and row["metric"] is not None]
    panels = alt.LayerChart(layer=[margin, rules, points]).properties(width=480, height=200)
    return panels.facet(facet=alt.Facet("metric:N", title=None), columns=1, data=alt.Data(values=values)).resolve_scale(
        y="independent"
    )


def before_and_after(rows: Rows, name: str, title: str) -> alt.LayerChart:
    """One figure of a trajectory over its turns in both runs; turns that changed are marked. `queries_gates.turns`."""
    values = [
        {"turn": row["turn"], "run": side, "value": row[f"{name} {side}"], "changed": name in row["changed"]}
        for row in rows
        for side in SIDES
        if row[f"{name} {side}"] is not None
    ]
    scale = alt.Scale(domain=list(SIDES), range=[colour for colour, _ in SIDES.values()])
    legend = alt.Legend(orient="top", symbolType="stroke", symbolSize=500)
    dashes = alt.Scale(domain=list(SIDES), range=[dash for _, dash in SIDES.values()])
    base = alt.Chart(alt.Data(values=values)).encode(
        x=alt.X("turn:Q", title="turn (from 0)", axis=alt.Axis(tickMinStep=1, format="d")),
        y=alt.Y("value:Q", title=title, scale=alt.Scale(zero=False)),
        color=alt.Color("run:N", title=None, scale=scale, legend=legend),
    )
    lines = base.mark_line().encode(strokeDash=alt.StrokeDash("run:N", title=None, scale=dashes, legend=legend))
    points = (
        base.transform_filter("datum.changed && datum.run == 'after'")
        .mark_point(size=90, filled=False, strokeWidth=2)
        .encode(tooltip=["turn:Q", "run:N", alt.Tooltip("value:Q", title=title, format=".4f")])
    )
    return alt.LayerChart(layer=[lines, points]).properties(height=300)
