"""Capacity: how many GPUs a workload needs under a policy, how many that saves, and what the answer rests on."""

from datetime import UTC, datetime

import streamlit as st

from kvmill.dashboard import capacity_answer as said
from kvmill.dashboard import (
    capacity_bounds,
    capacity_details,
    capacity_jobs,
    charts,
    charts_capacity,
    export,
    parts_capacity,
    queries_capacity,
)
from kvmill.dashboard.capacity_setting import FIRST_LOOK
from kvmill.dashboard.parts import damage_shown, legend, open_service, rows_shown
from kvmill.dashboard.parts_capacity import parted
from kvmill.dashboard.said import plain
from kvmill.errors import UserError
from kvmill.simulator.sentence import DRAWN

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
    ask = parts_capacity.asked(setting, policy, method, keep, parts_capacity.quality_of(store))
    frame = capacity_bounds.frame(setting, store)
except UserError as error:
    st.error(plain(error), icon=":material/error:")
    st.stop()

untouched = base is not None and setting == first
jobs = capacity_jobs.jobs_of(service, ask)
with damage_shown(store):
    made = {job.status.run for job in jobs if job}
    alike = {info.run_id for info in queries_capacity.alike(store, known, frame)} | made
    runs = [info for info in known if info.run_id in alike or (untouched and info is base)]
    answers = capacity_bounds.judged(queries_capacity.answers(store, runs), setting, store, ask.replay)
    row = answers.get(policy)
    own = next((info for info in runs if row and info.run_id == row["run_id"]), None)
    pairs = queries_capacity.answers(store, [own]) if own else {}
    paired = capacity_bounds.judged(pairs, setting, store, ask.replay)
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
st.caption(f"Of {plain(policy)}" + (f", {row['run_id']}." if row else ", while nothing is simulated for it."))
if row:
    if answer:
        st.success(answer, icon=":material/check:")
    parts_capacity.shown(said.figures(row))
    st.write(f"What binds (simulated): {row.get('binding_constraint') or 'nothing was simulated'}.")
    if not row.get("feasible"):
        st.warning("No fleet of the sizes tried keeps the promise under this policy.")
    model = row.get("quality_model")
    drawn = f" {DRAWN}" if row.get("quality_until_decided") else ""
    st.write(
        f"Quality was measured with {model}, on {row.get('quality_n')} trajectories{drawn}."
        if model
        else "No quality was measured for this policy: replay it before trusting the saving."
    )
try:
    with st.spinner("Working out the closed forms of this policy"):
        bounds = [capacity_bounds.bound(setting, text, store, ask.replay) for text in ("full", policy)]
        looked_at = [capacity_bounds.bound(setting, text, store, ask.replay) for text in parts_capacity.looked_at(ask)]
except UserError as error:
    st.error(plain(error), icon=":material/error:")
    st.stop()
if row is None and bounds[1].never:
    st.warning(f"{plain(bounds[1].never)} (estimated).")
elif row is None:
    parts_capacity.shown(said.bound_figures(bounds[1], bounds[0], frame["price_per_hour"]))
    st.caption("Closed forms, at once: no simulation of this setting is stored. They say nothing of queues.")
capacity_jobs.refine(service, ask, jobs, row["replications"] if row else None)

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
    capacity_details.why_not_fewer(pair, slo)
    with damage_shown(store):
        capacity_details.fleets(service, ask, frame, pair, slo)
    effects = said.effect_rows(row)
    if effects:
        st.subheader("What the saving is made of · simulated")
        rows_shown(effects)

st.subheader("Sensitivity")
capacity_details.to_load(service, ask, bounds, [entry for entry in (full, row) if entry])
st.markdown("**To the accuracy that may be lost** · measured and simulated")
tolerated = said.by_tolerance(list(answers.values()))
if any(entry["policy"] != "full" for entry in tolerated):
    st.altair_chart(charts_capacity.gpus_by_tolerance(tolerated), width="stretch")
else:
    st.write("No loss of accuracy was measured for a policy that was planned: replay the policies first.")

shapes = (own.config.get("other_shapes") if own else None) or []
if shapes:
    st.markdown("**To the shape of the workload** · GPUs, simulated")
    rows_shown(shapes)

st.subheader("Take it along")
replications = row["replications"] if row else FIRST_LOOK
line = parts_capacity.copied(ask, replications, row.get("quality_run") if row else None)
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
rows_shown(export.assumed(told))
legend("simulated", "measured", "estimated", "assumed")
