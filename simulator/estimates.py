"""Means of a simulated series with their own intervals: batch means, corrected by controls whose means are known.

A control is something drawn beside the series (a service time, a gap between arrivals) whose true mean is known. What
the draws happened to be too large or too small by explains part of the series' error; regressing the batch means on
the controls' batch means takes that part out (Lavenberg and Welch 1981). A control can hide a wrong law of its own
draws, so the draws themselves are checked too (`queues.arrivals`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

BATCHES = 30
Series = Sequence[float] | np.ndarray


@dataclass(frozen=True, slots=True)
class Estimate:
    """Batch means (`BATCHES`,) of a series, those of its controls less their known means (`BATCHES`, k), the truth to
    be met, and the widest half-width, relative to it, that is still a test.
    """

    name: str
    means: np.ndarray
    controls: np.ndarray
    truth: float
    widest: float

    def interval(self, error: float) -> tuple[float, float]:
        """(mean, half-width) of the interval that misses the true mean with probability `error`.

        Student's t with one degree of freedom less per control; the mean is the regression's value at zero.
        """
        from scipy.special import stdtrit

        design = np.column_stack([np.ones(len(self.means)), self.controls])
        fitted, *_ = np.linalg.lstsq(design, self.means, rcond=None)
        freedom = len(self.means) - design.shape[1]
        residual = self.means - design @ fitted
        spread = float(residual @ residual) / freedom * float(np.linalg.inv(design.T @ design)[0, 0])
        return float(fitted[0]), float(stdtrit(freedom, 1 - error / 2)) * math.sqrt(spread)


def estimate(
    name: str, series: Series, truth: float, *controls: tuple[Series, float], widest: float = math.inf
) -> Estimate:
    """Cut the series, and its controls with it, into batches. A control is (series as long, true mean)."""
    means = batch_means(series)
    beside = [batch_means(values) - mean for values, mean in controls]
    return Estimate(name, means, np.array(beside).T.reshape(len(means), len(beside)), truth, widest)


def batch_means(series: Series) -> np.ndarray:
    """Means of `BATCHES` runs of equal length; what does not fill a run is left out at the end."""
    values = np.asarray(series, dtype=float)
    size = len(values) // BATCHES
    if not size:
        raise ValueError(f"{len(values)} values are not enough for {BATCHES} batches")
    return values[: size * BATCHES].reshape(BATCHES, size).mean(axis=1)
