"""GiB left for the cache on an H100, against vLLM's own memory reports."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from .activation import activation_peak
from .deployment import Deployment
from .hardware import find_gpu
from .models import find_geometry

Comparison = tuple[str, float, float, float]
ROUNDING_GIB = 0.12  # reports round each part, and count buffers that are no weights
RULE_GIB = 0.5  # what the rule for activation peaks may be wrong by
TOKEN_BUDGET = 8192


@dataclass(frozen=True, slots=True)
class Report:
    """One GPU's share on an H100-80. `activation` and `left` in GiB; `default` is what the peak that is assumed when
    nothing is known of a model, 5 GiB, may be wrong by.
    """

    model: str
    activation: float
    left: float
    tp: int = 1
    dtype: str = "bf16"
    utilisation: float = 0.9
    sequences: int = 1024
    default: float = 0.75

    @property
    def name(self) -> str:
        """As checks call it."""
        return f"vLLM's memory report, {self.model} {self.dtype} TP {self.tp}, GiB for the cache"

    def place(self) -> Deployment:
        """The machine, with the default activation peak."""
        return Deployment(
            find_geometry(self.model), find_gpu("h100"), tp=self.tp, dtype=self.dtype, utilisation=self.utilisation
        )


REPORTS = (
    Report("llama-3.1-8b", 4.76, 51.38),
    Report("qwen3-0.6b", 5.56, 64.45),
    Report("qwen3-32b", 5.64, 4.45),
    Report("qwen3-32b", 5.64, 34.49, tp=2),
    Report("llama-3.1-70b", 4.84, 32.0, tp=2, dtype="fp8"),
    Report("gpt-oss-20b", 7.38, 50.28, default=3.0),
    Report("gpt-oss-120b", 7.38, 3.33, utilisation=0.95, default=3.0),  # its figures add up at 0.95 only
    Report("mistral-small-24b", 2.12, 28.20, utilisation=0.95, sequences=256, default=3.0),
)


def measured_peaks() -> Iterable[Comparison]:
    """(name, value, truth, limit) with the activation peak of the report: plain accounting."""
    for report in REPORTS:
        place = replace(report.place(), activation_gib=report.activation)
        yield f"{report.name}, its activation peak", place.cache_gib(), report.left, ROUNDING_GIB


def assumed_peaks() -> Iterable[Comparison]:
    """The same with a peak that is not of the report: by the rule, and by default."""
    for report in REPORTS:
        place = report.place()
        unnamed = replace(place.geometry, name="")  # the rule knows some models' reports by name
        ruled = replace(place, activation_gib=activation_peak(unnamed, report.sequences, TOKEN_BUDGET, report.tp).gib)
        yield f"{report.name}, peak by rule", ruled.cache_gib(), report.left, RULE_GIB
        yield f"{report.name}, default peak", place.cache_gib(), report.left, report.default
