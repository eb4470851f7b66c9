"""How much the errors of the recorded runs move when a constant of the cost model moves: what they rest on."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..cost import CostModel
from .checks import RUNS, load, place_for
from .rerun import measured, rerun
from .shared import Shared

STEP = 0.2
CONSTANTS = {
    "weight streaming": ("weights_s",),
    "matrix products": ("token_s", "head_s"),
    "reading the cache": ("row_s",),
    "prefill attention": ("pair_s",),
    "host time per step": ("host_s",),
    "host time per sequence": ("host_sequence_s",),
}


def sensitivity(shared: Shared) -> list[dict[str, Any]]:
    """Per run and constant: signed relative errors of the means, at the constant ± `STEP`.

    `{run, constant, factor, ttft, tpot, e2e}`; the constant None is the run as it is.
    """
    rows: list[dict[str, Any]] = []
    for run in RUNS:
        record = load(Shared(shared.folder), run)
        if record is None:
            continue
        place = place_for(run, record)
        cost, real = CostModel.of(place), measured(record)
        for constant, factor in [(None, 1.0), *((name, f) for name in CONSTANTS for f in (1 - STEP, 1 + STEP))]:
            names = CONSTANTS[constant] if constant else ()
            ours = rerun(record, place, replace(cost, **{name: getattr(cost, name) * factor for name in names}))
            errors = {
                metric: float(getattr(ours.latencies, metric).mean() / getattr(real, metric).mean() - 1)
                for metric in ("ttft", "tpot", "e2e")
            }
            rows.append({"run": run.name, "constant": constant, "factor": factor, **errors})
    return rows
