"""GiB left for the cache on an H100, against vLLM's own memory reports."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from .deployment import Deployment
from .hardware import find_gpu
from .models import find_geometry

Comparison = tuple[str, float, float, float]
ROUNDING_GIB = 0.12  # reports round each part, and count buffers that are no weights
RULE_GIB = 0.5  # what the rule for activation peaks may be wrong by


@dataclass(frozen=True, slots=True)
class Report:
    """One GPU's share on an H100-80: `activation` peak and what is `left` for the cache, in GiB."""

    model: str
    activation: float
    left: float
    tp: int = 1
    dtype: str = "bf16"
    utilisation: float = 0.9
    sequences: int = 1024

    @property
    def name(self) -> str:
        """As checks call it."""
        return f"vLLM's memory report, {self.model} {self.dtype} TP {self.tp}, GiB for the cache"

    def place(self) -> Deployment:
        """The machine. Its model has no name: the rule for activation peaks knows some of these reports by it."""
        shape = replace(find_geometry(self.model), name="")
        return Deployment(
            shape,
            find_gpu("h100"),
            tp=self.tp,
            dtype=self.dtype,
            utilisation=self.utilisation,
            max_sequences=self.sequences,
        )


REPORTS = (
    Report("llama-3.1-8b", 4.76, 51.38),
    Report("qwen3-0.6b", 5.56, 64.45),
    Report("qwen3-32b", 5.64, 4.45),
    Report("qwen3-32b", 5.64, 34.49, tp=2),
    Report("llama-3.1-70b", 4.84, 32.0, tp=2, dtype="fp8"),
    Report("gpt-oss-20b", 7.38, 50.28),
    Report("gpt-oss-120b", 7.38, 3.33, utilisation=0.95),  # its figures add up at 0.95 only
    Report("mistral-small-24b", 2.12, 28.20, utilisation=0.95, sequences=256),
)


def measured_peaks() -> Iterable[Comparison]:
    """(name, value, truth, limit) with the activation peak of the report: plain accounting."""
    for report in REPORTS:
        place = replace(report.place(), activation_gib=report.activation)
        yield f"{report.name}, its activation peak", place.cache_gib(), report.left, ROUNDING_GIB


def ruled_peaks() -> Iterable[Comparison]:
    """The same with the activation peak that a deployment takes by rule."""
    for report in REPORTS:
        yield f"{report.name}, peak by rule", report.place().cache_gib(), report.left, RULE_GIB
