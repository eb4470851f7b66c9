"""When a job that has not ended is lost: its lock is free, and it is silent or its process is dead."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from kvmill.dashboard import job as jobs_files
from kvmill.dashboard.job import ASKED, ENDED, STATUS, Asked, Status
from kvmill.traces import locks

HERE = socket.gethostname()


def ago(seconds: float) -> str:
    return (datetime.now(UTC) - timedelta(seconds=seconds)).isoformat(timespec="microseconds")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    jobs_files.write(tmp_path / ASKED, Asked("x", "validate", ("--a",), "ann", ago(100), "heavy", "/"))
    return tmp_path


@pytest.fixture
def dead() -> int:
    """The number of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def state(folder: Path, status: Status) -> str:
    jobs_files.write(folder / STATUS, status)
    return jobs_files.read(folder).state


@pytest.mark.parametrize("was", ["queued", "running"])
def test_a_silent_job_is_lost_wherever_it_ran(folder: Path, was: str):
    for host, pid in ((HERE, os.getpid()), ("elsewhere", 1), (None, None)):
        assert state(folder, Status(was, ago(31), pid=pid, host=host)) == "lost"
        assert state(folder, Status(was, ago(5), pid=pid, host=host)) == was


def test_a_dead_process_of_this_machine_is_lost_at_once_and_one_elsewhere_when_it_is_silent(folder: Path, dead: int):
    assert state(folder, Status("running", ago(1), pid=dead, host=HERE)) == "lost"
    assert state(folder, Status("running", ago(1), pid=dead, host="elsewhere")) == "running"


def test_a_zombie_is_dead(folder: Path):
    process = subprocess.Popen([sys.executable, "-c", ""], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.read()  # until it has ended; nobody waits for it
    deadline = datetime.now(UTC) + timedelta(seconds=10)
    while state(folder, Status("running", ago(1), pid=process.pid, host=HERE)) != "lost":
        assert datetime.now(UTC) < deadline
    process.wait()


def test_who_holds_the_lock_is_alive_however_silent(folder: Path, dead: int):
    """As on a machine that was asleep."""
    assert locks.acquire(folder)
    assert state(folder, Status("running", ago(500), pid=dead, host=HERE)) == "running"
    locks.release(folder)
    assert state(folder, Status("running", ago(500), pid=dead, host=HERE)) == "lost"


@pytest.mark.parametrize("was", [name for name in ENDED if name != "lost"])
def test_a_job_that_has_ended_is_never_lost(folder: Path, was: str, dead: int):
    assert state(folder, Status(was, ago(10_000), pid=dead, host=HERE, ended=ago(10_000))) == was


def test_a_job_that_ends_between_two_looks_is_not_lost(folder: Path, dead: int, monkeypatch: pytest.MonkeyPatch):
    jobs_files.write(folder / STATUS, Status("running", ago(1), pid=dead, host=HERE))

    def ends_meanwhile(_folder: Path) -> bool:
        jobs_files.write(folder / STATUS, Status("done", ago(0), pid=dead, host=HERE, exit_code=0, ended=ago(0)))
        return False

    monkeypatch.setattr(locks, "busy", ends_meanwhile)
    assert jobs_files.read(folder).state == "done"


def test_what_is_written_is_read_back(folder: Path):
    status = Status(
        "running", ago(1), {"done": 1, "total": None}, os.getpid(), HERE, None, ago(2), None, "run-1", "why"
    )
    jobs_files.write(folder / STATUS, status)
    job = jobs_files.read(folder)
    assert job.status == status
    assert job.asked.arguments == ("--a",)
    assert not job.ended
