"""`kvmill jobs …`: the jobs that the dashboard shows, from the command line."""

from __future__ import annotations

import getpass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..console import answer, duration, guarded, table
from ..errors import UserError
from ..options import JsonOption, StoreOption

if TYPE_CHECKING:
    from .job import Job
    from .jobs import Jobs

Id = Annotated[str, typer.Argument(metavar="JOB", help="A job, as `kvmill jobs list` names it.")]


def register(app: typer.Typer) -> None:
    """Add the `jobs` commands."""
    jobs = typer.Typer(no_args_is_help=True, help="Commands that run in the background, as the dashboard's do.")
    for command in (run, list_, show, log, cancel, resume, remove):
        jobs.command(command.__name__.rstrip("_"))(command)
    app.add_typer(jobs, name="jobs")


@guarded
def run(
    words: Annotated[list[str], typer.Argument(metavar="-- VERB", help="What to run, as `-- replay --limit 2`.")],
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Start a command as a job and return at once."""
    from .verbs import verbs

    verb = next((verb for verb in (" ".join(words[:2]), words[0]) if verb in verbs()), words[0])
    job = _jobs(store).submit(verb, words[len(verb.split()) :], by=_me())
    answer(job.to_json(), as_json, lambda: f"{job.id} is {job.state}; see `kvmill jobs show {job.id}`")


@guarded
def list_(
    limit: Annotated[int, typer.Option(min=1, help="How many to list.")] = 20,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Jobs and how they stand, newest first."""
    jobs, damaged = _jobs(store).found()
    columns = {"id": "job", "verb": "command", "state": "state", "reached": "reached", "by": "by", "message": "why"}
    rows = [job.to_json() | {"reached": _reached(job)} for job in jobs[:limit]]
    shown = f"{table(rows, columns)}\n({len(rows)} of {len(jobs)} jobs)" if jobs else "no jobs yet"
    told = {"total": len(jobs), "jobs": [job.to_json() for job in jobs[:limit]], "damaged": damaged}
    answer(told, as_json, lambda: "\n".join([shown, *damaged]))


@guarded
def show(id: Id, store: StoreOption = None, as_json: JsonOption = False) -> None:
    """How one job stands, and its answer if there is one."""
    jobs = _jobs(store)
    job = jobs.get(id)
    told = job.to_json() | {"result": jobs.result(id)}
    answer(told, as_json, lambda: _shown(job))


@guarded
def log(
    id: Id,
    last_bytes: Annotated[int, typer.Option(min=1, help="At most so much of its end.")] = 64 * 1024,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """What a job said so far."""
    text = _jobs(store).log(id, last_bytes)
    answer({"job": id, "log": text}, as_json, lambda: text)


@guarded
def cancel(id: Id, store: StoreOption = None, as_json: JsonOption = False) -> None:
    """Ask a job to end; what it finished is kept."""
    job = _jobs(store).cancel(id, by=_me())
    answer(job.to_json(), as_json, lambda: f"{id} will end; see `kvmill jobs show {id}`")


@guarded
def resume(id: Id, store: StoreOption = None, as_json: JsonOption = False) -> None:
    """Go on with the replay of a job that ended early, as a new job."""
    job = _jobs(store).resume(id, by=_me())
    answer(job.to_json(), as_json, lambda: f"{job.id} is {job.state}; it goes on with run {job.asked.arguments[0]}")


@guarded
def remove(id: Id, store: StoreOption = None, as_json: JsonOption = False) -> None:
    """Delete the record of a job that has ended; the runs it made stay."""
    _jobs(store).remove(id)
    answer({"removed": id}, as_json, lambda: f"{id} is gone")


def _jobs(store: str | None) -> Jobs:
    from ..traces.store import Store
    from .jobs import Jobs

    return Jobs(Store.open(store).path)


def _me() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError) as error:
        raise UserError(f"nobody knows who you are ({error}); set USER") from None


def _reached(job: Job) -> str | None:
    progress = job.status.progress
    if progress is None or job.state == "done":  # a search that ends early leaves its estimate behind
        return None
    of = f"/{progress['total']}" if progress["total"] else ""
    left = progress["eta_s"] if job.state == "running" else None
    return f"{progress['done']}{of} {progress['unit']}" + (f", {duration(left)} to go" if left else "")


def _shown(job: Job) -> str:
    told: dict[str, Any] = job.to_json() | {
        "command": " ".join(["kvmill", job.verb, *job.asked.arguments]),
        "reached": _reached(job),
        "record": str(job.folder),
    }
    names = ("id", "command", "state", "message", "reached", "run", "exit_code", "by", "submitted", "started", "ended")
    lines = [(name, told[name]) for name in (*names, "record") if told[name] is not None]
    return "\n".join(f"{name.replace('_', ' ')}: {value}" for name, value in lines)
