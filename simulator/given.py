"""`Given`: the names and flags of a command, or the arguments of a function, made into what a simulation needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from ..errors import UserError, unknown
from ..traces.store import Store
from .deployment import Deployment, fit_tp
from .failure import Failure
from .geometry import Geometry
from .gpu import Gpu
from .gpu_file import read_calibration
from .hardware import find_gpu
from .models import find_geometry
from .routers import find_router
from .sources import Fill, find_workload
from .workload import Workload

MOST_SEED = 10**15  # a replication's seed is a thousand times it, in the 64 bits of a stored row
FILL = [f.name for f in fields(Fill)]
KNOWN = ("price", "tp", "max_model_len", "router", "fail", "calibration")
REPLICA = [f.name for f in fields(Deployment) if f.name not in ("geometry", "gpu", "tp")]


@dataclass(frozen=True)
class Given:
    """The load, the model, the machine; `replica` fields of `Deployment`, `fleet` fields of `Scenario`.

    `tp` None: the smallest size that holds the longest session.
    """

    load: Workload
    geometry: Geometry
    gpu: Gpu
    tp: int | None = None
    replica: Mapping[str, Any] = field(default_factory=dict)
    fleet: Mapping[str, Any] = field(default_factory=dict)

    def deployment(self) -> Deployment:
        """One replica, the same for every policy."""
        return deploy(self.load, self.geometry, self.gpu, self.tp, **self.replica)


def given(
    workload: str,
    model: str,
    gpu: str,
    *,
    store: Store,
    seed: int = 0,
    price: float | None = None,
    tp: int | str | None = None,
    max_model_len: int | None = None,
    router: str = "affinity",
    fail: float | None = None,
    calibration: str | Path | None = None,
    **flags: Any,
) -> Given:
    """What was named. `flags` fill the workload (`Fill`) or describe a replica (`Deployment`); None is not given.

    `calibration`: a file of constants and their error for this GPU. UserError on names that do not exist, on values
    that cannot be, and on a flag that is neither.
    """
    if not 0 <= seed <= MOST_SEED:
        raise UserError(f"--seed {seed}: a whole number from 0 to {MOST_SEED:,}")
    flags = {name: value for name, value in flags.items() if value is not None}
    for name in flags:
        if name not in (*FILL, *REPLICA):
            raise unknown("option", name, [*FILL, *REPLICA, *KNOWN])
    if "host_gib" in flags and flags.get("retention") != "offload" and flags.get("preemption") != "swap":
        raise UserError("--host-gib: nothing is put there without --retention offload or --preemption swap")
    geometry, machine = windowed(find_geometry(model), max_model_len), find_gpu(gpu).priced(price)
    if calibration is not None:
        machine = read_calibration(calibration).applied(machine)
    load = find_workload(workload, Fill(**_of(flags, FILL)), store=store, seed=seed)
    fleet = {"router": find_router(router).name, "failure": None if fail is None else Failure(fail)}
    return Given(load, geometry, machine, tp_of(tp) if isinstance(tp, str) else tp, _of(flags, REPLICA), fleet)


def _of(flags: Mapping[str, Any], names: list[str]) -> dict[str, Any]:
    return {name: value for name, value in flags.items() if name in names}


def tp_of(text: str) -> int | None:
    """`auto` → None; UserError on anything that is not a number."""
    if text == "auto":
        return None
    if not text.isdecimal():
        raise UserError(f"--tp {text!r}: auto, or a number of GPUs")
    return int(text)


def windowed(geometry: Geometry, tokens: int | None) -> Geometry:
    """The model with sessions that end at `tokens`. UserError beyond its own window."""
    if tokens is None:
        return geometry
    if not 1 <= tokens <= geometry.max_positions:
        raise UserError(f"--max-model-len {tokens:,}: {geometry.name} takes 1 to {geometry.max_positions:,} tokens")
    return replace(geometry, max_positions=tokens)


def deploy(workload: Workload, geometry: Geometry, gpu: Gpu, tp: int | None, **fields: Any) -> Deployment:
    """One replica, the same for every policy: `tp`, or the smallest size that holds the longest full session."""
    deployment = Deployment(geometry, gpu, tp=tp or 1, **fields)
    if tp is not None:
        return fit_tp(deployment, 0, only=tp)
    longest = max(sum(part.tokens for part in session.segments) for session in workload.sessions)
    return fit_tp(deployment, min(longest, geometry.max_positions))
