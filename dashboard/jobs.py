"""Jobs of a store: commands of kvmill that run by themselves, whoever asked and whatever happens to that process.

`submit` writes the job's folder and starts its supervisor in a session of its own. Everything else reads folders, so
pages, API and command line see the same jobs, and a server that is restarted has lost nothing.
"""

from __future__ import annotations

import builtins
import json
import os
import re
import secrets
import shutil
import subprocess
import sys
import threading
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ..console import printable
from ..errors import UserError
from ..traces import locks
from . import job as jobs_files
from . import slots
from .job import ASKED, CANCEL, LOG, RESULT, STATUS, Asked, DamagedJob, Job, Status
from .verbs import lane_of, require_job

NAME = re.compile(r"\d{8}-\d{6}-\d{6}-[0-9a-f]{6}")
LOG_BYTES = 64 * 1024


class UnknownJob(UserError):
    """There is no job of this name."""


class NotNow(UserError):
    """The job is not in a state in which that can be done."""


class Jobs:
    """The jobs of the store in `store_folder`. `python` runs the supervisors: this interpreter."""

    def __init__(self, store_folder: str | Path, python: str = sys.executable) -> None:
        self.store = Path(store_folder).absolute()
        self.folder = self.store / "jobs"
        self.python = python

    def submit(self, verb: str, arguments: Sequence[str] = (), *, by: str, cwd: str | Path | None = None) -> Job:
        """Start `kvmill VERB ARGUMENTS…` on this store and return at once. `verbs.words` makes arguments of options.

        It waits as `queued` while the lane is full. `by` is who asked; relative paths begin at `cwd` (this process's).
        UserError for a verb that is no job, and for a store that cannot be written.
        """
        require_job(verb, arguments)
        when = datetime.now(UTC)
        asked = Asked(
            id=f"{when:%Y%m%d-%H%M%S-%f}-{secrets.token_hex(3)}",
            verb=verb,
            arguments=tuple(arguments),
            by=by,
            submitted=jobs_files.now(),
            lane=lane_of(verb),
            cwd=str(Path(cwd or Path.cwd()).absolute()),
        )
        folder = self._make(asked)
        try:
            process = self._start(folder, asked)
        except OSError as error:
            slots.leave(self.folder, asked.lane, asked.id)
            ended = jobs_files.now()
            why = f"{self.python} could not be started: {error.strerror}"
            jobs_files.write(folder / STATUS, Status("failed", ended, ended=ended, message=why))
        else:
            # A child nobody waits for stays as a zombie for as long as a server runs.
            threading.Thread(target=process.wait, daemon=True).start()
        return self.get(asked.id)

    def _make(self, asked: Asked) -> Path:
        """The job's folder, there as a whole or not at all."""
        new = self.folder / f".{asked.id}"
        try:
            new.mkdir(parents=True)
        except OSError as error:
            raise UserError(f"store {self.store} cannot be written ({error.strerror})") from None
        jobs_files.write(new / ASKED, asked)
        jobs_files.write(new / STATUS, Status("queued", asked.submitted))
        (new / LOG).touch()
        slots.ask(self.folder, asked.lane, asked.id)
        return new.rename(self.folder / asked.id)

    def _start(self, folder: Path, asked: Asked) -> subprocess.Popen[bytes]:
        secret = ("KVMILL_TOKEN", "KVMILL_TOKEN_FILE")
        environment = {key: value for key, value in os.environ.items() if key not in secret}
        with (folder / LOG).open("ab") as log:
            return subprocess.Popen(
                # -P: the folder a job starts in is data, and no place to import from.
                [self.python, "-P", "-m", "kvmill.dashboard.worker", str(folder)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=asked.cwd if Path(asked.cwd).is_dir() else self.store,
                env=environment,
                start_new_session=True,
            )

    def list(self) -> list[Job]:
        """All jobs, newest first. DamagedJob if the record of one cannot be read; `found` shows the others."""
        jobs, damaged = self.found()
        if damaged:
            raise DamagedJob(damaged[0])
        return jobs

    def found(self, limit: int | None = None) -> tuple[builtins.list[Job], builtins.list[str]]:
        """The newest jobs, newest first, and a line for each whose record is damaged: those hide no others."""
        jobs, damaged = [], []
        for name in self._names()[:limit]:
            try:
                jobs.append(jobs_files.read(self.folder / name))
            except DamagedJob as error:
                if (self.folder / name).exists():  # else it was removed at this moment
                    damaged.append(str(error))
        return jobs, damaged

    def _names(self) -> builtins.list[str]:
        return sorted((path.name for path in self.folder.glob("*-*") if NAME.fullmatch(path.name)), reverse=True)

    def get(self, id: str) -> Job:
        """One job. UnknownJob if there is none of this name."""
        if NAME.fullmatch(id) and (self.folder / id / ASKED).is_file():
            return jobs_files.read(self.folder / id)
        raise UnknownJob(f"no job {id!r} in {self.store}; see `kvmill jobs list`")

    def cancel(self, id: str, *, by: str) -> Job:
        """Ask a job to end. Its supervisor interrupts the command, which keeps what it finished; soon `cancelled`.

        NotNow if the job has ended already.
        """
        job = self.get(id)
        if job.ended:
            raise NotNow(f"job {id} is {job.state}: there is nothing to cancel")
        jobs_files.write(job.folder / CANCEL, {"by": by, "at": jobs_files.now()})
        return self.get(id)

    def log(self, id: str, last_bytes: int = LOG_BYTES) -> str:
        """The end of what the command said, whole lines, control characters spelled out."""
        path = self.get(id).folder / LOG
        size = path.stat().st_size
        with path.open("rb") as file:
            file.seek(max(0, size - last_bytes))
            tail = file.read(last_bytes)
        if size > last_bytes:
            tail = tail.partition(b"\n")[2] or tail
        return printable(tail.decode(errors="replace"))

    def result(self, id: str) -> dict[str, Any] | None:
        """The object that the command answered with, None while there is none."""
        path = self.get(id).folder / RESULT
        try:
            return json.loads(path.read_bytes())
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise DamagedJob(f"damaged answer {path} ({error}); run the job again") from None

    def resume(self, id: str, *, by: str) -> Job:
        """Go on with the replay of a job that ended early, as a new job. NotNow if it began none."""
        job = self.get(id)
        if not job.ended:
            raise NotNow(f"job {id} is {job.state}: cancel it first, or let it end")
        if job.verb != "replay" or job.status.run is None:
            raise NotNow(f"job {id} began no replay run; submit it again")
        return self.submit("replay", [f"--resume={job.status.run}"], by=by, cwd=job.asked.cwd)

    def remove(self, id: str) -> None:
        """Delete the record of a job that has ended; the runs it made stay. NotNow while it has not."""
        job = self.get(id)
        if not job.ended or locks.busy(job.folder):
            raise NotNow(f"job {id} is {job.state}: cancel it first")
        gone = job.folder.rename(self.folder / f".{id}")
        shutil.rmtree(gone)
