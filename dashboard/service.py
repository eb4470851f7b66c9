"""What pages and API let a visitor do: submit jobs, upload, delete. Checked, bounded and written to the audit log here.

Both are thin callers of this file, so that neither can forget a check.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from ..errors import UserError, unknown
from ..traces.store import Store
from . import uploaded, uploads
from .access import Access, Visitor, audit
from .job import Job
from .jobs import Jobs
from .uploaded import Uploaded
from .verbs import words

# Commands that write to the store and nowhere else, and read only what they are pointed at.
SERVED = ("demo", "plan", "replay", "simulate", "traces check", "traces delete", "traces ingest", "validate")


class UnknownTraces(UserError):
    """There is no trajectory and no ingest of this id."""


class Service:
    """One store behind one set of rules."""

    def __init__(
        self,
        store: Store,
        access: Access | None = None,
        jobs: Jobs | None = None,
        most_upload_bytes: int | None = None,
    ) -> None:
        self.store = store
        self.access = access or Access.from_environment(store.desk)
        self.jobs = jobs or Jobs(store.desk)
        self.uploads = self.jobs.store / "uploads"
        self.most_upload_bytes = most_upload_bytes or uploads.most_bytes()

    def submit(self, verb: str, options: Mapping[str, Any], visitor: Visitor) -> Job:
        """Start a command as a job: `submit("replay", {"traces": "samples", "policy": ["full"]}, visitor)`.

        Refused without the token and for places outside of what may be read; UserError for a command that is not served
        and for unknown options.
        """
        self.access.require(visitor)
        if verb not in SERVED:
            raise unknown("job", verb, SERVED)
        arguments = words(verb, options)
        self.access.require_inside(arguments, self.store.path)
        self.store.path.mkdir(parents=True, exist_ok=True)
        job = self.jobs.submit(verb, arguments, by=visitor.name, cwd=self.store.path)
        audit(self.store.desk, visitor.name, "submit", job=job.id, verb=verb, arguments=arguments)
        return job

    def cancel(self, id: str, visitor: Visitor) -> Job:
        """Ask a job to end. Refused without the token; UserError if there is nothing to cancel."""
        self.access.require(visitor)
        job = self.jobs.cancel(id, by=visitor.name)
        audit(self.store.desk, visitor.name, "cancel", job=id)
        return job

    def resume(self, id: str, visitor: Visitor) -> Job:
        """Go on with the replay of a job that ended early. Refused without the token; UserError if it began no run."""
        self.access.require(visitor)
        job = self.jobs.resume(id, by=visitor.name)
        audit(self.store.desk, visitor.name, "resume", job=job.id, of=id)
        return job

    def remove(self, id: str, visitor: Visitor) -> None:
        """Delete the record of a job that has ended. Refused without the token."""
        self.access.require(visitor)
        self.jobs.remove(id)
        audit(self.store.desk, visitor.name, "remove", job=id)

    def upload(self, name: str, pieces: Iterable[bytes], visitor: Visitor) -> Uploaded:
        """Keep a file; its `path` is for `traces ingest`. Refused without the token; UserError if it is unfit, and on
        an object store: only jobs read uploads, and its jobs are not run here.
        """
        self.access.require(visitor)
        self.require_folder()
        return self.uploaded(uploads.receive(self.uploads, name, pieces, self.most_upload_bytes), visitor)

    def require_folder(self) -> None:
        """UserError on an object store: jobs and uploads lie in a folder."""
        _ = self.store.path

    def uploaded(self, found: Uploaded, visitor: Visitor) -> Uploaded:
        """Write an upload that came in to the audit log."""
        details = {key: found.to_json()[key] for key in ("upload", "name", "bytes", "sha256")}
        audit(self.store.desk, visitor.name, "upload", **details)
        return found

    def remove_upload(self, upload: str, visitor: Visitor) -> None:
        """Delete an uploaded file; what was ingested from it stays. Refused without the token."""
        self.access.require(visitor)
        uploaded.remove(self.uploads, upload)
        audit(self.store.desk, visitor.name, "remove upload", upload=upload)

    def delete_traces(self, id: str, visitor: Visitor) -> Job:
        """Delete a trajectory, or all of one ingest, with everything derived from it, as a job.

        Uploads it was read from go at once: they hold it as it was before redaction. UserError if nobody knows the id.
        """
        self.access.require(visitor)
        self.require_folder()
        known = self.store.query(
            "SELECT run_id FROM trajectories WHERE trajectory_id = ? OR run_id = ? "
            "UNION SELECT run_id FROM requests WHERE run_id = ? "
            "UNION SELECT run_id FROM runs WHERE kind = 'ingest' AND run_id = ?",
            [id, id, id, id],
        )["run_id"].to_pylist()
        if not known:
            raise UnknownTraces(f"no trajectory and no ingest run {id!r} in {self.store}")
        for run in known:
            paths = self.store.info(run).config.get("paths", [])
            for upload in uploaded.of_words(self.uploads, [str(path) for path in paths], self.jobs.store):
                with suppress(uploaded.UnknownUpload):  # deleted before
                    uploaded.remove(self.uploads, upload)
        return self.submit("traces delete", {"id": id}, visitor)
