"""What stands behind the answer on the page Capacity: why not fewer, fleets by size and over time, other loads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import streamlit as st

from . import capacity_answer as said
from . import capacity_bounds, capacity_jobs, charts, charts_capacity, queries_capacity
from .capacity_bounds import Bound
from .capacity_setting import Ask
from .parts import rows_shown
from .said import plain
from .service import Service

Row = Mapping[str, Any]
Rows = Sequence[Row]
OLD_PLAN = "The plan was stored before this was kept by fleet size: plan again to see it."


def why_not_fewer(pair: Rows, slo: Mapping[str, float]) -> None:
    """The fleet of one replica less, for each policy; every size looked at; latencies at the answer."""
    st.subheader("Why not fewer? · simulated")
    for entry in pair:
        st.markdown(f"- {plain(entry['policy'])}: {plain(said.why_not_fewer(entry, slo))}")
    with st.expander("Every fleet size looked at"):
        rows_shown(said.size_rows(pair, slo))
    latencies = said.latency_rows(pair)
    if latencies:
        st.subheader("Latencies at that size · simulated")
        rows_shown(latencies)


def fleets(service: Service, ask: Ask, frame: Row, pair: Rows, slo: Mapping[str, float]) -> None:
    """Latencies, goodput and memory by fleet size and over time. UserError for a damaged store."""
    rows = queries_capacity.fleets(service.store, pair)
    wanted = {entry["policy"]: entry["gpus"] for entry in pair if entry.get("gpus")}
    watched = queries_capacity.over_time(service.store, frame, wanted)
    mine = [entry for entry in rows if entry["policy"] == ask.policy]
    if mine:
        left, right = st.columns(2)
        left.altair_chart(charts.p95_by_fleet(mine, "ttft", slo.get("ttft_p95")), width="stretch")
        right.altair_chart(charts.p95_by_fleet(mine, "tpot", slo.get("tpot_p95")), width="stretch")
        st.caption("Points: mean over replications; lines: least to largest; red: the promise.")
    st.subheader("Goodput · simulated")
    if any(entry["goodput"] is not None for entry in rows):
        st.altair_chart(charts_capacity.goodput(rows, list(pair)), width="stretch")
        st.caption("Dashed: the fleet of the answer.")
    else:
        st.write(OLD_PLAN)
    st.subheader("KV occupancy over time · simulated")
    if watched:
        st.altair_chart(charts_capacity.kv_over_time(watched, list(pair)), width="stretch")
        st.caption("Dashed: held by running requests. The rest are caches of agents whose tools run.")
    capacity_jobs.over_time(service, ask, wanted, {entry["policy"] for entry in watched})


def to_load(service: Service, ask: Ask, bounds: Sequence[Bound], answers: Rows) -> None:
    """How the fleet grows with the load: closed forms at once, simulated where that was asked for."""
    drawn, asked = st.container(), st.container()
    with asked:
        simulated = capacity_jobs.over_load(service, ask)
    with drawn:
        st.markdown(f"**To load** · estimated{' and simulated' if simulated or answers else ''}")
        points = simulated or [{**entry, "load": 1.0} for entry in answers]
        st.altair_chart(charts_capacity.gpus_over_load(capacity_bounds.by_load(bounds), points), width="stretch")
        st.caption(
            "Lines: fleets that hold every cache (estimated). Dashed: no answer can be below (estimated bound). "
            "Points: simulated, with their 95 % interval."
        )
