"""Charts of one replay: what is lost against the memory that is held, seconds per turn, memory over turns, groups."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt

from . import theme
from .charts import PERCENT, TOKENS, Rows, data, height_px, legend, looks_of, policies_axis
from .looks import FULL

RULE = 2
_BANDS = 4  # policies whose bands can be read over one another
_TURN = alt.X("turn:Q", title="turn (from 1)", axis=alt.Axis(tickMinStep=1, format="d"))
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
    among: Sequence[str] = (),
) -> alt.LayerChart:
    """One point per policy: `value` (with `value_low`/`value_high` drawn where there is an interval) against peak KV.

    `rows` are the policies of `kvmill results`. The dashed line is the value of `full`, the steps are the `frontier`
    (`less` is better or more); a ring stands round the policy that is `recommended`.
    """
    looks = looks_of(rows, among)
    low, high = f"{value}_low", f"{value}_high"
    form = ".1%" if percent else ".3f"
    x = alt.X(
        "kv_tokens_peak:Q",
        title="peak KV (tokens, mean)",
        axis=alt.Axis(format=TOKENS, labelOverlap=True),
        scale=alt.Scale(zero=False, padding=16),
    )
    y = alt.Y(f"{value}:Q", title=title, axis=_axis(percent), scale=alt.Scale(zero=False))
    needed = ("kv_tokens_peak", value)
    rows = [{key: row.get(key) for key in ("policy", "n", *needed, low, high)} for row in rows]
    tip = [
        alt.Tooltip("policy:N"),
        alt.Tooltip("n:Q", title="trajectories"),
        alt.Tooltip("kv_tokens_peak:Q", title="peak KV (tokens)", format=TOKENS),
        alt.Tooltip(f"{value}:Q", title=title, format=form),
        alt.Tooltip(f"{low}:Q", title="95 %, low", format=form),
        alt.Tooltip(f"{high}:Q", title="95 %, high", format=form),
    ]
    shown = legend()
    points = (
        alt.Chart(data(rows, needed, looks))
        .mark_point(size=110, filled=True, opacity=1)
        .encode(x=x, y=y, tooltip=tip, color=looks.colour(legend=shown), shape=looks.shape(legend=shown))
    )
    bars = (
        alt.Chart(data(rows, (*needed, low, high), looks))
        .mark_rule(strokeWidth=RULE)
        .encode(x=x, y=alt.Y(f"{low}:Q", title=title), y2=f"{high}:Q", color=looks.colour(legend=shown))
    )
    full = (
        alt.Chart(data([row for row in rows if row["policy"] == FULL], needed, looks))
        .mark_rule(strokeDash=[5, 4], color=theme.GREY)
        .encode(y=y)
    )
    front = (
        alt.Chart(data(frontier(rows, value, less=less), needed, looks))
        .mark_line(interpolate="step-after", color=theme.PALE, strokeWidth=1.5)
        .encode(x=x, y=y)
    )
    layers = [front, full, bars, points]
    chosen = [row for row in rows if row["policy"] == recommended]
    if chosen:
        ring = alt.Chart(data(chosen, needed, looks)).mark_point(size=420, filled=False, strokeWidth=2, shape="circle")
        layers.append(ring.encode(x=x, y=y, color=looks.colour(legend=shown)))
    return alt.LayerChart(layer=layers).properties(height=height_px(looks))


def _axis(percent: bool) -> alt.Axis:
    return alt.Axis(format=PERCENT) if percent else alt.Axis()


def kv_over_turns(rows: Rows, among: Sequence[str] = ()) -> alt.LayerChart:
    """Mean KV rows after each turn, one line per policy; a band from the 10th to the 90th percentile."""
    tip = [
        alt.Tooltip("kv_tokens:Q", title="KV (tokens)", format=TOKENS),
        alt.Tooltip("kv_tokens_peak:Q", title="peak inside the turn (tokens)", format=TOKENS),
    ]
    names = ("kv_tokens", "kv_tokens_p10", "kv_tokens_p90")
    return _over_turns(rows, names, "KV after the turn (tokens, mean)", TOKENS, tip, among)


def ttft_over_turns(rows: Rows, among: Sequence[str] = ()) -> alt.LayerChart:
    """Median time to the first token by turn, with a band from the 10th to the 90th percentile of trajectories."""
    tip = [alt.Tooltip("ttft_s:Q", title="TTFT (s)", format=".4f")]
    names = ("ttft_s", "ttft_p10_s", "ttft_p90_s")
    return _over_turns(rows, names, "time to first token (s, median)", ".3~f", tip, among)


def _over_turns(
    rows: Rows, names: tuple[str, str, str], title: str, form: str, tip: list[alt.Tooltip], among: Sequence[str]
) -> alt.LayerChart:
    """A line and a band per policy; `names`: the columns of the line, of the band's lower and of its upper end.

    The bands of more than a few policies are only seen of those that are chosen in the legend.
    """
    looks = looks_of(rows, among)
    value, low, high = names
    chosen = alt.selection_point(name="chosen", fields=["name"], bind="legend")
    shown = legend(symbolType="stroke", symbolSize=500)
    axis = alt.Axis(format=form)
    lines = (
        alt.Chart()
        .mark_line(strokeWidth=2)
        .encode(
            x=_TURN,
            y=alt.Y(f"{value}:Q", title=title, axis=axis),
            color=looks.colour(legend=shown),
            strokeDash=looks.dash(legend=shown),
            opacity=alt.condition(chosen, alt.value(1), alt.value(0.15)),
            tooltip=[alt.Tooltip("policy:N"), alt.Tooltip("turn:Q"), *tip, alt.Tooltip("trajectories:Q")],
        )
        .add_params(chosen)
    )
    few = len({row["policy"] for row in rows}) <= _BANDS
    band = (
        alt.Chart()
        .mark_area()
        .encode(
            x=_TURN,
            y=alt.Y(f"{low}:Q", title=title, axis=axis),
            y2=f"{high}:Q",
            color=looks.colour(legend=shown),
            opacity=alt.condition(chosen, alt.value(0.14), alt.value(0), empty=few),
        )
    )
    found = data(rows, ("turn", value), looks)
    return alt.LayerChart(layer=[band, lines], data=found).properties(height=height_px(looks))


def seconds_per_turn(rows: Rows, among: Sequence[str] = ()) -> alt.LayerChart:
    """Seconds of a model call by its parts, stacked, with the interval of the whole. `rows`: `latency_parts`."""
    looks = looks_of(rows, among)
    order = [looks.names[row["policy"]] for row in rows]
    y = policies_axis(looks, order)
    hues = alt.Scale(domain=list(PARTS), range=list(PARTS.values()))
    parts = [
        {"policy": row["policy"], "part": part, "seconds": row[f"{part}_s"], "at": place, "n": row["n"]}
        for row in rows
        for place, part in enumerate(PARTS)
        if row[f"{part}_s"] is not None
    ]
    title = "mean seconds per turn (s)"
    bars = (
        alt.Chart(data(parts, (), looks))
        .mark_bar(opacity=0.9)
        .encode(
            y=y,
            x=alt.X("seconds:Q", title=title, stack="zero", axis=alt.Axis(format=".3~f")),
            color=alt.Color("part:N", scale=hues, sort=list(PARTS), legend=alt.Legend(orient="top", title=None)),
            order="at:Q",
            tooltip=[
                alt.Tooltip("policy:N"),
                alt.Tooltip("part:N"),
                alt.Tooltip("seconds:Q", title="s per turn", format=".4f"),
                alt.Tooltip("n:Q", title="trajectories"),
            ],
        )
    )
    interval = (
        alt.Chart(data(rows, ("turn_s", "low", "high"), looks))
        .mark_rule(strokeWidth=RULE, color=theme.TEXT)
        .encode(y=y, x=alt.X("low:Q", title=title), x2="high:Q")
    )
    return alt.LayerChart(layer=[bars, interval]).properties(height=90 + 24 * max(1, len(order)))


def by_group(
    rows: Rows, title: str, *, among: Sequence[str] = (), percent: bool = False, difference: bool = False
) -> alt.LayerChart:
    """`value` of each policy with its interval, group (`grp`) under group, as meta-analyses draw it.

    A group's own line says over how many trajectories. Of a `difference`, zero is a dashed line.
    """
    looks = looks_of(rows, among)
    form, axis = (".1%" if percent else ".4f"), _axis(percent)
    groups = list(dict.fromkeys(row["grp"] for row in rows))
    lines = [
        line
        for at, grp in enumerate(groups)
        for line in (
            f"{at}\n\n{_head(grp, rows)}",
            *(f"{at}\n{name}" for policy, name in looks.names.items() if _is_in(rows, grp, policy)),
        )
    ]
    own = [row | {"line": f"{groups.index(row['grp'])}\n{looks.names[row['policy']]}"} for row in map(dict, rows)]
    heading = "split(datum.label, '\\n')[1] == ''"
    y = alt.Y(
        "line:N",
        title=None,
        scale=alt.Scale(domain=lines, padding=0.6),
        axis=alt.Axis(
            labelExpr="split(datum.label, '\\n')[1] || split(datum.label, '\\n')[2]",
            labelFontWeight=alt.condition(heading, alt.value("bold"), alt.value("normal")),
            labelLimit=260,
            labelOverlap=False,
            labelBound=False,
            labelFlush=False,
            ticks=False,
            grid=False,
        ),
    )
    x = alt.X("value:Q", title=title, axis=axis, scale=alt.Scale(zero=False))
    tip = [
        alt.Tooltip("policy:N"),
        alt.Tooltip("grp:N", title="of"),
        alt.Tooltip("value:Q", title=title, format=form),
        alt.Tooltip("low:Q", title="95 %, low", format=form),
        alt.Tooltip("high:Q", title="95 %, high", format=form),
        alt.Tooltip("n:Q", title="trajectories"),
    ]
    point = (
        alt.Chart(data(own, ("value",), looks))
        .mark_point(size=70, filled=True, opacity=1)
        .encode(y=y, x=x, color=looks.colour(), shape=looks.shape(), tooltip=tip)
    )
    rule = (
        alt.Chart(data(own, ("low", "high"), looks))
        .mark_rule(strokeWidth=RULE)
        .encode(y=y, x=alt.X("low:Q", title=title), x2="high:Q", color=looks.colour())
    )
    layers = [rule, point]
    if difference:
        zero = alt.Chart(alt.Data(values=[{"at": 0}]))
        layers.insert(0, zero.mark_rule(color=theme.GREY, strokeDash=[5, 4]).encode(x=alt.X("at:Q", title=title)))
    return alt.LayerChart(layer=layers).properties(height=60 + 18 * max(1, len(lines)))


def _head(grp: str, rows: Rows) -> str:
    counts = sorted({row["n"] for row in rows if row["grp"] == grp})
    n = str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    return f"{' '.join(str(grp).split())} (n = {n})"


def _is_in(rows: Rows, grp: str, policy: str) -> bool:
    return any(row["grp"] == grp and row["policy"] == policy for row in rows)


def shares(rows: Rows, names: dict[str, str], title: str, among: Sequence[str] = ()) -> alt.LayerChart:
    """One point per policy and column of `names` (→ what it is called), intervals where there are any."""
    looks = looks_of(rows, among)
    y = policies_axis(looks, [looks.names[row["policy"]] for row in rows])
    values = [
        {"policy": row["policy"], "what": what, "value": row[name]}
        | {end: row.get(f"{name}_{end}") for end in ("low", "high")}
        for row in rows
        for name, what in names.items()
        if row.get(name) is not None
    ]
    offset = alt.YOffset("what:N", sort=list(names.values()))
    scale = alt.Scale(domain=list(names.values()), range=[theme.BLUE, theme.ORANGE, theme.GREEN][: len(names)])
    shown = alt.Legend(orient="top", title=None) if len(names) > 1 else None
    hue = alt.Color("what:N", title=None, scale=scale, legend=shown)
    mark = alt.Shape("what:N", title=None, scale=alt.Scale(domain=list(names.values())), legend=shown)
    tip = [
        alt.Tooltip("policy:N"),
        alt.Tooltip("what:N"),
        alt.Tooltip("value:Q", format=".1%"),
        alt.Tooltip("low:Q", title="95 %, low", format=".1%"),
        alt.Tooltip("high:Q", title="95 %, high", format=".1%"),
    ]
    x = alt.X("value:Q", title=title, axis=alt.Axis(format=PERCENT))
    point = (
        alt.Chart(data(values, (), looks))
        .mark_point(size=90, filled=True, opacity=1)
        .encode(y=y, yOffset=offset, x=x, color=hue, shape=mark, tooltip=tip)
    )
    rule = (
        alt.Chart(data(values, ("low", "high"), looks))
        .mark_rule(strokeWidth=RULE)
        .encode(y=y, yOffset=offset, x=alt.X("low:Q", title=title), x2="high:Q", color=hue)
    )
    zero = alt.Chart(alt.Data(values=[{"at": 0}])).mark_rule(color=theme.GREY, strokeDash=[5, 4]).encode(x="at:Q")
    return alt.LayerChart(layer=[zero, rule, point]).properties(height=90 + 30 * max(1, len(rows)))
