"""`Executing`: which executor was asked for, checked before anything is loaded. No torch, no Ray until it is used."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from ...errors import UserError, unknown

EXECUTORS = ("local", "ray")
_ON_GPUS = {"auto": None, "cpu": False, "cuda": True}


@dataclass(frozen=True, slots=True)
class Executing:
    """`local`: in this process. `ray`: by `workers` processes (None: as many as there is room for) of the cluster at
    `ray_address` (None: RAY_ADDRESS, else a cluster of this machine alone, for as long as the work lasts), each with
    `gpus_per_worker` GPUs (None: one, where the cluster has any). UserError on what cannot be.
    """

    executor: str = "local"
    workers: int | None = None
    gpus_per_worker: int | None = None
    ray_address: str | None = None

    def __post_init__(self) -> None:
        if self.executor not in EXECUTORS:
            raise unknown("executor", self.executor, EXECUTORS, "--executor")
        given = {"--workers": self.workers, "--gpus-per-worker": self.gpus_per_worker}
        if wrong := [f"{flag} {value}" for flag, value in given.items() if value is not None and value < 1]:
            raise UserError(f"{wrong[0]}: give 1 or more")
        said = given | {"--ray-address": self.ray_address}
        if self.executor == "local" and (extra := [flag for flag, value in said.items() if value is not None]):
            raise UserError(f"{', '.join(extra)}: only for --executor ray")

    def on_gpus(self, device: str) -> bool | None:
        """Whether `--device` wants GPUs; None leaves it to what the cluster has. UserError if it names one of them."""
        if self.executor == "ray" and device not in _ON_GPUS:
            raise UserError(f"--device {device}: Ray gives every worker its GPUs; give {', '.join(_ON_GPUS)}")
        return _ON_GPUS.get(device)

    @contextmanager
    def session(self) -> Iterator[None]:
        """Whatever is executed inside shares one cluster; where one is open already, it is used and left open."""
        if self.executor == "local":
            yield
            return
        from .cluster import connected

        with connected(self.ray_address):
            yield
