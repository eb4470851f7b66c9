"""The sections of the page Traces: bringing recordings, what became of them, what they are like, deleting them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import streamlit as st

from ..traces.formats import FORMATS
from ..traces.request_checks import summary_text
from ..traces.store import Store
from . import charts_traces, parts_uploads, queries_jobs, queries_traces
from .parts import SHORT_PX, figures, number, refusal_shown, rows_shown, visitor
from .parts_jobs import watch
from .said import plain
from .service import Service
from .uploaded import KEEP

MOST_MB = 200
_PIECE_BYTES = 1 << 20
_TYPES = ["json", "jsonl", "ndjson", "csv", "parquet", "traj", "eval", "gz", "bz2", "xz", "zst", "zip", "log", "txt"]
_FEW = 12  # values: fewer are listed, as bars of them say nothing
_SHOWN = 100  # refused records on the page; the file holds them all
_BROUGHT = "traces brought"


@dataclass(slots=True)
class Brought:
    """What a session brought: the job that reads it, the one whose end the page has turned to, and how many times.

    It is changed in place. A visitor who moves on leaves the script at its next word to the session: no word is needed
    between the submission of a job and the note of it.
    """

    job: str | None = None
    told: str | None = None
    times: int = 0


def _brought() -> Brought:
    return st.session_state.setdefault(_BROUGHT, Brought())


def bring(service: Service) -> None:
    """Upload files, or name a path: both become a job. An upload is on disk, and out of memory, before it is read."""
    st.write(f"Agent runs and request logs. What they are is found by looking: {len(FORMATS)} formats are known.")
    left, middle, right = st.columns(3)
    redact = left.toggle(
        "Redact",
        True,
        key="traces redact",
        help="Personal data and secrets are replaced before anything is stored.",
        persist_state="session",
    )
    format = middle.selectbox("Format", ["auto", *FORMATS], key="traces format", persist_state="session")
    columns = right.text_input(
        "Columns of a table",
        key="traces columns",
        placeholder="arrival_s=TIMESTAMP,input_tokens=prompt",
        help="FIELD=COLUMN,… for a CSV or Parquet log whose columns have names of their own.",
        persist_state="session",
    )
    # Another key after each upload makes the widget let go of its copy.
    brought = _brought()
    files = st.file_uploader(
        f"Files of up to {MOST_MB} MB each",
        type=_TYPES,
        accept_multiple_files=True,
        max_upload_size=MOST_MB,
        key=f"upload {brought.times}",
    )
    path = st.text_input(
        "Or a path, pattern or URI that the server can read, for large files",
        key=f"path {brought.times}",
        placeholder="/data/traces/*.jsonl or s3://bucket/traces",
        help="Inside the store or a place that the dashboard was started with (--input-root).",
    )
    st.caption(parts_uploads.rule())
    if not st.button("Read them", type="primary", disabled=not (files or path), icon=":material/upload:"):
        return
    with refusal_shown():
        kept = [service.upload(file.name, iter(partial(file.read, _PIECE_BYTES), b""), visitor()) for file in files]
        paths = [upload.path for upload in kept] + ([path.strip()] if path else [])
        options = {"paths": paths, "redact": redact, "format": format, "columns": columns or None}
        brought.job = service.submit("traces ingest", options, visitor()).id
        brought.times += 1
        st.rerun()


def coming(service: Service) -> None:
    """The job that reads what was brought last; once it has ended, the page turns to its run."""
    brought = _brought()
    id = brought.job
    if id is None:
        return
    with refusal_shown():
        job = service.jobs.get(id)
        if job.state == "done":
            st.success(f"{job.verb}: done after {queries_jobs.took(job)}, job {id}", icon=":material/check:")
        else:
            watch(id)
        if job.ended and job.status.run and brought.told != id:
            brought.told = id
            st.query_params["ingest"] = job.status.run


def became(service: Service, run: str) -> None:
    """Every record of an ingest: accepted, there before, part of another one or refused; and what was redacted."""
    info = service.store.info(run)
    found, _ = service.jobs.found(queries_jobs.NEWEST)
    answer = queries_jobs.answer_of_run(service.jobs, found, "traces ingest", run) or {}
    told = {**info.config, **answer}
    names = ("accepted", "duplicates", "chained", "rejected")
    with figures():
        for name in names:
            st.metric(f"{name} · recorded", number(told.get(name)), width=SHORT_PX)
    st.caption(
        "Every record is accepted, or a duplicate of one in the store, or a single call that a longer record holds "
        "(chained), or rejected with its reason. A dash: the run did not keep the figure."
    )
    for file in answer.get("files", []):
        name = plain(Path(file["path"]).name)
        what = file["error"] or (f"read with {Path(file['part_of']).name}" if file["part_of"] else file["format"])
        st.markdown(f"{name}: {plain(what)}")
        if file["log"]:
            with st.expander(f"What the request log {name} is like"):
                st.markdown("\n".join(f"- {plain(line)}" for line in summary_text(file["log"])))
    _redacted(told)
    _rejected(service.store, run, told)


def _redacted(told: dict) -> None:
    st.subheader("Redacted")
    counts = told.get("redacted")
    if not told.get("redact", True):
        st.write("This ingest was asked not to redact.")
    elif counts is None:
        st.write("This run did not keep what was redacted.")
    elif counts:
        rows_shown([{"kind": kind, "replaced": count} for kind, count in sorted(counts.items())])
    else:
        st.write("Nothing was found that looks like personal data or a secret.")


def _rejected(store: Store, run: str, told: dict) -> None:
    st.subheader("Rejected")
    path, rows = queries_traces.rejects(store, run, _SHOWN)
    if path is None:
        st.write("No record was rejected.")
        return
    for reason, count in (told.get("reasons") or {}).items():
        st.text(f"{count} × {reason}")
    rows_shown(rows)
    st.download_button(
        "Download all rejected records",
        path.read_bytes,
        file_name=f"{run}-rejects.jsonl",
        mime="application/jsonl",
        icon=":material/download:",
    )


def losses(store: Store, run: str | None) -> None:
    """What sources could not tell and readers could not keep."""
    st.subheader("Losses")
    found = queries_traces.losses(store, run)
    if found:
        rows_shown(found)
    else:
        st.write("None: the sources tell everything that is asked of them, and the readers kept it.")


def left_out(service: Service, run: str) -> None:
    """Whether long texts of the files are in no trajectory: a second reading, as a job of its own."""
    paths = [str(path) for path in service.store.info(run).config.get("paths", [])]
    found, _ = service.jobs.found(queries_jobs.NEWEST)
    job = queries_jobs.newest_with(found, "traces check", paths)
    gone = parts_uploads.deleted(service, paths)
    with refusal_shown():
        if job is None and gone:
            st.caption(
                f"Whether long texts are in no trajectory is not known: {', '.join(gone)} was deleted after it was "
                f"read. Set {KEEP}=1 for the dashboard to keep uploads."
            )
            return
        if job is None:
            if st.button("Look for text that no trajectory holds", help="Reads the files once more, as a job."):
                service.submit("traces check", {"paths": paths}, visitor())
                st.rerun()
            return
        answer = service.jobs.result(job.id) if job.ended else None
        if answer is None:
            watch(job.id)
            return
        texts = [{"file": Path(file["path"]).name, **text} for file in answer["files"] for text in file["left_out"]]
        if texts:
            st.write("Long texts of the files that are in no trajectory (characters recorded; files of up to 32 MiB):")
            rows_shown(texts)
        else:
            st.write("Every long text of the files (up to 32 MiB each) is in a trajectory: nothing was left out.")


def distributions(store: Store, run: str | None) -> None:
    """How long, how many turns, how long tools take. What was not recorded is not drawn."""
    columns = st.columns(2)
    drawn = 0
    for what in queries_traces.LENGTHS:
        figures = queries_traces.quantiles(store, run, what)
        if figures is None:
            continue
        with columns[drawn % 2]:
            _distribution(store, run, what, figures)
        drawn += 1
    if not drawn:
        st.write("This ingest brought no rows of its own: what it read was in the store already.")


def _distribution(store: Store, run: str | None, what: str, figures: Mapping[str, Any]) -> None:
    """Bars, or in words where there are too few values for bars to say anything."""
    table, _, title = queries_traces.LENGTHS[what]
    count = number(figures["count"])
    if figures["least"] == figures["most"]:
        st.markdown(f"**{title}**: {_short(figures['least'])} in all of them (n = {count})")
        return
    if figures["count"] < _FEW:
        listed = ", ".join(_short(value) for value in queries_traces.values(store, run, what, _FEW))
        st.markdown(f"**{title}**: {listed} (n = {count})")
        return
    st.altair_chart(charts_traces.distribution(queries_traces.distribution(store, run, what), title, table))
    parts = [f"{name} {_short(figures[name])}" for name in ("least", "p50", "p90", "p99", "most")]
    st.caption(f"{' · '.join(parts)}; mean {_short(figures['mean'])}; n = {count}")


def _short(value: float) -> str:
    return number(value, ",.0f" if abs(value) >= 100 else ".3g")


def arrivals(store: Store, run: str) -> None:
    """When the requests of a log arrive."""
    figures = queries_traces.arrival_figures(store, run)
    if figures is None:
        st.caption("Trajectories do not say when they began: a plan takes the load from `--agents` or `--rate`.")
        return
    st.subheader("Arrivals · recorded")
    rows = queries_traces.arrivals(store, run)
    if rows:
        st.altair_chart(charts_traces.arrivals(rows))
    st.caption(
        f"{figures['requests']:,} requests in {figures['span_s']:,.1f} s: {number(figures['rate_per_s'], ',.3g')} per "
        f"second; burstiness {number(figures['gap_cv'], '.2f')} (standard deviation of the gaps over their mean; "
        f"Poisson is 1); longest gap {number(figures['longest_gap_s'], ',.1f')} s"
    )


def deletion(service: Service, run: str) -> None:
    """Delete an ingest with everything derived from it."""
    with st.popover("Delete…", icon=":material/delete:"):
        st.write(f"Deletes all that {run} brought, what replays kept of its words, and its uploaded files.")
        sure = st.checkbox("I mean it", key=f"sure {run}")
        if st.button("Delete", disabled=not sure, type="primary", key=f"delete {run}"):
            with refusal_shown():
                brought = _brought()
                brought.job = service.delete_traces(run, visitor()).id
                st.rerun()
