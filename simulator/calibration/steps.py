"""Timed engine steps: the constants of the cost model from what was in each step and how long it took.

Columns, per step: `decode_sequences`, `decode_context_tokens` (over all of them), `prefill_sequences`,
`prefill_tokens`, `seconds`; `prefill_context_tokens` (mean rows before a chunk) and `prefill_ending` (chunks that end
their prompt) when there are any.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from ..cost import CostModel
from ..deployment import Deployment
from ..gpu import Gpu
from .fit import Bounds, Fitted, fit, held_out
from .tables import Table

BOUNDS: Bounds = {
    "host_step_s": (0.33e-3, 0.0, 20e-3),
    "host_sequence_s": (28e-6, 0.0, 1e-3),
    "matmul": (0.7, 0.05, 1.0),
    "streaming": (0.8, 0.05, 1.0),
    "decode_attention": (0.75, 0.05, 1.0),
    "prefill_attention": (0.5, 0.05, 1.0),
}


def fit_steps(table: Table, deployment: Deployment, *, bounds: Bounds = BOUNDS, swapped: bool = False) -> Fitted:
    """Host times and efficiencies from half of the steps, chosen by their composition; seconds per step.

    Steps beyond the roofline at full efficiency (no time, or less than the chip can do) must be left out before:
    `possible_steps` says which.
    """
    steps = composition(table)
    keys = [" ".join(f"{value:g}" for value in step) for step in steps]
    apart = held_out(keys)
    apart = ~apart if swapped else apart

    def predict(values: Mapping[str, float]) -> np.ndarray:
        cost = CostModel.of(replace(deployment, gpu=tuned(deployment.gpu, deployment.dtype, values)))
        return step_seconds(cost, steps)

    return fit(predict, table.columns["seconds"].astype(float), bounds, apart)


def tuned(gpu: Gpu, dtype: str, values: Mapping[str, float]) -> Gpu:
    """`gpu` with the fitted figures; `matmul` and `streaming` are those of `dtype`."""
    shared = {
        name: dict(getattr(gpu, name)) | {dtype: values[name]} for name in ("matmul", "streaming") if name in values
    }
    plain = {name: value for name, value in values.items() if name not in shared}
    return replace(gpu, **shared, **plain)


def possible_steps(table: Table, deployment: Deployment) -> np.ndarray:
    """Mask of the steps that take at least the roofline at full efficiency, without any floor or host time."""
    whole = dict.fromkeys(("matmul", "streaming", "decode_attention", "prefill_attention"), 1.0)
    gpu = tuned(deployment.gpu, deployment.dtype, whole | {"host_step_s": 0.0, "host_sequence_s": 0.0})
    ideal = CostModel.of(replace(deployment, gpu=replace(gpu, attention_floor_s=0.0)))
    seconds = table.columns["seconds"].astype(float)
    bound = np.array([_least_s(ideal, *step) for step in composition(table)])
    return np.isfinite(seconds) & (seconds > 0) & (seconds >= bound)


def composition(table: Table) -> list[tuple[int, float, int, int, float, int]]:
    """Per step the arguments of `CostModel.step_s`."""
    c = table.columns
    count = len(table)
    before = c.get("prefill_context_tokens", np.zeros(count))
    ending = c.get("prefill_ending", c["prefill_sequences"])
    found = []
    for i in range(count):
        prefills, tokens = int(c["prefill_sequences"][i]), int(c["prefill_tokens"][i])
        pairs = tokens * (float(before[i]) + tokens / (2.0 * max(1, prefills)))
        decodes, rows = int(c["decode_sequences"][i]), float(c["decode_context_tokens"][i])
        found.append((decodes, rows, prefills, tokens, pairs, int(ending[i])))
    return found


def step_seconds(cost: CostModel, steps: list[tuple[int, float, int, int, float, int]]) -> np.ndarray:
    """Seconds of each step."""
    return np.array([cost.step_s(*step) for step in steps])


def _least_s(ideal: CostModel, decodes: int, rows: float, _: int, tokens: int, pairs: float, ending: int) -> float:
    """Dense work beside attention at best: whichever is longer, as a chip may overlap them."""
    dense = (decodes + tokens) * ideal.token_s + (decodes + ending) * ideal.head_s
    return max(
        dense, ideal.streaming_s(decodes + tokens), ideal.decode_attention_s(decodes, rows) + pairs * ideal.pair_s
    )
