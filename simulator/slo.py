"""`Slo`: one promise, such as `ttft_p95=2`: a percentile of a latency stays within a limit in seconds."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..errors import UserError

METRICS = ("ttft", "tpot", "e2e")
PERCENTILES = (50, 90, 95, 99)
LEAST_S = 1e-12  # no latency is taken as shorter: logarithms
_SPELLING = re.compile(r"^\s*([a-z0-9]+)_p(\d+)\s*=\s*([0-9.eE+-]+)\s*$")


@dataclass(frozen=True, slots=True)
class Slo:
    """`metric` ttft, tpot or e2e; `percentile` of the turns; `limit_s` in seconds."""

    metric: str
    percentile: int
    limit_s: float

    @property
    def key(self) -> str:
        """`ttft_p95`."""
        return f"{self.metric}_p{self.percentile}"

    def words(self) -> str:
        """`p95 TTFT ≤ 2 s`, in milliseconds below one."""
        limit = f"{self.limit_s * 1000:g} ms" if self.limit_s < 1 else f"{self.limit_s:g} s"
        return f"p{self.percentile} {self.metric.upper()} ≤ {limit}"


def parse_slo(texts: str | Sequence[str] | Mapping[str, float]) -> tuple[Slo, ...]:
    """Promises from texts like `ttft_p95=2`, one or several, or a mapping: one at least, none twice.

    UserError naming what is known.
    """
    pairs = [f"{key}={value}" for key, value in texts.items()] if isinstance(texts, Mapping) else several(texts)
    out: list[Slo] = []
    known = f"metric_pQ=SECONDS, metric one of {', '.join(METRICS)}, Q one of {', '.join(map(str, PERCENTILES))}"
    for text in pairs:
        match = _SPELLING.match(text)
        try:
            limit = float(match.group(3)) if match else 0.0
        except ValueError:
            limit = 0.0
        known_name = match and match.group(1) in METRICS and int(match.group(2)) in PERCENTILES
        if not match or not known_name or not 0 < limit < float("inf"):
            raise UserError(f"--slo {text!r}: write {known}, for instance ttft_p95=2")
        slo = Slo(match.group(1), int(match.group(2)), limit)
        if any(slo.key == other.key for other in out):
            raise UserError(f"--slo {slo.key} is given twice")
        out.append(slo)
    if not out:
        raise UserError("--slo: give one at least, for instance --slo ttft_p95=2 --slo tpot_p95=0.05")
    return tuple(out)


def several(texts: str | Sequence[str]) -> list[str]:
    """One text or several, as a list: a text is a sequence too, of letters."""
    return [texts] if isinstance(texts, str) else list(texts)


def words(slos: Iterable[Slo]) -> str:
    """All promises in one phrase."""
    return " and ".join(slo.words() for slo in slos)


def geometric_mean(values: Sequence[float]) -> float:
    """The mean of one figure over replications, as everywhere in an answer; infinite when one of them is."""
    return float(np.exp(np.mean(np.log(np.maximum(values, LEAST_S)))))


def needed(q: int) -> int:
    """Values that a q-th percentile needs: ten beyond it, so 1,000 for a p99 (of 100 it would be the maximum)."""
    return -(-1000 // (100 - q))


def enough(count: int, q: int) -> bool:
    """Whether `count` values can tell a q-th percentile."""
    return count >= needed(q)


def percentile(values: np.ndarray, q: int) -> float | None:
    """The q-th percentile, or None from too few values (`needed`)."""
    if not enough(len(values), q):
        return None
    return float(np.percentile(values, q, method="higher"))
