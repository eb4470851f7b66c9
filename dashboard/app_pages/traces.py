"""Traces: bring recordings, see what was read, redacted, refused and lost, and what they are like."""

import streamlit as st

from kvmill.dashboard import parts_traces, parts_uploads, queries_traces
from kvmill.dashboard.parts import damage_shown, legend, linked, open_service, rows_shown

ALL = "all"

service = open_service()
store = service.store
st.title("Traces")
with damage_shown(store):
    ingested = queries_traces.ingests(store)
if not ingested:
    st.info("Nothing was read yet. Upload recordings here, name a path, or run:", icon=":material/info:")
    st.code("kvmill traces ingest PATH", language="bash")
with st.expander("Bring recordings", expanded=not ingested):
    parts_traces.bring(service)
parts_traces.coming(service)
parts_uploads.made(service)
if not ingested:
    st.stop()

by_id = {row["ingest"]: row for row in ingested}
chosen = linked(
    "ingest",
    [*by_id, ALL],
    label="Ingest",
    shown=lambda id: "everything in the store" if id == ALL else f"{by_id[id]['given']} · {by_id[id]['state']} · {id}",
)
run = None if chosen == ALL else chosen
with damage_shown(store):
    st.header("What was read")
    sources = queries_traces.sources(store, run)
    held = {row["holds"] for row in sources}
    rows_shown(sources)
    if run is not None:
        parts_traces.became(service, run)
    if "trajectories" in held:
        parts_traces.losses(store, run)
        if run is not None:
            parts_traces.left_out(service, run)
    st.header("What they are like")
    parts_traces.distributions(store, run)
    if run is not None:
        parts_traces.arrivals(store, run)
    if "trajectories" in held:
        with st.expander("The first 100 trajectories"):
            rows_shown(queries_traces.trajectories(store, run, 100))
    if run is not None:
        parts_traces.deletion(service, run)
    else:
        rows_shown(ingested)
legend("recorded")
