"""Waiting for a job of a test, with a limit, and ending what a failed test leaves."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress

import psutil

from kvmill.dashboard.job import Job
from kvmill.dashboard.jobs import Jobs
from kvmill.errors import UserError

PLAN = ["--workload=long-agents", "--model=qwen3.5-27b", "--gpu=h200", "--slo=ttft_p95=2", "--slo=tpot_p95=0.05"]


def until(jobs: Jobs, id: str, holds: Callable[[Job], bool], limit_s: float = 60.0) -> Job:
    """The job, as soon as something holds of it."""
    deadline = time.monotonic() + limit_s
    while True:
        job = jobs.get(id)
        if holds(job):
            return job
        assert time.monotonic() < deadline, f"{job.state}: {job.status}\n{jobs.log(id)}"
        time.sleep(0.05)


def ended(jobs: Jobs, id: str) -> Job:
    """The job when it has ended."""
    return until(jobs, id, lambda job: job.ended)


def runs(job: Job) -> bool:
    """Whether the job runs."""
    return job.state == "running"


def child(job: Job) -> psutil.Process:
    """The process of the command itself."""
    assert job.status.pid is not None
    return psutil.Process(job.status.pid).children()[0]


def end_all(jobs: Jobs) -> None:
    """Ask every job to end and wait for it; for the end of a test."""
    for job in jobs.list():
        if not job.ended:
            with suppress(UserError):
                jobs.cancel(job.id, by="the end of the test")
                until(jobs, job.id, lambda job: job.ended, 30.0)


def is_gone(process: psutil.Process, limit_s: float = 15.0) -> bool:
    """Whether a process ends soon."""
    deadline = time.monotonic() + limit_s
    while process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
        if time.monotonic() > deadline:
            return False
        with suppress(ChildProcessError):
            os.waitpid(process.pid, os.WNOHANG)
        time.sleep(0.05)
    return True
