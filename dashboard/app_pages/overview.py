"""Overview: the newest answer first, then what goes on, what to do next, and the newest runs."""

import streamlit as st

from kvmill.dashboard import queries, queries_jobs
from kvmill.dashboard.advice import DEMO, next_steps
from kvmill.dashboard.looks import short_names
from kvmill.dashboard.parts import (
    FIGURE_PX,
    damage_shown,
    figures,
    legend,
    number,
    open_service,
    refusal_shown,
    rows_shown,
    visitor,
)
from kvmill.dashboard.parts_jobs import go_to, watch_live

ARROW = ":material/arrow_forward:"

service = open_service()
store = service.store
st.title("How many GPUs does compaction give back?")
with damage_shown(store):
    runs = queries.newest_runs(store)
    done = queries.kinds_done(store)
    plans = queries.run_ids(store, "plan", "plans")
    answer = queries.answer_of(store, plans[0]) if plans else None
    rows = queries.plan_rows(store, plans[0]) if plans else []

if answer:
    st.success(answer, icon=":material/check:")
elif plans:
    st.info(f"The newest plan, {plans[0]}, has no answer in one sentence: open the page Capacity.")
else:
    st.info("No plan yet. Plan a fleet and the answer appears here.", icon=":material/info:")

if rows:
    st.caption(f"{rows[0]['workload']}, {rows[0]['model']}: plan {plans[0]}")
    names = short_names([row["policy"] for row in rows])
    with figures():
        for row in rows:
            low, high = row.get("gpus_saved_low"), row.get("gpus_saved_high")
            saved = row.get("gpus_saved")
            interval = f" ({number(low)} to {number(high)})" if low is not None and high is not None else ""
            st.metric(
                f"{names[row['policy']]} · simulated",
                f"{number(row.get('gpus'))} × {row['gpu'].upper()}",
                delta=f"{number(saved)} saved{interval}" if saved else None,
                help=f"`{row['policy']}`: GPUs needed to keep the promise, and GPUs saved against `full` with the 95 % "
                "interval.",
                width=FIGURE_PX,
            )
    legend("simulated")

watch_live()
st.subheader("What to do next")
jobs, _ = service.jobs.found(queries_jobs.NEWEST)
for step in next_steps(runs, done):
    st.markdown(step.text)
    st.code(step.command, language="bash")
    if step.page:
        st.page_link(f"app_pages/{step.page}.py", label=f"Do it on the page {step.page.capitalize()}", icon=ARROW)
    if step.command == DEMO and not any(job.verb == "demo" for job in queries_jobs.live(jobs)):
        asked = st.button("Run the demo here", type="primary", icon=":material/play_arrow:")
        with refusal_shown():
            if asked:
                go_to(service.submit("demo", {"quick": True}, visitor()))

st.subheader("Newest runs")
if runs:
    rows_shown(runs)
else:
    st.write(f"The store `{store}` is empty.")
