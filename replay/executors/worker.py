"""What a worker of a Ray cluster holds during a replay: the model, loaded once, and the store to write segments to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...traces import manifest
from ...traces.manifest import FileEntry
from ..asked import Asked, Settled, settle
from ..cells import Cells, Job
from ..machine import processor
from ..rows import Who
from .reach import Reach
from .shares import Share


class Replayer:
    """Made in the worker's process. UserError where it does not see the store, or the model does not load there.

    `asked` needs no trajectories but one: each comes with its job. `about` is what all workers of a run have in common.
    """

    def __init__(self, asked: Asked, share: Share, reach: Reach) -> None:
        self._store = reach.store()
        device = "cuda" if share.gpus else "cpu"
        self._model = asked.load(device=device, threads=share.threads, spread=share.gpus > 1)
        self._cells: Cells | None = None
        self.about: dict[str, Any] = {
            **manifest.versions(),
            "weights": self._model.fingerprint,
            "dtype": self._model.dtype_name,
            "threads": self._model.threads,
            "processor": processor(gpu=share.gpus > 0),
        }

    def settle(self, asked: Asked) -> tuple[Settled, Who]:
        """What follows for all workers: asked of one of them."""
        settled = settle(asked, self._model)
        self._cells = Cells(asked, settled, self._model)
        return settled, self._cells.who

    def segment(self, job: Job, run_id: str, shared: Sequence[Any]) -> list[FileEntry]:
        """Compute a job's rows and write them; returns the files, for the driver to list.

        `shared` holds the reference to (asked, settled), fetched once.
        """
        if self._cells is None:
            import ray

            asked, settled = ray.get(shared[0])
            self._cells = Cells(asked, settled, self._model)
        return self._store.write_segment(run_id, self._cells.rows(job), key=job.key)
