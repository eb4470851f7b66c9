"""The same formula on all other closed-loop rows that the catalogues know: what to expect where nothing was fitted."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np

from ...errors import UserError
from ..calibration.ends import EndRow, end_rows, tpot_s
from ..calibration.tables import read_table
from ..cost import CostModel
from ..deployment import Deployment
from ..hardware import find_gpu
from ..models import find_geometry
from .closed_loop import FILE
from .shared import Shared

FEWEST = 8  # rows below which a group says nothing


def elsewhere(shared: Shared) -> list[dict[str, Any]]:
    """Per model, GPU, dtype and engine: `rows`, mean absolute relative error of the time per output token, and its
    10th, 50th and 90th percentile, signed. Rows of models or GPUs that no catalogue has are left out.
    """
    path = Shared(shared.folder).path(FILE, "")
    if path is None:
        return []
    groups: dict[tuple[str, ...], list[float]] = defaultdict(list)
    for row in end_rows(read_table(path)):
        try:
            place = placed(row)
        except UserError:  # not in the catalogues, or a tensor-parallel size that nothing was measured at
            continue
        error = tpot_s(CostModel.of(place), row, place.token_budget) / row.tpot_s - 1
        groups[place.geometry.name, row.gpu, row.dtype, row.engine.split()[0]].append(error)
    rows = []
    for (model, gpu, dtype, engine), errors in sorted(groups.items()):
        if len(errors) >= FEWEST:
            low, middle, high = (float(np.percentile(errors, q)) for q in (10, 50, 90))
            named = {"model": model, "gpu": gpu, "dtype": dtype, "engine": engine, "rows": len(errors)}
            spread = {"error": float(np.abs(errors).mean()), "p10": low, "p50": middle, "p90": high}
            rows.append(named | spread)
    return rows


def placed(row: EndRow) -> Deployment:
    """The machine of a row. UserError when a catalogue does not have it."""
    place = Deployment(find_geometry(row.model), find_gpu(row.gpu), tp=row.tp, dtype=row.dtype)
    place.gpu.all_reduce(row.tp)
    return place
