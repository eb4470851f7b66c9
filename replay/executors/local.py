"""The local executor: one model in this process, one job after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from ...traces.store import Run
from ..asked import Asked, Settled, settle
from ..cells import Cells, Job
from ..machine import processor

Tell = Callable[[str], None]


class Executor(Protocol):
    """What computes the jobs of a run. `settled` is there before the run is begun.

    `described` goes into the run's config; a resumed run may be executed otherwise.
    """

    settled: Settled
    described: Mapping[str, Any]

    def work(self, run: Run, jobs: Sequence[Job], tell: Tell) -> Iterator[Job]:
        """Commit the rows of every job to the run, and yield it then. `tell` hears how far a long job is."""
        ...

    def close(self) -> None:
        """End all work: nothing writes to the run any more."""
        ...


class Local:
    """Computes in this process."""

    def __init__(self, asked: Asked) -> None:
        loaded = asked.load()
        self.described: Mapping[str, Any] = {
            "executor": "local",
            "worker": {"processor": processor(gpu=loaded.device.type == "cuda")},
        }
        self.settled = settle(asked, loaded)
        self._cells = Cells(asked, self.settled, loaded)

    def work(self, run: Run, jobs: Sequence[Job], tell: Tell) -> Iterator[Job]:
        """In the order of the jobs."""
        if self._cells.loop:
            self._cells.loop.tell = tell
        for job in jobs:
            run.add(self._cells.rows(job), key=job.key)
            yield job

    def close(self) -> None:
        """Nothing runs beside this process."""
