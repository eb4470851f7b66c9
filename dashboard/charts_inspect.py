"""Charts of one trajectory: what each policy kept of every turn, and where its actions went another way."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import altair as alt

from . import theme
from .charts import Rows, looks_of, policies_axis

_WRITTEN = 16  # columns that are wide enough for a number


def kept_by_turn(rows: Rows, order: list[str]) -> alt.LayerChart:
    """A field per policy, turn and segment kind, the bluer the more was kept; the share stands in it. `turn_shares`."""
    looks = looks_of(rows, order)
    values = [
        dict(row) | {"column": f"{row['turn']} {row['kind']}", "name": looks.names[row["policy"]]} for row in rows
    ]
    columns = list(dict.fromkeys(value["column"] for value in sorted(values, key=lambda v: (v["turn"], _rank(v)))))
    x = alt.X("column:N", sort=columns, title="turn and segment", axis=alt.Axis(labelAngle=-90, labelOverlap=True))
    tip = [
        alt.Tooltip("policy:N"),
        alt.Tooltip("turn:Q"),
        alt.Tooltip("kind:N"),
        alt.Tooltip("tokens:Q", format=","),
        alt.Tooltip("kept:Q", title="kept (mean share of layer-heads)", format=".0%"),
    ]
    base = alt.Chart(alt.Data(values=values)).encode(x=x, y=policies_axis(looks))
    hue = alt.Color(
        "kept:Q",
        title="kept",
        scale=alt.Scale(domain=[0, 1], range=["#E8EEF4", theme.BLUE]),
        legend=alt.Legend(format=".0%"),
    )
    fields = base.mark_rect().encode(color=hue, tooltip=tip)
    layers: list[alt.Chart] = [fields]
    if len(columns) <= _WRITTEN:
        ink = alt.condition("datum.kept > 0.55", alt.value("#FFFFFF"), alt.value("#1A1A1A"))
        numbers = base.mark_text(fontSize=10).encode(text=alt.Text("kept:Q", format=".0%"), color=ink)
        layers.append(numbers)
    return alt.LayerChart(layer=layers).properties(height=150 + 26 * max(1, len(order)))


def _rank(row: Mapping[str, Any]) -> int:
    return ("prefix", "user", "assistant", "tool").index(row["kind"])
