"""Capacity: how many GPUs a workload needs under a policy, how many that saves, and what the answer rests on."""

from datetime import UTC, datetime

import streamlit as st

from kvmill.dashboard import capacity_answer as said
from kvmill.dashboard import capacity_bounds, charts, charts_capacity, export, parts_capacity, queries_capacity
from kvmill.dashboard.capacity_setting import FIRST_LOOK
from kvmill.dashboard.parts import damage_shown, legend, open_service
from kvmill.dashboard.parts_capacity import Ask, parted
from kvmill.dashboard.said import plain
from kvmill.errors import UserError

service = open_service()
store = service.store
st.title("Capacity")
with damage_shown(store):
    known = queries_capacity.plans(store)
    base = parts_capacity.start_from(known)
    stored = queries_capacity.answers(store, [base] if base else [])
    first = queries_capacity.setting_of(base)
if not known:
    st.info("No plan yet: what follows are closed-form bounds, until you simulate.", icon=":material/info:")

try:
    setting = parts_capacity.settings(service, base, first)
    st.subheader("Policy")
    policy, method, keep = parts_capacity.policy(list(stored))
    frame = capacity_bounds.frame(setting, store)
except UserError as error:
    st.error(plain(error), icon=":material/error:")
    st.stop()

ask = Ask(setting, policy, method, keep)
untouched = base is not None and setting == first
jobs = parts_capacity.jobs_of(service, ask)
with damage_shown(store):
    made = {job.status.run for job in jobs if job}
    alike = {info.run_id for info in queries_capacity.alike(store, known, frame)} | made
    runs = [info for info in known if info.run_id in alike or (untouched and info is base)]
    answers = queries_capacity.answers(store, runs)
row = answers.get(policy)
own = next((info for info in runs if row and info.run_id == row["run_id"]), None)
paired = queries_capacity.answers(store, [own]) if own else {}
full = paired.get("full") or answers.get("full")
pair = [entry for entry in (full, row) if entry] if row else []
told = frame if own is None or "contexts" in own.config else {**frame, **own.config}
slo = (own.config.get("slo") if own else None) or frame["slo"]
if own and untouched and queries_capacity.identity(own.config) != queries_capacity.identity(frame):
    st.caption(
        "This plan was made with another version or with settings that its record does not hold: its figures stand "
        "as they were made, the estimates beside them follow the settings above."
    )

answer = said.spoken(told, full, row) if row else None
st.subheader("Answer · simulated" if row else "Answer · estimated bound")
try:
    bounds = [capacity_bounds.bound(setting, text, store) for text in ("full", policy)]
    looked_at = [capacity_bounds.bound(setting, text, store) for text in parts_capacity.looked_at(ask)]
except UserError as error:
    st.error(plain(error), icon=":material/error:")
    st.stop()
if row:
    if answer:
        st.success(answer, icon=":material/check:")
    parts_capacity.shown(said.figures(row))
    st.write(f"What binds (simulated): {row.get('binding_constraint') or 'nothing was simulated'}.")
    if not row.get("feasible"):
        st.warning("No fleet of the sizes tried keeps the promise under this policy.")
    model = row.get("quality_model")
    st.write(
        f"Quality was measured with {model}, on {row.get('quality_n')} trajectories."
        if model
        else "No quality was measured for this policy: replay it before trusting the saving."
    )
elif bounds[1].never:
    st.warning(f"{plain(bounds[1].never)} (estimated).")
else:
    parts_capacity.shown(said.bound_figures(bounds[1], bounds[0], frame["price_per_hour"]))
    st.caption("Closed forms, at once: no simulation of this setting is stored. They say nothing of queues.")
parts_capacity.refine(service, ask, jobs, row["replications"] if row else None)

same = [entry for text, entry in answers.items() if text == "full" or parted(text)[0] == method]
st.subheader("GPUs against the keep ratio")
st.altair_chart(charts_capacity.gpus_over_keep(same, looked_at, keep), width="stretch")
st.caption("Dashed: the full cache (simulated). Lines: 95 % interval. Bounds: of the ratios looked at so far.")
if answers:
    st.subheader("GPUs needed · simulated")
    st.altair_chart(charts.gpus_needed(list(answers.values())), width="stretch")
    st.caption(
        "Bars: smallest fleet whose mean keeps the promise. Lines: from the smallest not refuted to the first sure."
    )

