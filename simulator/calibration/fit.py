"""Robust fits in logarithms, on one half of the rows; the error on the other half is what is believed."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

SOFT = 0.1  # relative error beyond which a row counts linearly, no longer squared

Predict = Callable[[Mapping[str, float]], np.ndarray]
Bounds = Mapping[str, tuple[float, float, float]]  # name → (start, lowest, highest)


@dataclass(frozen=True)
class Fitted:
    """Constants found on `n_fit` rows; mean absolute relative errors on those and on the `n_held_out` others.

    `predicted` are seconds of all rows, fitted and held out, in the order given; `held_out` says which is which.
    """

    values: dict[str, float]
    fitted_error: float
    held_out_error: float
    n_fit: int
    n_held_out: int
    predicted: np.ndarray
    measured: np.ndarray
    held_out: np.ndarray

    @property
    def bias(self) -> float:
        """Median relative error of the held-out rows, signed: positive where the model is too slow."""
        return float(np.median((self.predicted / self.measured - 1)[self.held_out]))


def held_out(keys: Sequence[str]) -> np.ndarray:
    """Which rows are held out: those whose configuration, as text, has an odd SHA-256. Fixed, whatever the order."""
    return np.array([hashlib.sha256(key.encode()).digest()[-1] & 1 == 1 for key in keys], dtype=bool)


def fit(predict: Predict, measured: np.ndarray, bounds: Bounds, apart: np.ndarray) -> Fitted:
    """Least squares of log(predicted/measured) over the rows that are not `apart`, outliers counted linearly.

    `predict` gives the seconds of all rows. With no rows held out, the held-out error is NaN.
    """
    from scipy.optimize import least_squares

    names = list(bounds)
    start, low, high = (np.array([bounds[name][i] for name in names]) for i in range(3))
    scale = np.maximum(np.abs(start), 1e-9)

    def residuals(scaled: np.ndarray) -> np.ndarray:
        values = dict(zip(names, (scaled * scale).tolist(), strict=True))
        return np.log(predict(values)[~apart] / measured[~apart])

    found = least_squares(residuals, start / scale, bounds=(low / scale, high / scale), loss="soft_l1", f_scale=SOFT)
    values = dict(zip(names, (found.x * scale).tolist(), strict=True))
    predicted = predict(values)
    error = np.abs(predicted / measured - 1)
    return Fitted(
        values,
        fitted_error=_mean(error[~apart]),
        held_out_error=_mean(error[apart]),
        n_fit=int((~apart).sum()),
        n_held_out=int(apart.sum()),
        predicted=predicted,
        measured=measured,
        held_out=apart,
    )


def _mean(values: np.ndarray) -> float:
    return float(values.mean()) if len(values) else float("nan")
