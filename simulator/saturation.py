"""Is a queue growing? Where it is, latencies say how long one looked, not how good the fleet is."""

from __future__ import annotations

import numpy as np

POINTS = 21  # instants at which the queue is looked at
GROWING = 0.02  # of the turns that arrive, left in the queue: beyond it a rise is called growth
RISING = 0.5  # Kendall's tau beyond which a queue rises rather than wanders: p < 0.001 for 21 independent looks
CROWDED = 0.1  # share of a closed workload's agents that wait for a first token, in the mean
BUSY = 0.9  # of the time, beyond which waiting is for want of seconds


def queue_at(times: np.ndarray, arrivals: np.ndarray, firsts: np.ndarray) -> np.ndarray:
    """Turns that have arrived and have no first token yet, at each of `times`. `firsts` is infinite without one."""
    came = np.searchsorted(np.sort(arrivals), times, side="right")
    served = np.searchsorted(np.sort(firsts), times, side="right")
    return came - served


def kendall_tau(values: np.ndarray) -> float:
    """Kendall's tau of a series against time, in [−1, 1]; ties count nothing."""
    if len(values) < 2:
        return 0.0
    i, j = np.triu_indices(len(values), k=1)
    return float(np.sign(values[j] - values[i]).mean())


def growth(arrivals: np.ndarray, firsts: np.ndarray, begin: float, end: float) -> float:
    """By how much the queue grew from `begin` to `end`, as a share of the turns that arrived; 0 when it wandered.

    The rise is taken between the means of the first and the last third, and scaled from between their middles.
    With a load of x times the capacity it tends to 1 − 1/x.
    """
    came = int(((arrivals >= begin) & (arrivals <= end)).sum())
    if not came:
        return 0.0
    queue = queue_at(np.linspace(begin, end, POINTS), arrivals, firsts).astype(float)
    if kendall_tau(queue) < RISING:
        return 0.0
    third = POINTS // 3
    rise = float(queue[-third:].mean() - queue[:third].mean()) * (POINTS - 1) / (POINTS - third)
    return max(0.0, rise / came)


def crowding(arrivals: np.ndarray, firsts: np.ndarray, begin: float, end: float) -> float:
    """Turns that wait for a first token, in the mean over `begin` to `end`."""
    waited = np.minimum(firsts, end) - np.maximum(arrivals, begin)
    return float(np.sort(np.maximum(waited, 0.0)).sum() / max(1e-12, end - begin))  # the same sum in any order
