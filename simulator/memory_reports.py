"""GiB left for the cache on an H100, against vLLM's own memory reports."""

from __future__ import annotations

from collections.abc import Iterable

from .deployment import Deployment
from .hardware import find_gpu
from .models import find_geometry

Comparison = tuple[str, float, float, float]
ROUNDING_GIB = 0.12  # reports round each part, and count buffers that are no weights
ASSUMED_GIB = 0.75  # what the activation peak, 5 GiB for every model, may be wrong by

# H100-80, one GPU's share: model, tensor-parallel size, weights, utilisation, activation peak GiB, cache GiB.
REPORTS: tuple[tuple[str, int, str, float, float, float], ...] = (
    ("llama-3.1-8b", 1, "bf16", 0.9, 4.76, 51.38),
    ("qwen3-0.6b", 1, "bf16", 0.9, 5.56, 64.45),
    ("qwen3-32b", 1, "bf16", 0.9, 5.64, 4.45),
    ("qwen3-32b", 2, "bf16", 0.9, 5.64, 34.49),
    ("llama-3.1-70b", 2, "fp8", 0.9, 4.84, 32.0),
)


def measured_peaks() -> Iterable[Comparison]:
    """(name, value, truth, limit) with the activation peak of the report: plain accounting."""
    gpu = find_gpu("h100")
    for model, tp, dtype, utilisation, activation, left in REPORTS:
        place = Deployment(
            find_geometry(model), gpu, tp=tp, dtype=dtype, utilisation=utilisation, activation_gib=activation
        )
        yield f"{_name(model, tp, dtype)}, its activation peak", place.cache_gib(), left, ROUNDING_GIB


def assumed_peaks() -> Iterable[Comparison]:
    """The same with the activation peak that is assumed where none was measured."""
    gpu = find_gpu("h100")
    for model, tp, dtype, utilisation, _, left in REPORTS:
        place = Deployment(find_geometry(model), gpu, tp=tp, dtype=dtype, utilisation=utilisation)
        yield f"{_name(model, tp, dtype)}, ours", place.cache_gib(), left, ASSUMED_GIB


def _name(model: str, tp: int, dtype: str) -> str:
    return f"vLLM's memory report, {model} {dtype} TP {tp}, GiB for the cache"
