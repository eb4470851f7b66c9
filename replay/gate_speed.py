"""Latency over the nights: reported always, blocking only after three slow nights in a row. No torch.

A night is slow where a figure lies above the median of the machine's earlier good nights by more than their own
spread: three robust standard deviations (1.4826 · median absolute deviation), and 5 % at least. Fewer than five good
nights say nothing about the machine's noise, so nothing is judged by them.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .gate_nouns import DRIFT, OK, REGRESSION, Finding, Pair

FIGURES = {"ttft_s": "time to first token", "tpot_s": "time per token"}
ENOUGH_NIGHTS = 5
MOST_NIGHTS = 20
BAD_NIGHTS = 3
LEAST_NOISE = 0.05
_MAD_TO_SD = 1.4826


@dataclass(frozen=True, slots=True)
class Past:
    """One figure of one earlier night, and whether that night was slow."""

    seconds: float
    slow: bool


Speeds = Mapping[Pair, Mapping[str, float | None]]
History = Mapping[tuple[str, str, str], Sequence[Past]]


def speed_findings(now: Speeds, before: Speeds, history: History) -> list[Finding]:
    """One finding per pair and figure that was timed tonight. `history`: earlier nights, newest first."""
    out = []
    for pair, row in now.items():
        for name, label in FIGURES.items():
            if (seconds := row.get(name)) is not None:
                past = list(history.get((*pair, name), ()))
                out.append(_judged(pair, name, label, seconds, before.get(pair, {}).get(name), past))
    return out


def noise(good: Sequence[float]) -> tuple[float, float] | None:
    """Median of the good nights and what a night may lie above it, as a share of it; None for fewer than five."""
    if len(good) < ENOUGH_NIGHTS:
        return None
    middle = statistics.median(good)
    spread = _MAD_TO_SD * statistics.median(abs(value - middle) for value in good)
    return middle, max(LEAST_NOISE, 3 * spread / middle)


def _judged(pair: Pair, name: str, label: str, seconds: float, before: float | None, past: Sequence[Past]) -> Finding:
    text = f"{label} {seconds:.4g} s"
    text += f" ({1 / seconds:,.1f} tokens/s)" if name == "tpot_s" and seconds else ""
    text += f", baseline {before:.4g} s ({seconds / before - 1:+.1%})" if before else ""
    usual = noise([night.seconds for night in past if not night.slow][:MOST_NIGHTS])
    if usual is None:
        return Finding(*pair, OK, f"{text}; fewer than {ENOUGH_NIGHTS} good nights: not judged", False, name,
                       before=before, now=seconds)  # fmt: skip
    middle, allowed = usual
    loss = seconds / middle - 1
    text += f"; {loss:+.1%} against the median of earlier nights, their noise is {allowed:.1%}"
    category, blocks = OK, False
    if loss > allowed:
        earlier = next((i for i, night in enumerate(past) if not night.slow), len(past))
        blocks = earlier + 1 >= BAD_NIGHTS
        category = REGRESSION if blocks else DRIFT
        text += f"; slow night {earlier + 1} in a row ({BAD_NIGHTS} block)"
    return Finding(*pair, category, text, blocks, name, before=before, now=seconds, loss=loss, margin=allowed)
