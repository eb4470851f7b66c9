"""`Turns`: what happened to every finished turn of a run, nine numbers each, in one array."""

from __future__ import annotations

from array import array
from collections.abc import Iterator

import numpy as np

COLUMNS = ("arrival_s", "ttft_s", "tpot_s", "e2e_s", "output", "hit", "agent", "turn", "replica")
Turn = tuple[float, float, float, float, float, float, float, float, float]


class Turns:
    """Rows of `COLUMNS`, 72 bytes each. TPOT is NaN for a turn of one token; a hit found all of its cache."""

    def __init__(self) -> None:
        self._values = array("d")
        self._table = np.empty((0, len(COLUMNS)))

    def append(self, row: Turn) -> None:
        """One more finished turn."""
        self._values.extend(row)

    def __len__(self) -> int:
        return len(self._values) // len(COLUMNS)

    def __iter__(self) -> Iterator[Turn]:
        width, values = len(COLUMNS), self._values
        for start in range(0, len(values), width):
            yield tuple(values[start : start + width])  # pyright: ignore[reportReturnType]

    def columns(self) -> np.ndarray:
        """(n, 9), a copy, made once and the same until another turn ends: not to be written to."""
        if len(self._table) != len(self):
            self._table = np.array(self._values).reshape(-1, len(COLUMNS))
            self._table.flags.writeable = False
        return self._table
