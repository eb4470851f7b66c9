"""The uploads on the page Traces: every file that came in, what became of it, and its deletion."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import streamlit as st

from . import uploaded
from .parts import refusal_shown, rows_shown, visitor
from .said import plain
from .service import Service
from .uploaded import Uploaded


def rule() -> str:
    """What happens to the files that come in, in a sentence."""
    if uploaded.keeps():
        return f"Uploaded files stay as they came, unredacted, until they are deleted ({uploaded.KEEP} is set)."
    return "An uploaded file is deleted once it was read: what is stored is redacted, the file as it came is not."


def made(service: Service) -> None:
    """A table of the uploads with a button that deletes one. Nothing where there never was any."""
    found = uploaded.uploads(service.uploads)
    if not found:
        return
    lying = sum(upload.kept for upload in found)
    with st.expander(f"Uploads: {len(found)} made, {lying} still lying here"):
        st.caption(rule())
        rows_shown(rows(found))
        by_id = {upload.upload: upload for upload in found}
        left, right = st.columns([3, 1], vertical_alignment="bottom")
        chosen = left.selectbox(
            "Delete an upload",
            list(by_id),
            format_func=lambda id: f"{by_id[id].name} · {by_id[id].when} · {id}",
            help="The file and this record of it. What was read from it stays.",
        )
        if right.button("Delete it", icon=":material/delete:", disabled=chosen is None) and chosen:
            with refusal_shown():
                service.remove_upload(chosen, visitor())
                st.rerun()


def rows(found: Sequence[Uploaded]) -> list[dict[str, Any]]:
    """A row for each upload: what it is, and what the last ingest made of it (recorded)."""
    return [
        {
            "name": upload.name,
            "size (bytes)": upload.bytes,
            "came (UTC)": upload.when,
            "format found": read.get("format"),
            "accepted": read.get("accepted"),
            "rejected": read.get("rejected"),
            "the file": "lies here" if upload.kept else "deleted after it was read",
            "what became of it": _became(upload),
            "upload": upload.upload,
        }
        for upload in found
        for read in [upload.read or {}]
    ]


def _became(upload: Uploaded) -> str:
    if upload.read is None:
        return "not read yet"
    if upload.read.get("error"):
        return str(upload.read["error"])
    return f"read by {upload.read['run']}" if upload.read.get("run") else f"not read: see job {upload.read['job']}"


def deleted(service: Service, paths: Sequence[str]) -> list[str]:
    """The names among what an ingest was given that were uploads and are gone."""
    known = {upload.upload for upload in uploaded.uploads(service.uploads) if upload.kept}
    given = {path: uploaded.of_words(service.uploads, [path], service.jobs.store) for path in paths}
    return [plain(Path(path).name) for path, ids in given.items() if ids and ids[0] not in known]
