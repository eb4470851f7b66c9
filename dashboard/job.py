"""A job: a command of kvmill that runs by itself, and whose folder is its record.

`job.json` says what was asked, by whom and when; it never changes. `status.json` says how it stands; it is replaced as
a whole, and once the job's supervisor (`worker`) runs, by that alone. `log.txt` is what the command said, `result.json`
what it answered. Times are ISO 8601 in UTC.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil

from ..errors import UserError
from ..traces import locks, manifest

ASKED, STATUS, LOG, RESULT, CANCEL = "job.json", "status.json", "log.txt", "result.json", "cancel.json"
ENDED = ("done", "failed", "cancelled", "lost")
STATES = ("queued", "running", *ENDED)
STALE_S = 30.0
_TRIES = 3  # of a reader that meets a job that ends between two looks


class DamagedJob(UserError):
    """The record of a job cannot be read."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What a job is: `arguments` are the words after the verb, `cwd` is where their relative paths begin."""

    id: str
    verb: str
    arguments: tuple[str, ...]
    by: str
    submitted: str
    lane: str
    cwd: str


@dataclass(frozen=True, slots=True)
class Status:
    """How a job stands. `progress`: label, done, total (None: nobody knows), unit, detail, eta_s (None: no guess).

    `state` is one of STATES; `done` means that the command gave an answer (exit codes 0, 4, 5 and 6). `message` is the
    line that says why, where there is one. `run` is the run of the store that the job writes.
    """

    state: str
    heartbeat: str
    progress: Mapping[str, Any] | None = None
    pid: int | None = None
    host: str | None = None
    exit_code: int | None = None
    started: str | None = None
    ended: str | None = None
    run: str | None = None
    message: str | None = None


@dataclass(frozen=True, slots=True)
class Job:
    """One job as it stands now. `to_json()` is what the API and `--json` show."""

    folder: Path
    asked: Asked
    status: Status

    @property
    def id(self) -> str:
        """Its name: sorts by the time it was asked for."""
        return self.asked.id

    @property
    def verb(self) -> str:
        """The command, as `traces ingest`."""
        return self.asked.verb

    @property
    def state(self) -> str:
        """One of STATES."""
        return self.status.state

    @property
    def ended(self) -> bool:
        """Whether nothing more will happen."""
        return self.state in ENDED

    def to_json(self) -> dict[str, Any]:
        """Everything but the folder, in one flat object."""
        told = asdict(self.asked) | asdict(self.status)
        return told | {"arguments": list(self.asked.arguments)}


def now() -> str:
    """The time, as it is written here."""
    return datetime.now(UTC).isoformat(timespec="microseconds")


def age_s(then: str) -> float:
    """Seconds since a time written by `now`."""
    return time.time() - datetime.fromisoformat(then).timestamp()


def write(path: Path, what: Asked | Status | Mapping[str, Any]) -> None:
    """Replace a file of a job as a whole."""
    told = what if isinstance(what, Mapping) else asdict(what)
    manifest.replace(path, json.dumps(told, indent=1, allow_nan=False).encode())


def read(folder: Path) -> Job:
    """The job in a folder; one whose supervisor is gone without a word is `lost`. DamagedJob if it cannot be read."""
    asked = Asked(**_load(folder / ASKED, Asked))
    asked = replace(asked, arguments=tuple(asked.arguments))
    status = read_status(folder)
    for _ in range(_TRIES):
        if status.state in ENDED or not _gone(folder, status):
            return Job(folder, asked, status)
        again = read_status(folder)
        if again == status:
            break
        status = again
    why = "its process is gone without a word: killed, out of memory, or the machine was restarted"
    return Job(folder, asked, replace(status, state="lost", message=why))


def read_status(folder: Path) -> Status:
    """What `status.json` says, taken at its word."""
    return Status(**_load(folder / STATUS, Status))


def _load(path: Path, kind: type[Asked | Status]) -> dict[str, Any]:
    try:
        raw = json.loads(path.read_bytes())
        return {f.name: raw[f.name] for f in fields(kind)}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DamagedJob(f"damaged record {path} ({type(error).__name__}: {error}); delete the job's folder") from None


def _gone(folder: Path, status: Status) -> bool:
    """Whether nobody works on a job that has not ended: its lock is free, and it is silent or its process is dead."""
    if locks.busy(folder):
        return False
    if age_s(status.heartbeat) > STALE_S:
        return True
    return status.pid is not None and status.host == socket.gethostname() and not _runs(status.pid)


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
