"""Picking the next token: greedy, or from the nucleus of the tempered distribution with a seeded generator."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ..errors import UserError

_SPARE_TOKENS = 4  # a token may spell nothing yet: the first bytes of a character


class Sampler:
    """Called with log-probabilities (vocabulary,), returns an id.

    Temperature 0 takes the likeliest id, the lowest among equals. Else p = softmax(log p / temperature), cut to the
    fewest likeliest ids whose mass reaches `top_p` (nucleus sampling: Holtzman et al. 2020, section 3.1, equation 2),
    and drawn by the inverse of the cumulative sum, in float64 on the CPU: the same draws on every device.
    """

    def __init__(self, temperature: float, top_p: float, seed: int) -> None:
        if not (math.isfinite(temperature) and temperature >= 0):
            raise UserError(f"temperature must be 0 (greedy) or more, not {temperature}")
        if not 0 < top_p <= 1:
            raise UserError(f"top_p must be above 0 and at most 1, not {top_p}")
        self.temperature, self.top_p = temperature, top_p
        self._generator = torch.Generator().manual_seed(seed)

    def __call__(self, log_probabilities: Tensor) -> int:
        """The next id."""
        best = log_probabilities.max()
        if self.temperature == 0:
            return int((log_probabilities == best).nonzero()[0, 0])
        tempered = (log_probabilities - best).double().cpu() / self.temperature
        likely = tempered.softmax(-1).sort(descending=True, stable=True)
        before = likely.values.cumsum(0) - likely.values
        kept = int((before < self.top_p).sum())
        mass = likely.values[:kept].cumsum(0)
        drawn = torch.rand((), generator=self._generator, dtype=torch.float64) * mass[-1]
        at = int(torch.searchsorted(mass, drawn, right=True))
        return int(likely.indices[min(at, kept - 1)])


class Stops:
    """Whether the last of the ids completes one of some strings."""

    def __init__(self, strings: Sequence[str], decode: Callable[[Sequence[int]], str]) -> None:
        self._strings, self._decode = strings, decode
        longest = max((len(text.encode()) for text in strings), default=0)
        self._tokens = longest + _SPARE_TOKENS

    def __call__(self, ids: Sequence[int]) -> bool:
        """Asked after every id, so only the last ones matter."""
        if not self._strings:
            return False
        text = self._decode(ids[-self._tokens :])
        return any(string in text for string in self._strings)
