"""Servers in a closed loop at a fixed concurrency: what they say of host time, and how wrong the model is.

The time per output token is that of a batch of N sequences on their mean context, and of the N − 1 other prompts that
are prefilled while one sequence decodes: N − 1 of them in osl − 1 steps, each adding what a mixed step takes more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ...errors import InputError
from ..cost import CostModel
from ..deployment import Deployment
from ..geometry import Geometry
from ..gpu import Gpu
from .fit import Bounds, Fitted, fit, held_out
from .tables import Table

SYSTEMS = {"a100_sxm": "a100-80", "h100_sxm": "h100", "h200_sxm": "h200", "b200_sxm": "b200", "l40s": "l40s"}
BOUNDS: Bounds = {
    "host_step_s": (0.33e-3, 0.0, 20e-3),
    "host_sequence_s": (28e-6, 0.0, 1e-3),
    "efficiency": (1.0, 0.3, 1.5),
}
PRECISIONS = {
    "None": "bf16",
    "nan": "bf16",
    "": "bf16",
    "bf16": "bf16",
    "fp8": "fp8",
    "fp4": "fp4",
}  # unstated: as published
FEWEST = 8  # rows below which a half says nothing


@dataclass(frozen=True, slots=True)
class EndRow:
    """One measurement: `concurrency` requests of `prompt` tokens in and `output` out, always in flight."""

    model: str
    gpu: str
    engine: str
    dtype: str
    tp: int
    concurrency: int
    prompt: int
    output: int
    tpot_s: float
    ttft_s: float

    @property
    def key(self) -> str:
        """The configuration as text; repeated measurements of one are on the same side of the split."""
        shape = f"tp{self.tp} c{self.concurrency} {self.prompt}/{self.output}"
        return f"{self.model} {self.gpu} {self.engine} {self.dtype} {shape}"

    @property
    def place(self) -> tuple[str, str, str, int]:
        """What makes a deployment: rows that agree in it share one."""
        return self.model, self.gpu, self.dtype, self.tp


def end_rows(table: Table) -> list[EndRow]:
    """The rows of one replica by tensor parallelism alone; others (pipelines, experts apart, disaggregated) are out."""
    c = table.columns
    parallel = np.array([str(v) in ("None", "nan", "1", "1.0") for v in c["attention_dp_size"]])
    plain = (c["mode"] == "agg") & (c["pp_size"] == 1) & parallel
    found = []
    for i in np.flatnonzero(plain & (c["silicon_tpot_ms"] > 0)):
        dtype = PRECISIONS.get(str(c["precision"][i]))
        if dtype is None:
            continue
        row = EndRow(
            str(c["model_path"][i]),
            SYSTEMS.get(str(c["system"][i]), str(c["system"][i])),
            f"{c['backend'][i]} {c['backend_version'][i]}",
            dtype,
            int(c["tp_size"][i]),
            int(c["batch_size"][i]),
            int(c["isl"][i]),
            int(c["osl"][i]),
            float(c["silicon_tpot_ms"][i]) * 1e-3,
            float(c["silicon_ttft_ms"][i]) * 1e-3,
        )
        found.append(row)
    return found


def as_served(row: EndRow, shape: Geometry) -> EndRow | None:
    """The row with a dtype that the cost model knows; None when it has none.

    Four bits are known only where the checkpoint itself has such experts and leaves the rest in bf16.
    """
    if row.dtype != "fp4":
        return row
    return replace(row, dtype="bf16") if shape.expert_bytes is not None else None


def fit_ends(
    rows: Sequence[EndRow],
    deployment_of: Callable[[EndRow], Deployment],
    *,
    bounds: Bounds = BOUNDS,
    swapped: bool = False,
) -> Fitted:
    """At most three constants found on half of the rows: host time per step, per sequence, one efficiency.

    Which half is fixed by each row's configuration; `swapped` fits on the other one. Times are seconds per output
    token. InputError when a half is too small to say anything.
    """
    apart = held_out([row.key for row in rows])
    apart = ~apart if swapped else apart
    if min(apart.sum(), (~apart).sum()) < FEWEST:
        raise InputError(f"{len(rows)} rows of servers: too few to fit on a half and look at the other ({FEWEST} each)")
    places = {row.place: deployment_of(row) for row in rows}
    measured = np.array([row.tpot_s for row in rows])

    def predict(values: Mapping[str, float]) -> np.ndarray:
        costs = {of: CostModel.of(replace(place, gpu=tuned(place.gpu, values))) for of, place in places.items()}
        return np.array([tpot_s(costs[row.place], row, places[row.place].token_budget) for row in rows])

    return fit(predict, measured, bounds, apart)


def possible_ends(rows: Sequence[EndRow], deployment_of: Callable[[EndRow], Deployment]) -> np.ndarray:
    """Mask of the rows that are no faster than reading, at full bandwidth, the weights and prompts of a step."""
    out = []
    for row in rows:
        place = deployment_of(row)
        weights = place.geometry.streamed_bytes(place.dtype, row.concurrency) / place.tp
        least_s = (weights + row.concurrency * row.prompt * place.row_bytes()) / place.gpu.bandwidth
        out.append(np.isfinite(row.tpot_s) and row.tpot_s >= least_s)
    return np.array(out, dtype=bool)


def tuned(gpu: Gpu, values: Mapping[str, float]) -> Gpu:
    """`gpu` with fitted host times, and all its efficiencies multiplied by one factor (none passes 1)."""
    factor = values.get("efficiency", 1.0)

    def shared(table: Mapping[str, float]) -> dict[str, float]:
        return {dtype: min(1.0, share * factor) for dtype, share in table.items()}

    return replace(
        gpu,
        matmul=shared(gpu.matmul),
        streaming=shared(gpu.streaming),
        decode_attention=min(1.0, gpu.decode_attention * factor),
        prefill_attention=min(1.0, gpu.prefill_attention * factor),
        host_step_s=values.get("host_step_s", gpu.host_step_s),
        host_sequence_s=values.get("host_sequence_s", gpu.host_sequence_s),
    )


def tpot_s(cost: CostModel, row: EndRow, token_budget: int) -> float:
    """Seconds per output token of a closed loop, in the steady state."""
    n, prompt, output = row.concurrency, row.prompt, row.output
    rows = n * (prompt + output / 2)
    decode = cost.fixed_s(n) + cost.decode_attention_s(n, rows)
    if n == 1 or output < 2:
        return decode
    others, rows = n - 1, rows * (n - 1) / n
    plain = cost.fixed_s(others) + cost.decode_attention_s(others, rows)
    chunk, more = max(1, token_budget - others), 0.0
    for start in range(0, prompt, chunk):
        size = min(chunk, prompt - start)
        last = start + size >= prompt
        more += cost.step_s(others, rows, 1, size, size * (start + size / 2), int(last)) - plain
    return decode + others * more / (output - 1)
