"""Charts of one capacity question: GPUs against the keep ratio, load and tolerance; goodput; memory over time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt

from . import theme
from .capacity_bounds import Bound
from .charts import Rows
from .looks import FULL, Looks, keep_of

HEIGHT = 280
_DASH = [5, 4]


def _values(rows: Sequence[Mapping[str, Any]]) -> alt.Data:
    return alt.Data(values=[dict(row) for row in rows])


def _looks(*lists: Sequence[Mapping[str, Any]]) -> Looks:
    """Of all policies that these rows speak of."""
    return Looks.of([row["policy"] for rows in lists for row in rows])


def _named(rows: Sequence[Mapping[str, Any]], looks: Looks) -> alt.Data:
    return _values([{**row, "name": looks.names[row["policy"]]} for row in rows])


def _legend() -> alt.Legend:
    return alt.Legend(orient="top", labelLimit=330)


def gpus_over_keep(rows: Rows, bounds: Sequence[Bound], chosen: float | None) -> alt.LayerChart:
    """GPUs against the keep ratio of one method: simulated with intervals, and closed forms as open marks.

    `full` is a dashed line; a rule stands at the ratio `chosen`.
    """
    told: list[dict[str, Any]] = []
    for row in rows:
        keep = keep_of(row["policy"])
        if keep and row.get("gpus"):
            told.append(dict(row) | {"keep": float(keep), "figure": "simulated"})
    forms = [
        {"keep": float(keep_of(found.policy)), "gpus": gpus, "figure": figure, "policy": found.policy}
        for found in bounds
        if keep_of(found.policy)
        for figure, gpus in (
            ("at least (estimated bound)", found.least()),
            ("holds every cache (estimated)", found.holding()),
        )
    ]
    x = alt.X("keep:Q", title="keep ratio", scale=alt.Scale(domain=[0, 1]))
    y = alt.Y("gpus:Q", title="GPUs", axis=alt.Axis(tickMinStep=1, format="d"), scale=alt.Scale(zero=True))
    figures = ["simulated", "at least (estimated bound)", "holds every cache (estimated)"]
    colours = alt.Scale(domain=figures, range=[theme.BLUE, theme.VERMILION, theme.ORANGE])
    shapes = alt.Scale(domain=figures, range=["circle", "triangle-up", "square"])
    legend = alt.Legend(orient="top", labelLimit=260)
    base = alt.Chart(_values([*told, *forms]))
    points = base.mark_point(size=90, filled=True, opacity=1).encode(
        x=x,
        y=y,
        color=alt.Color("figure:N", title=None, scale=colours, legend=legend),
        shape=alt.Shape("figure:N", title=None, scale=shapes, legend=legend),
        tooltip=[alt.Tooltip("policy:N"), alt.Tooltip("figure:N"), alt.Tooltip("gpus:Q", title="GPUs")],
    )
    spans = [row for row in told if row.get("gpus_low") is not None and row.get("gpus_high") is not None]
    bars = (
        alt.Chart(_values(spans))
        .mark_rule(color=theme.BLUE, strokeWidth=2)
        .encode(x=x, y=alt.Y("gpus_low:Q", title="GPUs"), y2="gpus_high:Q")
    )
    layers = [bars, points]
    full = [row for row in rows if row["policy"] == "full" and row.get("gpus")]
    if full:
        layers.insert(0, alt.Chart(_values(full)).mark_rule(color=theme.GREY, strokeDash=_DASH).encode(y=y))
    if chosen is not None:
        here = alt.Chart(_values([{"keep": chosen}]))
        layers.insert(0, here.mark_rule(color=theme.PALE, strokeWidth=1).encode(x=x))
    return alt.LayerChart(layer=layers).properties(height=HEIGHT)


def gpus_over_load(rows: Rows, simulated: Rows) -> alt.LayerChart:
    """GPUs against load, as a factor: closed forms as lines, simulated answers as points with their intervals."""
    looks = _looks(simulated, rows)
    colour = looks.colour(legend=_legend())
    y = alt.Y("holding:Q", title="GPUs", scale=alt.Scale(zero=True), axis=alt.Axis(format="d", tickMinStep=1))
    x = alt.X("load:Q", title="load, times the workload's own")
    tip = [
        alt.Tooltip("policy:N"),
        alt.Tooltip("load:Q"),
        alt.Tooltip("least:Q", title="GPUs at least (estimated bound)"),
        alt.Tooltip("holding:Q", title="GPUs that hold every cache (estimated)"),
    ]
    lines = alt.Chart(_named(rows, looks)).mark_line().encode(x=x, y=y, color=colour, tooltip=tip)
    least = (
        alt.Chart(_named(rows, looks)).mark_line(strokeDash=_DASH).encode(x=x, y="least:Q", color=colour, tooltip=tip)
    )
    keys = ("policy", "load", "gpus", "gpus_low", "gpus_high")
    told = [{key: row.get(key) for key in keys} for row in simulated if row.get("gpus")]
    told.sort(key=lambda row: row["policy"] != FULL)
    points = (
        alt.Chart(_named(told, looks))
        .mark_point(filled=True, opacity=1)
        .encode(
            x=x,
            y="gpus:Q",
            # Under a policy that needs as many, full is still seen.
            size=alt.condition(alt.datum.policy == FULL, alt.value(330), alt.value(90)),
            color=colour,
            shape=looks.shape(legend=_legend()),
            tooltip=[
                alt.Tooltip("policy:N"),
                alt.Tooltip("load:Q"),
                alt.Tooltip("gpus:Q", title="GPUs needed (simulated)"),
                alt.Tooltip("gpus_low:Q", title="from"),
                alt.Tooltip("gpus_high:Q", title="to"),
            ],
        )
    )
    spans = [row for row in told if row["gpus_low"] is not None and row["gpus_high"] is not None]
    bars = (
        alt.Chart(_named(spans, looks))
        .mark_rule(strokeWidth=2)
        .encode(x=x, y="gpus_low:Q", y2="gpus_high:Q", color=colour)
    )
    return alt.LayerChart(layer=[least, lines, bars, points]).properties(height=HEIGHT)


def gpus_by_tolerance(rows: Rows) -> alt.Chart:
    """The smallest fleet against the accuracy that may be lost: by the estimate, and with the interval's end."""
    readings = ["estimate", "95 % interval"]
    return (
        alt.Chart(_values(rows))
        .mark_line(interpolate="step-after", point=True)
        .encode(
            x=alt.X("tolerance:Q", title="accuracy that may be lost (points, measured)", axis=alt.Axis(format="%")),
            y=alt.Y("gpus:Q", title="GPUs needed (simulated)", scale=alt.Scale(zero=True)),
            color=alt.Color(
                "reading:N",
                title="loss, by its",
                legend=_legend(),
                scale=alt.Scale(domain=readings, range=[theme.SKY, theme.BLUE]),
            ),
            strokeDash=alt.StrokeDash(
                "reading:N",
                title="loss, by its",
                legend=_legend(),
                scale=alt.Scale(domain=readings, range=[_DASH, [1, 0]]),
            ),
            tooltip=[
                alt.Tooltip("tolerance:Q", format=".0%"),
                alt.Tooltip("policy:N"),
                alt.Tooltip("gpus:Q", title="GPUs"),
            ],
        )
        .properties(height=HEIGHT)
    )


