"""The paper's static batch: sized by the largest KV of any turn, then the decodes replayed at a time per step.

Nothing else is charged: no prefill, no compaction, no tool wait, no queue. That is the method, and its limit.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from ..errors import UserError
from .cost import CostModel
from .paper_table import admissible, per_hour, power_of_two
from .session import SessionPlan

LEAST_CONTEXT = 1024  # from here in doublings: the contexts at which a step is priced
COLUMNS = ("batch", "context_tokens", "step_s")


@dataclass(frozen=True)
class StepTable:
    """Seconds of a decode step of `batch` sequences that all attend to `contexts` rows; linear in between."""

    batch: int
    contexts: tuple[int, ...]
    seconds: tuple[float, ...]

    @classmethod
    def of(cls, cost: CostModel, batch: int, longest: int) -> StepTable:
        """As the cost model prices it, at doubling contexts up to `longest` (*estimated*)."""
        contexts = [0, LEAST_CONTEXT]
        while contexts[-1] < longest:
            contexts.append(contexts[-1] * 2)
        seconds = [cost.fixed_s(batch) + cost.decode_attention_s(batch, batch * c) for c in contexts]
        return cls(batch, tuple(contexts), tuple(seconds))

    @cached_property
    def _summed(self) -> np.ndarray:
        """Element c: the seconds of one step at each context below c."""
        at = np.interp(np.arange(self.contexts[-1] + 1), self.contexts, self.seconds)
        return np.concatenate([[0.0], np.cumsum(at)])

    def spans_s(self, starts: np.ndarray, steps: np.ndarray) -> np.ndarray:
        """Seconds of `steps` decode steps that begin at `starts` rows, a row more each; arrays of integers.

        UserError when a context is beyond the table: nothing is extrapolated.
        """
        longest = int((starts + steps).max(initial=1)) - 1
        if longest > self.contexts[-1]:
            raise UserError(
                f"step times of batch {self.batch} end at {self.contexts[-1]:,} tokens, sessions reach {longest:,}: "
                "measure longer contexts"
            )
        return self._summed[starts + steps] - self._summed[starts]


def read_step_times(path: str | Path) -> dict[int, StepTable]:
    """Measured step times from a CSV file with the columns batch, context_tokens, step_s, by batch.

    UserError naming the line on anything that is not a positive number, and on contexts that are given twice.
    """
    found: dict[int, dict[int, float]] = {}
    try:
        with Path(path).open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            if tuple(reader.fieldnames or ()) != COLUMNS:
                raise UserError(f"{path}: the first line must be {','.join(COLUMNS)}")
            for row in reader:
                try:
                    batch, context, seconds = int(row["batch"]), int(row["context_tokens"]), float(row["step_s"])
                except (TypeError, ValueError):
                    batch = context = 0
                    seconds = 0.0
                if batch < 1 or context < 0 or not 0 < seconds < float("inf"):
                    raise UserError(f"{path} line {reader.line_num}: whole batch and context, seconds above 0")
                if context in found.setdefault(batch, {}):
                    raise UserError(f"{path} line {reader.line_num}: batch {batch}, context {context} is given twice")
                found[batch][context] = seconds
    except (FileNotFoundError, IsADirectoryError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: no CSV file of step times ({error})") from None
    if not found:
        raise UserError(f"{path}: no step times below the first line")
    return {b: StepTable(b, tuple(sorted(at)), tuple(at[c] for c in sorted(at))) for b, at in sorted(found.items())}


@dataclass(frozen=True, slots=True)
class Decodes:
    """Every decoded turn of a set of sessions: rows when it begins, tokens decoded. Each session counts once."""

    sessions: int
    starts: np.ndarray
    steps: np.ndarray

    @classmethod
    def of(cls, plans: Sequence[SessionPlan]) -> Decodes:
        """From the sessions' own turns."""
        turns = [(plan.after[j], plan.out[j]) for plan in plans for j in range(plan.begin, plan.turns)]
        starts, steps = np.array(turns, dtype=np.int64).reshape(-1, 2).T
        return cls(len(plans), starts, steps)

    @property
    def peak(self) -> int:
        """P: the most rows that any turn attends to."""
        return int((self.starts + self.steps).max()) - 1

    @property
    def tokens(self) -> float:
        """Mean tokens decoded in a session."""
        return float(self.steps.sum()) / self.sessions

    @property
    def mean_rows(self) -> float:
        """Mean rows attended to, over all decode steps."""
        rows = self.steps * (self.starts + (self.steps - 1) / 2.0)
        return float(rows.sum() / self.steps.sum())


@dataclass(frozen=True, slots=True)
class Static:
    """One policy by the paper's method: the largest KV, the batch that fits, the one used, and what it serves.

    `batch` 0: not even one session fits, and `session_s` and `per_hour` are 0.
    """

    peak: int
    admissible: int
    batch: int
    session_s: float
    per_hour: float


def static(
    decodes: Decodes,
    pool_tokens: int,
    cost: CostModel,
    measured: Mapping[int, StepTable] | None = None,
    most: int | None = None,
) -> Static:
    """The best power of two that fits, `most` at the most: the largest, unless `measured` step times say otherwise.

    UserError when `measured` holds no power of two that fits.
    """
    fits = admissible(pool_tokens, decodes.peak)
    largest = power_of_two(min(fits, most or fits))
    if not largest:
        return Static(decodes.peak, fits, 0, 0.0, 0.0)
    sizes = [1 << k for k in range(largest.bit_length())]
    if measured is None:
        tables = [StepTable.of(cost, largest, decodes.peak)]
    else:
        tables = [measured[size] for size in sizes if size in measured]
    if not tables:
        raise UserError(
            f"no step times for a power of two up to batch {largest} (there are: {', '.join(map(str, measured or ()))})"
        )
    return max((_served(decodes, table, fits) for table in tables), key=lambda found: found.per_hour)


def _served(decodes: Decodes, table: StepTable, fits: int) -> Static:
    seconds = float(table.spans_s(decodes.starts, decodes.steps).sum()) / decodes.sessions
    return Static(decodes.peak, fits, table.batch, seconds, per_hour(table.batch, seconds))
