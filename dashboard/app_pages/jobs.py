"""Jobs: everything that was started here, over the API or with `kvmill jobs run`, and what became of it."""

import streamlit as st

from kvmill.dashboard import queries_jobs
from kvmill.dashboard.parts import linked, open_service, refusal_shown, rows_shown
from kvmill.dashboard.parts_jobs import watch
from kvmill.dashboard.said import plain

ARROW = ":material/arrow_forward:"

service = open_service()
st.title("Jobs")
found, damaged = service.jobs.found(queries_jobs.NEWEST)
for line in damaged:
    st.error(plain(line), icon=":material/error:")
if not found:
    st.info("No job yet. Start one on the pages Traces, Replay and Capacity, or with:", icon=":material/info:")
    st.code("kvmill jobs run -- demo --quick", language="bash")
    st.stop()

by_id = {job.id: job for job in found}
chosen = linked("job", list(by_id), label="Job", shown=lambda id: f"{by_id[id].verb} · {by_id[id].state} · {id}")
watch(chosen)
run, verb = by_id[chosen].status.run, by_id[chosen].verb
if by_id[chosen].ended and run:
    if verb == "replay":
        address = {"run": run}
        st.page_link("app_pages/compare.py", label=f"Compare the policies of {run}", icon=ARROW, query_params=address)
    if verb in ("plan", "demo"):
        address = {"run": run} if run.startswith("plan-") else {}  # a largest load is no plan
        st.page_link("app_pages/capacity.py", label="See the GPUs that are needed", icon=ARROW, query_params=address)
    if verb == "traces ingest":
        st.page_link("app_pages/traces.py", label=f"What was read: {run}", icon=ARROW, query_params={"ingest": run})
with refusal_shown():
    answer = service.jobs.result(chosen) if by_id[chosen].ended else None
    if answer is not None:
        with st.expander("Answer"):
            st.json(answer, expanded=1)

st.subheader("All jobs")
rows_shown(queries_jobs.rows(found))
if len(found) == queries_jobs.NEWEST:
    st.caption(f"The newest {queries_jobs.NEWEST} are shown; `kvmill jobs list` lists all.")
