"""Capacity: the GPUs each policy needs under the promise, what they cost, and what binds."""

import streamlit as st

from kvmill.dashboard import charts, queries
from kvmill.dashboard.parts import damage_shown, legend, number, open_store
from kvmill.replay.policies.registry import HEADLINE_POLICY

COLUMNS = {
    "policy": "policy",
    "feasible": "feasible",
    "gpus": "GPUs",
    "gpus_low": "GPUs, low",
    "gpus_high": "GPUs, high",
    "gpus_saved": "GPUs saved",
    "gpus_saved_low": "saved, low",
    "gpus_saved_high": "saved, high",
    "cost_per_month": "USD per month (assumed price)",
    "binding_constraint": "binding constraint",
    "turns_break_even": "growth in turns that eats the saving (at least, where sessions reach the window)",
    "quality_model": "quality measured with",
    "quality_n": "on trajectories",
}

store = open_store()
st.title("Capacity")
with damage_shown(store):
    runs = queries.run_ids(store, "plan", "plans")
    if not runs:
        st.info("No plan yet: no fleet was simulated.", icon=":material/info:")
        st.code(
            "kvmill plan --workload long-agents --model qwen3.5-27b --gpu h200 --slo ttft_p95=2 --slo tpot_p95=0.05",
            language="bash",
        )
        st.stop()
    run = st.selectbox("Plan", runs)
    rows = queries.plan_rows(store, run)
    answer = queries.answer_of(store, run)
    info = store.info(run)

first = rows[0]
st.caption(f"{first['workload']} · {first['model']} on {first['gpu'].upper()} · run {run}")
if answer:
    st.success(answer)
st.subheader("GPUs needed · simulated")
st.altair_chart(charts.gpus_needed(rows), width="stretch")
st.caption("Bars: smallest fleet whose mean keeps the promise. Lines: from the smallest not refuted to the first sure.")

names = [row["policy"] for row in rows]
spoken_of = names.index(HEADLINE_POLICY) if HEADLINE_POLICY in names else len(names) - 1
chosen = st.selectbox("Policy", names, index=spoken_of) or names[-1]
row = rows[names.index(chosen)]
columns = st.columns(3)
columns[0].metric("GPUs needed · simulated", number(row.get("gpus")))
columns[1].metric(
    "GPUs saved · simulated",
    number(row.get("gpus_saved")),
    help=f"95 % interval {number(row.get('gpus_saved_low'))} to {number(row.get('gpus_saved_high'))}",
)
columns[2].metric("USD per month · assumed price", number(row.get("cost_per_month")))
st.write(f"What binds (simulated): {row.get('binding_constraint') or 'nothing was simulated'}.")
if not row.get("feasible"):
    st.warning("No fleet of the sizes tried keeps the promise under this policy.")
model = row.get("quality_model")
st.write(
    f"Quality was measured with {model}, on {number(row.get('quality_n'))} trajectories."
    if model
    else "No quality was measured for this policy: replay it before trusting the saving."
)

with damage_shown(store):
    fleets = queries.replications(store, run, chosen)
if fleets:
    slo = queries.slo_of(info)
    left, right = st.columns(2)
    left.altair_chart(charts.p95_by_fleet(fleets, "ttft", slo.get("ttft_p95")), width="stretch")
    right.altair_chart(charts.p95_by_fleet(fleets, "tpot", slo.get("tpot_p95")), width="stretch")
    st.caption("Points: mean over replications; lines: least to largest; red: the promise.")
st.dataframe([{title: r.get(key) for key, title in COLUMNS.items()} for r in rows], hide_index=True, width="stretch")
assumed = queries.assumptions_of(info)
if assumed:
    st.subheader("Assumed and estimated")
    st.dataframe(assumed, hide_index=True, width="stretch")
legend("simulated", "measured", "estimated", "assumed")
