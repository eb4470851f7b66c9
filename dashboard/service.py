"""What pages and API let a visitor do: submit jobs, upload, delete. Checked, bounded and written to the audit log here.

Both are thin callers of this file, so that neither can forget a check.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

from ..errors import unknown
from ..traces.store import Store
from .access import Access, Visitor, audit
from .job import Job
from .jobs import Jobs
from .verbs import words

# Commands that write to the store and nowhere else, and read only what they are pointed at.
SERVED = ("demo", "plan", "replay", "simulate", "traces delete", "traces ingest", "validate")


class Service:
    """One store behind one set of rules."""

    def __init__(self, store: Store, access: Access | None = None) -> None:
        self.store = store
        self.access = access or Access.from_environment(store.path)

    @cached_property
    def jobs(self) -> Jobs:
        """The jobs of the store, unchecked: for what was checked before."""
        return Jobs(self.store.path)

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
        audit(self.store.path, visitor.name, "submit", job=job.id, verb=verb, arguments=arguments)
        return job

    def cancel(self, id: str, visitor: Visitor) -> Job:
        """Ask a job to end. Refused without the token; UserError if there is nothing to cancel."""
        self.access.require(visitor)
        job = self.jobs.cancel(id, by=visitor.name)
        audit(self.store.path, visitor.name, "cancel", job=id)
        return job

    def resume(self, id: str, visitor: Visitor) -> Job:
        """Go on with the replay of a job that ended early. Refused without the token; UserError if it began no run."""
        self.access.require(visitor)
        job = self.jobs.resume(id, by=visitor.name)
        audit(self.store.path, visitor.name, "resume", job=job.id, of=id)
        return job

    def remove(self, id: str, visitor: Visitor) -> None:
        """Delete the record of a job that has ended. Refused without the token."""
        self.access.require(visitor)
        self.jobs.remove(id)
        audit(self.store.path, visitor.name, "remove", job=id)
