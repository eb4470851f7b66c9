"""Reality checks: recorded runs simulated again with nothing fitted on them, then the closed-loop rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from ..cost import CostModel
from ..deployment import Deployment
from ..hardware import find_gpu
from ..models import find_geometry
from .closed_loop import closed_loop_checks
from .record import Record, read_record
from .rerun import Rerun, measured, place_of, rerun
from .shared import Comparison, Shared


@dataclass(frozen=True, slots=True)
class Run:
    """One recorded run: its files, what ran on what, and the errors that are aimed at."""

    files: str
    gpu: str
    model: str
    ttft: float
    rest: float
    preemptions: int | None

    @property
    def name(self) -> str:
        """As checks call it."""
        return f"vLLM on {self.gpu}, {self.model}, nothing fitted"


RUNS = (
    Run("llmservingsim/bench.RTX4090.Llama-3.1-8B", "rtx-4090", "llama-3.1-8b", 0.05, 0.03, 250),
    Run("llmservingsim/bench.RTXPRO6000.Llama-3.1-8B", "rtx-pro-6000", "llama-3.1-8b", 0.10, 0.10, None),
)
POOL = 0.10  # the memory left for the cache, where the run recorded it
CURVES = 0.10  # mean absolute error of a curve against its mean
PREEMPTIONS = 0.25


def load(shared: Shared, run: Run) -> Record | None:
    """The record, or None (then noted as skipped)."""
    paths = [shared.path(f"{run.files}.{part}", run.name) for part in ("requests.jsonl", "timeseries.csv", "meta.json")]
    if None in paths:
        shared.skipped[:] = dict.fromkeys(shared.skipped)
        return None
    return read_record(*[path for path in paths if path])


def place_for(run: Run, record: Record) -> Deployment:
    """The machine of the run, from the catalogues."""
    return place_of(record, Deployment(find_geometry(run.model), find_gpu(run.gpu)))


def reality_checks(shared: Shared) -> Iterable[Comparison]:
    """(name, value, truth, limit) of every run that is there."""
    for run in RUNS:
        record = load(shared, run)
        if record is not None:
            place = place_for(run, record)
            if record.blocks is not None:
                ours = replace(place, activation_gib=None).blocks()
                yield Comparison(f"{run.name}: blocks of cache, peak by rule", ours, record.blocks, POOL)
            yield from compared(run, record, rerun(record, place, CostModel.of(place)))
    yield from closed_loop_checks(shared)


def compared(run: Run, record: Record, ours: Rerun) -> Iterator[Comparison]:
    """Latencies by mean and p99, preemptions, and the three curves by their mean absolute error."""
    real = measured(record)
    for metric, limit in (("ttft", run.ttft), ("tpot", run.rest), ("e2e", run.rest)):
        mine, theirs = getattr(ours.latencies, metric), getattr(real, metric)
        yield Comparison(f"{run.name}: {metric.upper()} mean, s", float(mine.mean()), float(theirs.mean()), limit)
        slow, slowest = (float(np.percentile(values, 99)) for values in (mine, theirs))
        yield Comparison(f"{run.name}: {metric.upper()} p99, s", slow, slowest, limit)
    if run.preemptions:
        yield Comparison(f"{run.name}: preemptions", ours.preemptions, run.preemptions, PREEMPTIONS)
    curves = [("requests running", ours.running, record.running), ("requests waiting", ours.waiting, record.waiting)]
    if record.used is not None:
        curves.append(("share of the cache held", ours.held, record.used))
    for what, mine, theirs in curves:
        off = float(np.abs(mine - theirs).mean() / theirs.mean())
        name = f"{run.name}: {what}, second by second: mean absolute error against their mean"
        yield Comparison(name, off, 0.0, CURVES, "absolute")
