"""What the pages ask of jobs: rows of a table, what goes on now, what a command answered. No SQL: jobs are folders."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..console import duration
from . import job as jobs_files
from .job import Job
from .jobs import Jobs

Rows = list[dict[str, Any]]
NEWEST = 200


def live(found: Iterable[Job]) -> list[Job]:
    """Those that have not ended, the running ones first."""
    return sorted((job for job in found if not job.ended), key=lambda job: job.state != "running")


def rows(found: Iterable[Job]) -> Rows:
    """One row per job for a table."""
    return [
        {
            "job": job.id,
            "command": job.verb,
            "state": job.state,
            "progress": progress_text(job.status.progress) if not job.ended else "",
            "submitted (UTC)": job.asked.submitted[:19].replace("T", " "),
            "took": took(job),
            "by": job.asked.by,
            "run": job.status.run,
            "message": job.status.message,
        }
        for job in found
    ]


def took(job: Job) -> str:
    """How long a job has run, or ran; a dash before it began, and where nobody knows."""
    if job.status.started is None or (job.ended and job.status.ended is None):
        return "–"
    until = jobs_files.age_s(job.status.ended) if job.status.ended else 0.0
    return duration(max(0.0, jobs_files.age_s(job.status.started) - until))


def share(progress: Mapping[str, Any] | None) -> float | None:
    """How much is done, 0 to 1; None where nobody knows how much there is."""
    if not progress or not progress.get("total"):
        return None
    return min(1.0, max(0.0, progress["done"] / progress["total"]))


def progress_text(progress: Mapping[str, Any] | None) -> str:
    """`replay 3/12 trajectories, about 1m15s to go (estimated): registry-3 quality`, as far as it is known."""
    if not progress:
        return ""
    total = f"/{progress['total']}" if progress.get("total") else ""
    text = f"{progress['label']} {progress['done']}{total} {progress['unit']}".rstrip()
    if progress.get("eta_s") is not None:
        text += f", about {duration(progress['eta_s'])} to go (estimated)"
    return f"{text}: {progress['detail']}" if progress.get("detail") else text


def command_of(job: Job) -> str:
    """The same as a command line, to copy."""
    return shlex.join(["kvmill", *job.verb.split(), *job.asked.arguments])


def answer_of_run(jobs: Jobs, found: Sequence[Job], verb: str, run: str) -> dict[str, Any] | None:
    """What the job of a verb answered that made a run; None where none did, as for runs of the command line."""
    made = next((job for job in found if job.verb == verb and job.status.run == run), None)
    return None if made is None else jobs.result(made.id)


def newest_with(found: Iterable[Job], verb: str, words: Sequence[str]) -> Job | None:
    """The newest job of a verb whose arguments end in these words."""
    return next((job for job in found if job.verb == verb and [*job.asked.arguments][-len(words) :] == [*words]), None)
