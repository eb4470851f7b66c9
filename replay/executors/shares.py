"""How the machines of a cluster are shared out among workers, and the sentence where they do not suffice."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from ...errors import UserError


@dataclass(frozen=True, slots=True)
class Machine:
    """One machine of a cluster: cores and GPUs, whoever uses them now."""

    cpus: int
    gpus: int


@dataclass(frozen=True, slots=True)
class Share:
    """`workers` workers; each has `threads` cores and `gpus` GPUs of one machine."""

    workers: int
    threads: int
    gpus: int


def cores() -> int:
    """Processor cores that this process may use."""
    usable = getattr(os, "sched_getaffinity", None)  # not on every system
    return len(usable(0)) if usable else os.cpu_count() or 1


def share_out(
    machines: Sequence[Machine],
    *,
    workers: int | None = None,
    threads: int | None = None,
    gpus: int | None = None,
    on_gpus: bool | None = None,
    usual: int | None = None,
) -> Share:
    """One worker per `gpus` GPUs, or on CPUs one per `threads` cores; `on_gpus` None takes GPUs where there are any.

    Without `threads` the cores of a machine are divided among its workers. On CPUs without `workers` either, a worker
    has the `usual` threads of a process, or all cores of the smallest machine. UserError where no machine has room for
    one, or not all have room.
    """
    having = any(machine.gpus for machine in machines)
    on_gpus = having if on_gpus is None else on_gpus
    if gpus is not None and not on_gpus:
        raise UserError("--gpus-per-worker: this replay runs on CPUs; leave it out, or give --device cuda")
    each = (gpus or 1) if on_gpus else 0
    threads = threads or _threads(machines, workers, each, usual)
    room = sum(_room(machine, threads, each) for machine in machines)
    if room < (workers or 1):
        count = f"{workers or 1} worker{'s' * ((workers or 1) > 1)}"
        need = f"{threads} core{'s' * (threads > 1)}" + (f" and {each} GPU{'s' * (each > 1)}" if each else "")
        have = "; ".join(f"{machine.cpus} cores, {machine.gpus} GPUs" for machine in machines) or "nothing"
        raise UserError(
            f"{count} of {need} each: the cluster has room for {room} (its machines: {have}); "
            "ask for fewer --workers, fewer --threads or fewer --gpus-per-worker"
        )
    return Share(workers or room, threads, each)


def _threads(machines: Sequence[Machine], workers: int | None, gpus: int, usual: int | None) -> int:
    """Cores per worker: as many as may be, if there is to be one for every GPU, or `workers` of them."""
    if gpus:
        spread = [machine.cpus // (machine.gpus // gpus) for machine in machines if machine.gpus >= gpus]
        return max(1, min(spread, default=1))
    most = max((machine.cpus for machine in machines), default=1)
    fitting = (t for t in range(most, 0, -1) if sum(machine.cpus // t for machine in machines) >= (workers or 1))
    least = min((machine.cpus for machine in machines if machine.cpus), default=1)
    return next(fitting, 1) if workers else min(usual or least, least)


def _room(machine: Machine, threads: int, gpus: int) -> int:
    by_cores = machine.cpus // threads
    return min(by_cores, machine.gpus // gpus) if gpus else by_cores
