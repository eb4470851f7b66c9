"""Replay: choose traces, a model and policies, see what it will take, start it and watch it."""

import streamlit as st

from kvmill.dashboard import parts_replay, queries_jobs, queries_replay
from kvmill.dashboard.parts import damage_shown, legend, open_service
from kvmill.dashboard.parts_jobs import watch
from kvmill.dashboard.said import plain
from kvmill.errors import UserError

service = open_service()
store = service.store
st.title("Replay")
st.write("Feeds recorded runs through a real model under each policy, and measures what is lost and what is saved.")
with damage_shown(store):
    choices = queries_replay.choices(store)
try:
    options = parts_replay.settings(choices)
    st.subheader("What it will take")
    parts_replay.expected(store, options)
    parts_replay.start(service, options)
except UserError as error:
    st.error(plain(error), icon=":material/error:")

jobs, _ = service.jobs.found(queries_jobs.NEWEST)
running = next((job.id for job in queries_jobs.live(jobs) if job.verb == "replay"), None)
watched = st.session_state.get(parts_replay.JOB) or running
if watched in {job.id for job in jobs}:
    st.subheader("The replay")
    watch(watched)
    job = service.jobs.get(watched)
    if job.ended and job.status.run and job.state == "done":
        st.page_link(
            "app_pages/compare.py",
            label="Compare the policies",
            query_params={"run": job.status.run},
            icon=":material/compare_arrows:",
        )
parts_replay.interrupted(service)
legend("estimated", "assumed", "measured")
