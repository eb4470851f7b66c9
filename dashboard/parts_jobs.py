"""A job as the pages show it: state, progress with the time to go, log, and what can be done about it."""

from __future__ import annotations

import streamlit as st

from ..errors import UserError
from . import queries_jobs
from .job import Job
from .parts import open_service, refusal_shown, visitor
from .said import plain

EVERY_S = 2.0
_LOG_BYTES = 8 * 1024
_LOOKS = {
    "queued": (":material/hourglass_empty:", "gray"),
    "running": (":material/play_arrow:", "blue"),
    "done": (":material/check:", "green"),
    "failed": (":material/error:", "red"),
    "cancelled": (":material/cancel:", "orange"),
    "lost": (":material/help:", "red"),
}
JOBS_PAGE = "app_pages/jobs.py"


def watch(id: str) -> None:
    """One job, looked at again every 2 s until it has ended; then the page is run once more, for what came of it.

    To be called at the top level of a page: a fragment that repeats must not stand in another one.
    """
    with refusal_shown():
        live = not open_service().jobs.get(id).ended
        st.fragment(_panel, run_every=EVERY_S if live else None)(id, live)


def watch_live() -> None:
    """A line of progress for every job that has not ended, while there are any."""
    found, _ = open_service().jobs.found(queries_jobs.NEWEST)
    before = [job.id for job in queries_jobs.live(found)]
    if before:
        st.subheader("Going on now")
        st.fragment(_lines, run_every=EVERY_S)(before)


def go_to(job: Job) -> None:
    """Open the page Jobs at a job."""
    st.switch_page(JOBS_PAGE, query_params={"job": job.id})


def _lines(before: list[str]) -> None:
    jobs = open_service().jobs
    for id in before:
        try:
            job = jobs.get(id)
        except UserError:
            st.rerun()  # removed meanwhile
        if job.ended:
            st.rerun()
        _progress(job)
        st.page_link(JOBS_PAGE, label="Log and cancel", icon=":material/arrow_forward:", query_params={"job": id})


def _panel(id: str, live: bool) -> None:
    jobs = open_service().jobs
    with refusal_shown():
        job = jobs.get(id)
        if live and job.ended:
            st.rerun()
        _progress(job)
        _buttons(job)
        st.caption(
            f"Asked for by {plain(job.asked.by)} at {job.asked.submitted[:19].replace('T', ' ')} UTC; job {job.id}"
        )
        with st.expander("Log", expanded=job.state in ("failed", "lost")):
            st.code(
                jobs.log(id, _LOG_BYTES) or ("Nothing was said." if job.ended else "Nothing was said yet."),
                language=None,
                wrap_lines=True,
            )
        st.code(queries_jobs.command_of(job), language="bash", wrap_lines=True)


def _progress(job: Job) -> None:
    icon, colour = _LOOKS[job.state]
    took = queries_jobs.took(job)
    said = f" after {took}" if job.ended and took != "–" else f" for {took}" if job.state == "running" else ""
    st.markdown(f"{icon} **{job.verb}** :{colour}-badge[{job.state}]{said}")
    if job.state == "queued":
        st.write("It waits until the one before it has ended.")
    if not job.ended and (done := queries_jobs.share(job.status.progress)) is not None:
        st.progress(done, text=plain(queries_jobs.progress_text(job.status.progress)))
    elif not job.ended and job.status.progress:
        st.write(plain(queries_jobs.progress_text(job.status.progress)))
    if job.status.message:
        (st.error if job.state in ("failed", "lost") else st.info)(plain(job.status.message))


def _buttons(job: Job) -> None:
    service = open_service()
    with st.container(horizontal=True):
        if not job.ended:
            cancel = st.button("Cancel", key=f"cancel {job.id}", icon=":material/cancel:", help="What is done is kept.")
            if cancel:
                service.cancel(job.id, visitor())
                st.toast("It is asked to end.")
            return
        resumable = job.verb == "replay" and job.status.run and job.state != "done"
        if resumable and st.button("Resume", key=f"resume {job.id}", icon=":material/resume:"):
            go_to(service.resume(job.id, visitor()))
        if st.button("Remove from the list", key=f"remove {job.id}", help="The runs that it made stay."):
            service.remove(job.id, visitor())
            st.query_params.pop("job", None)
            st.rerun()
