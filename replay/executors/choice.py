"""`Executing`: which executor was asked for, checked before anything is loaded. No torch, no Ray until it is used."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from ...errors import UserError, unknown

EXECUTORS = ("local", "ray")


@dataclass(frozen=True, slots=True)
class Executing:
    """`local`: in this process. `ray`: by `workers` processes (None: as many as there is room for) of the cluster at
    `address` (None: RAY_ADDRESS, else a cluster of this machine alone, for as long as the work lasts), each with
    `gpus` GPUs (None: one, where the cluster has any). UserError on what cannot be.
    """

    executor: str = "local"
    workers: int | None = None
    gpus: int | None = None
    address: str | None = None

    def __post_init__(self) -> None:
        if self.executor not in EXECUTORS:
            raise unknown("executor", self.executor, EXECUTORS, "--executor")
        given = {"--workers": self.workers, "--gpus-per-worker": self.gpus}
        if wrong := [f"{flag} {value}" for flag, value in given.items() if value is not None and value < 1]:
            raise UserError(f"{wrong[0]}: give 1 or more")
        said = given | {"--ray-address": self.address}
        if self.executor == "local" and (extra := [flag for flag, value in said.items() if value is not None]):
            raise UserError(f"{', '.join(extra)}: only for --executor ray")

    @contextmanager
    def session(self) -> Iterator[None]:
        """Whatever is executed inside shares one cluster; where one is open already, it is used and left open."""
        if self.executor == "local":
            yield
            return
        from .cluster import connected

        with connected(self.address):
            yield
