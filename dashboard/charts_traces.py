"""Charts of recorded traces: how long they are, how many turns, how long tools take, when requests arrive."""

from __future__ import annotations

from typing import Any

import altair as alt

from . import theme
from .charts import Rows

_HEIGHT = 220
_ZERO_UP_TO = 0.6  # of the smallest bar's beginning: zeros stand left of it, as a logarithm has no place for them


def distribution(rows: Rows, title: str, of: str) -> alt.Chart:
    """Bars over a logarithmic axis: `low` to `high` and `count`. `title` is the value with its unit, `of` who counts.

    Zeros are drawn as the leftmost bar, and named so in its tooltip.
    """
    least = min((row["low"] for row in rows if row["low"] > 0), default=1.0)
    bars = [_bar(row, least) for row in rows]
    ends = [min(bar["low"] for bar in bars), max(bar["high"] for bar in bars)] if bars else [1, 10]
    scale = alt.Scale(type="log", nice=False, domain=ends)
    return (
        alt.Chart(alt.Data(values=bars))
        .mark_rect(color=theme.BLUE, opacity=0.85, stroke=theme.GREY, strokeWidth=0.5)
        .encode(
            x=alt.X("low:Q", title=title, scale=scale, axis=alt.Axis(format="~s")),
            x2="high:Q",
            y=alt.Y("count:Q", title=of, axis=alt.Axis(tickMinStep=1, format="~s"), scale=_from_zero(rows, "count")),
            y2=alt.datum(0),
            tooltip=[alt.Tooltip("range:N", title=title), alt.Tooltip("count:Q", title=of, format=",")],
        )
        .properties(height=_HEIGHT)
    )


def arrivals(rows: Rows) -> alt.Chart:
    """Arrival rate of a request log over its time, as steps."""
    ends = [0.0, max((row["end_s"] for row in rows), default=1.0)]
    return (
        alt.Chart(alt.Data(values=[dict(row) for row in rows]))
        .mark_rect(color=theme.BLUE, opacity=0.85)
        .encode(
            x=alt.X("start_s:Q", title="time since the first request (s, recorded)", scale=alt.Scale(domain=ends)),
            x2="end_s:Q",
            y=alt.Y("per_s:Q", title="requests/s (recorded)", scale=_from_zero(rows, "per_s")),
            y2=alt.datum(0),
            tooltip=[
                alt.Tooltip("start_s:Q", title="from (s)", format=",.0f"),
                alt.Tooltip("end_s:Q", title="to (s)", format=",.0f"),
                alt.Tooltip("requests:Q", title="requests", format=","),
                alt.Tooltip("per_s:Q", title="per second", format=".3g"),
            ],
        )
        .properties(height=_HEIGHT)
    )


def _from_zero(rows: Rows, name: str) -> alt.Scale:
    """Spelled out: Vega would look for the ends before the page has given it the rows, and complain."""
    return alt.Scale(domain=[0, max((row[name] for row in rows), default=1)], nice=True)


def _bar(row: Any, least: float) -> dict[str, Any]:
    if row["low"] <= 0:
        return {"low": least * _ZERO_UP_TO**2, "high": least * _ZERO_UP_TO, "count": row["count"], "range": "none"}
    return {**row, "range": f"{row['low']:,.3g} to {row['high']:,.3g}"}
