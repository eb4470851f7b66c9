"""Charts of one replay: what is lost against the memory that is held, seconds per turn, memory over turns, groups."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt

from . import theme
from .charts import Rows, colour, dashes, data, shape

RULE = 2
_LIMIT = 330  # pixels of a policy's name
PARTS = {"compaction": theme.VERMILION, "prefill": theme.SKY, "decode": theme.BLUE}


def frontier(rows: Rows, value: str, *, less: bool = False) -> list[dict[str, Any]]:
    """The policies that no other one beats: fewer tokens held at the peak and more (or `less`) of `value`.

    By point estimate, the smallest first. Rows in which either was not measured are left out.
    """
    sign = -1 if less else 1
    known = [dict(row) for row in rows if row.get("kv_tokens_peak") is not None and row.get(value) is not None]
    best: list[dict[str, Any]] = []
    for row in sorted(known, key=lambda row: (row["kv_tokens_peak"], -sign * row[value])):
        if not best or sign * row[value] > sign * best[-1][value]:
            best.append(row)
    return best


def against_kv(
    rows: Rows,
    value: str,
    title: str,
    *,
    percent: bool = False,
    less: bool = False,
    recommended: str | None = None,
    guarantee: str = "",
) -> alt.LayerChart:
    """One point per policy: `value` (with `value_low`/`value_high` drawn where there is an interval) against peak KV.

    `rows` are the policies of `kvmill results`. The dashed line is the value of `full`, the steps are the `frontier`
    (`less` is better or more); a ring marks the policy that is `recommended`, with its `guarantee`.
    """
    low, high = f"{value}_low", f"{value}_high"
    axis = alt.Axis(format="%") if percent else alt.Axis()
    x = alt.X("kv_tokens_peak:Q", title="peak KV (tokens, mean over trajectories)", scale=alt.Scale(zero=True))
    y = alt.Y(f"{value}:Q", title=title, axis=axis, scale=alt.Scale(zero=False))
    needed = ("kv_tokens_peak", value)
    form = ".1%" if percent else ".3f"
    tip = [
        alt.Tooltip("policy:N"),
        alt.Tooltip("n:Q", title="trajectories"),
        alt.Tooltip("kv_tokens_peak:Q", title="peak KV (tokens)", format=",.0f"),
        alt.Tooltip(f"{value}:Q", title=title, format=form),
        alt.Tooltip(f"{low}:Q", title="95 %, low", format=form),
        alt.Tooltip(f"{high}:Q", title="95 %, high", format=form),
    ]
    base = alt.Chart(data(rows, needed))
    points = base.mark_point(size=110, filled=True, opacity=1).encode(
        x=x, y=y, tooltip=tip, color=colour(rows), shape=shape(rows)
    )
    names = base.mark_text(dx=9, dy=-9, align="left", fontSize=11, color=theme.TEXT).encode(x=x, y=y, text="label:N")
    bars = (
        alt.Chart(data(rows, (*needed, low, high)))
        .mark_rule(strokeWidth=RULE)
        .encode(x=x, y=alt.Y(f"{low}:Q", title=title), y2=f"{high}:Q", color=colour(rows))
    )
    full = (
        alt.Chart(data([row for row in rows if row["policy"] == "full"], needed))
        .mark_rule(strokeDash=[5, 4], color=theme.GREY)
        .encode(y=y)
    )
    front = (
        alt.Chart(data(frontier(rows, value, less=less), needed))
        .mark_line(interpolate="step-after", color=theme.PALE, strokeWidth=1.5)
        .encode(x=x, y=y)
    )
    layers = [front, full, bars, points, names]
    chosen = [{**row, "mark": f"recommended ({guarantee})"} for row in rows if row["policy"] == recommended]
    if chosen:
        marked = alt.Chart(data(chosen, needed))
        layers.append(marked.mark_point(size=420, filled=False, strokeWidth=2, color=theme.VERMILION).encode(x=x, y=y))
        below = marked.mark_text(dy=24, fontSize=11, fontWeight="bold", color=theme.VERMILION)
        layers.append(below.encode(x=x, y=y, text="mark:N"))
    return alt.LayerChart(layer=layers).properties(height=380)


def kv_over_turns(rows: Rows) -> alt.LayerChart:
    """Mean KV rows after each turn, one line per policy; a band from the 10th to the 90th percentile."""
    x = alt.X("turn:Q", title="turn", axis=alt.Axis(tickMinStep=1))
    title = "KV after the turn (tokens, mean)"
    lines = (
        alt.Chart()
        .mark_line()
        .encode(
            x=x,
            y=alt.Y("kv_tokens:Q", title=title),
            color=colour(rows),
            strokeDash=dashes(rows),
            detail="policy:N",
            tooltip=[
                alt.Tooltip("policy:N"),
                alt.Tooltip("turn:Q"),
                alt.Tooltip("kv_tokens:Q", title="KV (tokens)", format=",.0f"),
                alt.Tooltip("kv_tokens_peak:Q", title="peak inside the turn (tokens)", format=",.0f"),
                alt.Tooltip("trajectories:Q"),
            ],
        )
    )
    band = (
        alt.Chart()
        .mark_area(opacity=0.12)
        .encode(
            x=x,
            y=alt.Y("kv_tokens_p10:Q", title=title),
            y2="kv_tokens_p90:Q",
            color=colour(rows),
            detail="policy:N",
        )
    )
    return alt.LayerChart(layer=[band, lines], data=data(rows, ("turn", "kv_tokens"))).properties(height=380)


def seconds_per_turn(rows: Rows) -> alt.LayerChart:
    """Seconds of a model call by its parts, stacked, with the interval of the whole. `rows`: `latency_parts`."""
    order = [row["policy"] for row in rows]
    y = alt.Y("policy:N", title=None, sort=order, axis=alt.Axis(labelLimit=_LIMIT))
    hues = alt.Scale(domain=list(PARTS), range=list(PARTS.values()))
    parts = [
        {"policy": row["policy"], "part": part, "seconds": row[f"{part}_s"], "at": place}
        for row in rows
        for place, part in enumerate(PARTS)
        if row[f"{part}_s"] is not None
    ]
    bars = (
        alt.Chart(alt.Data(values=parts))
        .mark_bar(opacity=0.9)
        .encode(
            y=y,
            x=alt.X("seconds:Q", title="seconds per turn, mean (s)", stack="zero"),
            color=alt.Color("part:N", scale=hues, sort=list(PARTS)),
            order="at:Q",
            tooltip=[
                alt.Tooltip("policy:N"),
                alt.Tooltip("part:N"),
                alt.Tooltip("seconds:Q", title="s per turn", format=".4f"),
            ],
        )
    )
    interval = (
        alt.Chart(data(rows, ("turn_s", "low", "high")))
        .mark_rule(strokeWidth=RULE, color=theme.GREY)
        .encode(y=y, x="low:Q", x2="high:Q")
    )
    return alt.LayerChart(layer=[bars, interval]).properties(height=60 + 34 * max(1, len(order)))


def ttft_over_turns(rows: Rows) -> alt.LayerChart:
    """Median time to the first token by turn, with a band from the 10th to the 90th percentile of trajectories."""
    x = alt.X("turn:Q", title="turn", axis=alt.Axis(tickMinStep=1))
    title = "time to first token (s, median)"
    tip = [alt.Tooltip("policy:N"), alt.Tooltip("turn:Q"), alt.Tooltip("ttft_s:Q", title="TTFT (s)", format=".4f")]
    tip.append(alt.Tooltip("trajectories:Q"))
    band = (
        alt.Chart()
        .mark_area(opacity=0.12)
        .encode(
            x=x,
            y=alt.Y("ttft_p10_s:Q", title=title),
            y2="ttft_p90_s:Q",
            color=colour(rows),
            detail="policy:N",
        )
    )
    lines = (
        alt.Chart()
        .mark_line()
        .encode(
            x=x,
            y=alt.Y("ttft_s:Q", title=title),
            color=colour(rows),
            strokeDash=dashes(rows),
            detail="policy:N",
            tooltip=tip,
        )
    )
    return alt.LayerChart(layer=[band, lines], data=data(rows, ("turn", "ttft_s"))).properties(height=380)


def by_group(rows: Rows, title: str, *, across: str, order: Sequence[str], percent: bool = False) -> alt.FacetChart:
    """One panel per group (`grp`): `value` of each policy with its interval. `across`: what the groups are."""
    form = ".1%" if percent else ".3f"
    x = alt.X("value:Q", title=title, axis=alt.Axis(format="%") if percent else alt.Axis(), scale=alt.Scale(zero=False))
    y = alt.Y("policy:N", title=None, sort=list(order), axis=alt.Axis(labelLimit=_LIMIT))
    tip = [
        alt.Tooltip("policy:N"),
        alt.Tooltip("grp:N", title=across),
        alt.Tooltip("value:Q", title=title, format=form),
        alt.Tooltip("low:Q", title="95 %, low", format=form),
        alt.Tooltip("high:Q", title="95 %, high", format=form),
        alt.Tooltip("n:Q", title="trajectories"),
    ]
    base = alt.Chart()
    rule = base.mark_rule(strokeWidth=RULE).encode(y=y, x=alt.X("low:Q", title=title), x2="high:Q", color=colour(rows))
    point = base.mark_point(size=80, filled=True, opacity=1).encode(
        y=y, x=x, color=colour(rows), shape=shape(rows), tooltip=tip
    )
    groups = list(dict.fromkeys(row["grp"] for row in rows))
    panels = alt.LayerChart(layer=[rule, point]).properties(width=300, height=40 + 24 * max(1, len(order)))
    shown = panels.facet(facet=alt.Facet("grp:N", title=across, sort=groups), columns=2, data=data(rows, ("value",)))
    return shown.resolve_scale(x="shared")


def shares(rows: Rows, names: dict[str, str], title: str) -> alt.LayerChart:
    """One point per policy and column of `names` (→ what it is called), intervals where there are any."""
    order = [row["policy"] for row in rows]
    values = [
        {"policy": row["policy"], "what": what, "value": row[name]}
        | {end: row.get(f"{name}_{end}") for end in ("low", "high")}
        for row in rows
        for name, what in names.items()
        if row.get(name) is not None
    ]
    y = alt.Y("policy:N", title=None, sort=order, axis=alt.Axis(labelLimit=_LIMIT))
    offset = alt.YOffset("what:N", sort=list(names.values()))
    scale = alt.Scale(domain=list(names.values()), range=[theme.BLUE, theme.ORANGE, theme.GREEN][: len(names)])
    hue = alt.Color("what:N", title=None, scale=scale)
    x = alt.X("value:Q", title=title, axis=alt.Axis(format="%"))
    tip = [alt.Tooltip("policy:N"), alt.Tooltip("what:N"), alt.Tooltip("value:Q", format=".1%")]
    base = alt.Chart(alt.Data(values=values))
    point = base.mark_point(size=90, filled=True, opacity=1).encode(
        y=y, yOffset=offset, x=x, color=hue, shape=alt.Shape("what:N", title=None), tooltip=tip
    )
    known = alt.Chart(alt.Data(values=[value for value in values if value["low"] is not None]))
    rule = known.mark_rule(strokeWidth=RULE).encode(
        y=y, yOffset=offset, x=alt.X("low:Q", title=title), x2="high:Q", color=hue
    )
    zero = alt.Chart(alt.Data(values=[{"at": 0}])).mark_rule(color=theme.GREY, strokeDash=[5, 4]).encode(x="at:Q")
    return alt.LayerChart(layer=[zero, rule, point]).properties(height=130 + 44 * max(1, len(order)))
