"""Rows → Altair charts, without Streamlit: the same chart serves a page, a report and a notebook.

Colours are Okabe and Ito's, safe for colour-blind readers; a shape says the same again. Units are on the axes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt

from ..errors import UserError
from ..replay.policies.registry import parse_policy
from ..replay.policies.te import TokenEviction

Rows = Sequence[Mapping[str, Any]]
MARKS = {
    "full": ("#000000", "circle"),
    "te assistant": ("#0072B2", "square"),
    "te boundary": ("#56B4E9", "diamond"),
    "attention": ("#009E73", "triangle-up"),
    "random": ("#CC79A7", "triangle-down"),
    "sink_window": ("#E69F00", "cross"),
    "truncate": ("#D55E00", "triangle-right"),
    "other": ("#767676", "triangle-left"),
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


def _label(policy: str) -> str:
    return keep_of(policy) or ("full" if policy == "full" else "–")


def _data(rows: Rows, needed: Sequence[str]) -> alt.Data:
    """Rows in which everything needed was measured, with the colour group and the label added."""
    kept = [dict(row) for row in rows if all(row.get(key) is not None for key in needed)]
    return alt.Data(values=[row | {"group": family(row["policy"]), "label": _label(row["policy"])} for row in kept])


def _group(rows: Rows, title: str = "policy") -> dict[str, Any]:
    """Colour and shape of the groups that occur, with one legend."""
    present = {family(row["policy"]) for row in rows}
    names = [name for name in MARKS if name in present]
    return {
        "color": alt.Color(
            "group:N", title=title, scale=alt.Scale(domain=names, range=[MARKS[name][0] for name in names])
        ),
        "shape": alt.Shape(
            "group:N", title=title, scale=alt.Scale(domain=names, range=[MARKS[name][1] for name in names])
        ),
    }


def against_kv(rows: Rows, value: str, title: str, *, percent: bool = False) -> alt.LayerChart:
    """One point per policy: `value` (with `value_low`/`value_high` drawn where there is an interval) against peak KV.

    `rows` are the policies of `kvmill results`. The dashed line is the value of `full`.
    """
    low, high = f"{value}_low", f"{value}_high"
    axis = alt.Axis(format="%") if percent else alt.Axis()
    x = alt.X("kv_tokens_peak:Q", title="peak KV (tokens, mean over trajectories)", scale=alt.Scale(zero=True))
    y = alt.Y(f"{value}:Q", title=title, axis=axis, scale=alt.Scale(zero=False))
    needed = ("kv_tokens_peak", value)
    tip = [
        alt.Tooltip("policy:N"),
        alt.Tooltip("n:Q", title="trajectories"),
        alt.Tooltip("kv_tokens_peak:Q", title="peak KV (tokens)", format=",.0f"),
        alt.Tooltip(f"{value}:Q", title=title, format=".1%" if percent else ".3f"),
    ]
    base = alt.Chart(_data(rows, needed))
    points = base.mark_point(size=110, filled=True, opacity=1).encode(x=x, y=y, tooltip=tip, **_group(rows))
    names = base.mark_text(dx=9, dy=-9, align="left", fontSize=11).encode(x=x, y=y, text="label:N")
    bars = (
        alt.Chart(_data(rows, (*needed, low, high)))
        .mark_rule(strokeWidth=2)
        .encode(x=x, y=alt.Y(f"{low}:Q", title=title), y2=f"{high}:Q", color=_group(rows)["color"])
    )
    full = (
        alt.Chart(_data([row for row in rows if row["policy"] == "full"], needed))
        .mark_rule(strokeDash=[5, 4], color="#767676")
        .encode(y=y)
    )
    return alt.LayerChart(layer=[full, bars, points, names]).properties(height=380)


def kv_over_turns(rows: Rows) -> alt.Chart:
    """Mean KV rows after each turn, one line per policy; dashes tell keep ratios of one colour apart."""
    labels = sorted({_label(row["policy"]) for row in rows}, key=lambda label: (label != "full", label))
    return (
        alt.Chart(_data(rows, ("turn", "kv_tokens")))
        .mark_line()
        .encode(
            x=alt.X("turn:Q", title="turn", axis=alt.Axis(tickMinStep=1)),
            y=alt.Y("kv_tokens:Q", title="KV after the turn (tokens, mean)"),
            color=_group(rows)["color"],
            strokeDash=alt.StrokeDash(
                "label:N", title="keep", sort=labels, legend=alt.Legend(symbolType="stroke", symbolSize=300)
            ),
            detail="policy:N",
            tooltip=[
                alt.Tooltip("policy:N"),
                alt.Tooltip("turn:Q"),
                alt.Tooltip("kv_tokens:Q", title="KV (tokens)", format=",.0f"),
                alt.Tooltip("kv_tokens_peak:Q", title="peak inside the turn (tokens)", format=",.0f"),
                alt.Tooltip("trajectories:Q"),
            ],
        )
        .properties(height=380)
    )


def gpus_needed(rows: Rows) -> alt.LayerChart:
    """GPUs per policy as a bar, with the interval from `gpus_low` to `gpus_high`."""
    order = [row["policy"] for row in rows]
    y = alt.Y("policy:N", title=None, sort=order, axis=alt.Axis(labelLimit=330))
    bars = (
        alt.Chart(_data(rows, ("gpus",)))
        .mark_bar(opacity=0.85)
        .encode(
            y=y,
            x=alt.X("gpus:Q", title="GPUs needed (simulated)", axis=alt.Axis(tickMinStep=1, format="d")),
            color=alt.Color(
                "group:N",
                legend=None,
                scale=alt.Scale(domain=list(MARKS), range=[colour for colour, _ in MARKS.values()]),
            ),
            tooltip=[alt.Tooltip("policy:N"), alt.Tooltip("gpus:Q", title="GPUs")],
        )
    )
    interval = (
        alt.Chart(_data(rows, ("gpus_low", "gpus_high")))
        .mark_rule(strokeWidth=3, color="#333333")
        .encode(y=y, x="gpus_low:Q", x2="gpus_high:Q")
    )
    return alt.LayerChart(layer=[bars, interval]).properties(height=60 + 44 * max(1, len(rows)))


def p95_by_fleet(rows: Rows, metric: str, limit_s: float | None) -> alt.LayerChart:
    """p95 TTFT or TPOT against fleet size: mean and range over the replications, the SLO as a red line."""
    name = metric.upper()
    x = alt.X("gpus:Q", title="GPUs", axis=alt.Axis(tickMinStep=1, format="d"), scale=alt.Scale(zero=False))
    data = alt.Data(values=[dict(row) for row in rows if row.get(f"{metric}_p95_s") is not None])
    tip = [
        alt.Tooltip("gpus:Q", title="GPUs"),
        alt.Tooltip(f"{metric}_p95_s:Q", title=f"p95 {name} (s)", format=".4f"),
        alt.Tooltip("replications:Q"),
    ]
    points = (
        alt.Chart(data)
        .mark_point(size=90, filled=True, color="#0072B2")
        .encode(x=x, y=alt.Y(f"{metric}_p95_s:Q", title=f"p95 {name} (s, simulated)"), tooltip=tip)
    )
    ranges = (
        alt.Chart(data)
        .mark_rule(color="#0072B2", strokeWidth=2)
        .encode(x=x, y=f"{metric}_low_s:Q", y2=f"{metric}_high_s:Q")
    )
    layers = [ranges, points]
    if limit_s is not None:
        slo = alt.Chart(alt.Data(values=[{"limit": limit_s}]))
        layers.append(slo.mark_rule(color="#D55E00", strokeDash=[6, 3], strokeWidth=2).encode(y="limit:Q"))
    return alt.LayerChart(layer=layers).properties(height=280)