def goodput(rows: Rows, answers: Rows) -> alt.LayerChart:
    """Turns per second within the promises against fleet size, mean and range; a rule at each policy's answer."""
    rows = [row for row in rows if row.get("goodput") is not None]
    looks = _looks(answers, rows)
    colour = looks.colour(legend=_legend())
    x = alt.X("gpus:Q", title="GPUs", axis=alt.Axis(tickMinStep=1, format="d"), scale=alt.Scale(zero=False))
    y = alt.Y("goodput:Q", title="turns/s within the promises", scale=alt.Scale(zero=True))
    tip = [
        alt.Tooltip("policy:N"),
        alt.Tooltip("gpus:Q", title="GPUs"),
        alt.Tooltip("goodput:Q", title="within the promises (1/s)", format=".3f"),
        alt.Tooltip("throughput:Q", title="all turns (1/s)", format=".3f"),
        alt.Tooltip("replications:Q"),
    ]
    base = alt.Chart(_named(rows, looks))
    lines = base.mark_line().encode(x=x, y=y, color=colour)
    points = base.mark_point(size=80, filled=True, opacity=1).encode(
        x=x, y=y, color=colour, shape=looks.shape(legend=_legend()), tooltip=tip
    )
    ranges = base.mark_rule(strokeWidth=2).encode(x=x, y="goodput_low:Q", y2="goodput_high:Q", color=colour)
    told = [{"policy": row["policy"], "gpus": row["gpus"]} for row in answers if row.get("gpus")]
    here = alt.Chart(_named(told, looks)).mark_rule(strokeDash=_DASH).encode(x=x, color=colour)
    return alt.LayerChart(layer=[here, lines, ranges, points]).properties(height=HEIGHT)


def kv_over_time(rows: Rows, answers: Rows) -> alt.LayerChart:
    """Share of the KV blocks in use over simulated time: a line per policy; dashed, what running requests hold.

    `answers` are the policies shown elsewhere on the page, which keep their colours.
    """
    looks = _looks(answers, rows)
    colour = looks.colour(legend=_legend())
    spans = [row["start_s"] for row in rows] or [0.0]
    scale = alt.Scale(domain=[min(spans), max(spans)], nice=False)
    x = alt.X("start_s:Q", title="simulated time (s)", scale=scale)
    y = alt.Y("kv_used_share:Q", title="KV blocks in use", axis=alt.Axis(format="%"), scale=alt.Scale(domain=[0, 1]))
    tip = [
        alt.Tooltip("policy:N"),
        alt.Tooltip("gpus:Q", title="GPUs"),
        alt.Tooltip("kv_used_share:Q", title="in use", format=".0%"),
        alt.Tooltip("kv_held_share:Q", title="held by running requests", format=".0%"),
        alt.Tooltip("batch:Q", title="batch per replica", format=".1f"),
        alt.Tooltip("waiting:Q", title="waiting", format=".1f"),
    ]
    base = alt.Chart(_named(rows, looks))
    used = base.mark_line().encode(x=x, y=y, color=colour, tooltip=tip)
    held = base.mark_line(strokeDash=_DASH).encode(x=x, y="kv_held_share:Q", color=colour)
    return alt.LayerChart(layer=[used, held]).properties(height=HEIGHT)