if row:
    st.subheader("Why not fewer? · simulated")
    for entry in pair:
        st.markdown(f"- {plain(entry['policy'])}: {plain(said.why_not_fewer(entry, slo))}")
    with st.expander("Every fleet size looked at"):
        st.dataframe(said.size_rows(pair, slo), hide_index=True, width="stretch")
    latencies = said.latency_rows(pair)
    if latencies:
        st.subheader("Latencies at that size · simulated")
        st.dataframe(latencies, hide_index=True, width="stretch")
    with damage_shown(store):
        fleets = queries_capacity.fleets(store, pair)
        wanted = {entry["policy"]: entry["gpus"] for entry in pair if entry.get("gpus")}
        watched = queries_capacity.over_time(store, frame, wanted)
    left, right = st.columns(2)
    mine = [entry for entry in fleets if entry["policy"] == policy]
    left.altair_chart(charts.p95_by_fleet(mine, "ttft", slo.get("ttft_p95")), width="stretch")
    right.altair_chart(charts.p95_by_fleet(mine, "tpot", slo.get("tpot_p95")), width="stretch")
    st.caption("Points: mean over replications; lines: least to largest; red: the promise.")
    left, right = st.columns(2)
    with left:
        st.subheader("Goodput · simulated")
        st.altair_chart(charts_capacity.goodput(fleets, pair), width="stretch")
        st.caption("Dashed: the fleet of the answer.")
    with right:
        st.subheader("KV occupancy over time · simulated")
        if watched:
            st.altair_chart(charts_capacity.kv_over_time(watched, pair), width="stretch")
            st.caption("Dashed: held by running requests. The rest are caches of agents whose tools run.")
        parts_capacity.over_time(service, ask, wanted, {entry["policy"] for entry in watched})
    effects = said.effect_rows(row)
    if effects:
        st.subheader("What the saving is made of · simulated")
        st.dataframe(effects, hide_index=True)

st.subheader("Sensitivity")
left, right = st.columns(2)
left.markdown("**To load** · estimated")
left.altair_chart(
    charts_capacity.gpus_over_load(capacity_bounds.by_load(bounds), [e for e in (full, row) if e]), width="stretch"
)
left.caption("Lines: fleets that hold every cache. Dashed: no answer can be below. Points: simulated.")
right.markdown("**To the accuracy that may be lost** · measured and simulated")
tolerated = said.by_tolerance(list(answers.values()))
if any(entry["policy"] != "full" for entry in tolerated):
    right.altair_chart(charts_capacity.gpus_by_tolerance(tolerated), width="stretch")
else:
    right.write("No loss of accuracy was measured for a policy that was planned: replay the policies first.")

shapes = (own.config.get("other_shapes") if own else None) or []
if shapes:
    st.markdown("**To the shape of the workload** · GPUs, simulated")
    st.dataframe(shapes, hide_index=True)

st.subheader("Take it along")
replications = row["replications"] if row else FIRST_LOOK
line = parts_capacity.copied(ask, replications)
if row:
    found = {
        **told,
        "slo": slo,
        "answer": answer,
        "plans": pair,
        "other_shapes": shapes,
        "command": line,
        "made": f"{datetime.now(UTC):%Y-%m-%d %H:%M}",
    }
    left, right = st.columns(2)
    name = f"{row['run_id']}-capacity"
    # Made when it is asked for: a file made before would be gone from the server after the next look.
    left.download_button("Report as HTML", lambda: export.as_html(found), f"{name}.html", "text/html")
    right.download_button("As JSON", lambda: export.as_json(found), f"{name}.json", "application/json")
st.subheader("Assumed and estimated")
st.dataframe(export.assumed(told), hide_index=True, width="stretch")
legend("simulated", "measured", "estimated", "assumed")
