"""The Ray executor of a replay: workers compute jobs and write their segments, the driver alone lists them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from ...errors import UserError
from ...traces import manifest
from ...traces.store import Run, Store
from ..asked import Asked, Settled
from ..cells import Job
from ..device import choose_dtype, choose_threads
from ..rows import Who, failed_rows
from .choice import Executing
from .cluster import machines, ray_itself
from .crew import Crew, Lost
from .local import Tell
from .reach import Reach
from .shares import Share, share_out
from .worker import Replayer


class Remote:
    """Workers of the connected cluster, each with the model. UserError where they cannot be had, or differ."""

    settled: Settled
    described: Mapping[str, Any]

    def __init__(self, asked: Asked, where: Executing, store: Store) -> None:
        share = share_for(asked, where)
        if not share.gpus:  # the choice may come from a measurement, which could differ between workers
            dtype = choose_dtype(asked.dtype, torch.device("cpu"))
            asked = replace(asked, dtype=str(dtype).removeprefix("torch."))
        # Trajectories come with the jobs. Only a closed loop looks into all of them, to answer its searches.
        lean = replace(asked, trajectories=asked.trajectories[:1])
        self._first: Mapping[str, Any] | None = None
        self._run: Run | None = None  # while it is written
        self._reach = Reach.opened(store)
        self._crew = Crew(share, Replayer, lean, share, self._reach, welcome=self._welcome)
        try:
            self.settled, self._who = self._settle(asked)
        except BaseException:
            self.close()
            raise
        self._shared = [ray_itself().put((asked if self.settled.closed else lean, self.settled))]
        gpus = {"gpus_per_worker": share.gpus} if share.gpus else {}
        self.described = {"executor": "ray", "workers": share.workers, **gpus, "worker": dict(self._first or {})}

    def work(self, run: Run, jobs: Sequence[Job], tell: Tell) -> Iterator[Job]:
        """Quality jobs on all workers; then latency jobs, one at a time on each machine."""
        self._run = run

        def arguments(job: Job) -> tuple[Any, ...]:
            return job, run.id, self._shared

        for alone in (False, True):
            these = [job for job in jobs if (job.measure == "latency") == alone]
            for job, outcome in self._crew.stream(these, "segment", arguments=arguments, alone=alone):
                if isinstance(outcome, Lost):
                    why = f"the worker process died at it twice ({outcome.why})"
                    who = self._who.identity(job.trajectory)
                    run.add(failed_rows(who, job.policies, job.measure, why), key=job.key)
                else:
                    run.adopt(outcome, key=job.key)
                self._reach.stay()
                yield job

    def close(self) -> None:
        """End the workers, and take away what they wrote and nobody listed."""
        self._crew.close()
        self._reach.close()
        if self._run is not None:
            self._run.home.drop(self._run.home.unlisted(self._run.info))
            self._run = None

    def _settle(self, asked: Asked) -> tuple[Settled, Who]:
        ((_, outcome),) = self._crew.stream([asked], "settle", arguments=lambda job: (job,))
        if isinstance(outcome, Lost):
            raise UserError(f"two workers died before a cell was begun: {outcome.why}")
        return outcome

    def _welcome(self, about: Mapping[str, Any]) -> None:
        """UserError unless a worker is like the driver in its packages, and like the first worker in all else."""
        own = manifest.versions()
        self._first = self._first or about
        for name, value in about.items():
            wanted = own.get(name, self._first[name])
            if value != wanted:
                raise UserError(
                    f"a worker's {name} is {value}, not {wanted}: the cells of one run come from one type of machine "
                    "with the same packages; choose such machines, or give --dtype or --threads"
                )


def share_for(asked: Asked, where: Executing) -> Share:
    """What each worker gets of the connected cluster. UserError where that is not to be had."""
    on_gpus = where.on_gpus(asked.device)
    share = share_out(
        machines(),
        workers=where.workers,
        threads=asked.threads,
        gpus=where.gpus_per_worker,
        on_gpus=on_gpus,
        usual=choose_threads(None),  # as in one process, so that the cells are the same ones
    )
    if share.gpus > 1 and asked.measure != "quality":
        raise UserError(
            f"--gpus-per-worker {share.gpus} spreads the model's layers, and a latency would count the moves between "
            "GPUs that no server makes: use --measure quality"
        )
    return share
