"""How a run went over time: batch, queue, cache and latencies per interval of the measured time, and every turn.

One SimPy process per fleet looks at all replicas at the middle of equal parts of each interval; it changes nothing.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import simpy

from .fleet import Fleet
from .slo import percentile
from .turns import COLUMNS

INTERVALS = 60
LOOKS = 10  # per interval, averaged
WHOLE = ("output", "agent", "turn", "replica")


class Look(NamedTuple):
    """The fleet at one moment: requests running and waiting, shares of all blocks used and held by running requests."""

    running: int
    waiting: int
    used: float
    held: float


class Series:
    """Watches `fleet` from `start_s` to `end_s`; `rows` says what was seen once it has run."""

    def __init__(self, fleet: Fleet, start_s: float, end_s: float, intervals: int = INTERVALS) -> None:
        self.fleet, self.edges = fleet, np.linspace(start_s, end_s, intervals + 1)
        self.looks: list[list[Look]] = [[] for _ in range(intervals)]
        self.preemptions: list[int] = []
        fleet.env.process(self._watch())

    def _watch(self) -> Generator[simpy.Event, Any, None]:
        env = self.fleet.env
        for i, (start, end) in enumerate(zip(self.edges, self.edges[1:], strict=False)):
            for k in range(LOOKS):
                at = float(start + (end - start) * (k + 0.5) / LOOKS)
                if k == 0:
                    yield env.timeout(max(0.0, float(start) - env.now))
                    self.preemptions.append(self._preempted())
                yield env.timeout(max(0.0, at - env.now))
                self.looks[i].append(self._look())

    def _look(self) -> Look:
        seen = [replica.snapshot() for replica in self.fleet.replicas]
        total = sum(s.total_blocks for s in seen) or 1
        return Look(
            sum(s.running for s in seen),
            sum(s.waiting for s in seen),
            sum(s.used_blocks for s in seen) / total,
            sum(s.held_blocks for s in seen) / total,
        )

    def _preempted(self) -> int:
        return sum(replica.preemptions for replica in self.fleet.replicas)

    def rows(self) -> list[dict[str, Any]]:
        """One row per interval, in order, with the columns of the table `intervals` that belong to it.

        Latencies, hits and requests are those of the turns that arrived in the interval and have ended; a percentile
        from too few of them is None. `preemptions` are those within the interval.
        """
        turns = self.fleet.columns()
        rejected = np.asarray(self.fleet.rejected, dtype=float)
        counts = np.diff([*self.preemptions, *[self._preempted()] * (len(self.edges) - len(self.preemptions))])
        ends = turns[:, 0] + turns[:, 3]
        out = []
        for i, (start, end) in enumerate(zip(self.edges, self.edges[1:], strict=False)):
            arrived = turns[(turns[:, 0] >= start) & (turns[:, 0] < end)]
            ended = turns[(ends >= start) & (ends < end)]
            looks = np.array(self.looks[i], dtype=float).reshape(-1, 4)
            seen = looks.mean(axis=0).tolist() if len(looks) else [None] * 4
            running, waiting, used, held = seen
            out.append(
                {
                    "interval": i,
                    "start_s": float(start),
                    "end_s": float(end),
                    "running": running,
                    "batch": None if running is None else running / len(self.fleet.replicas),
                    "waiting": waiting,
                    "kv_used_share": used,
                    "kv_held_share": held,
                    "preemptions": int(counts[i]),
                    "requests": len(arrived),
                    "rejected": int(((rejected >= start) & (rejected < end)).sum()),
                    "throughput_tokens_per_s": float(ended[:, 4].sum() / (end - start)),
                    "hit_share": float(arrived[:, 5].mean()) if len(arrived) else None,
                    **_levels("ttft", arrived[:, 1]),
                    **_levels("tpot", arrived[:, 2]),
                }
            )
        return out


def _levels(name: str, values: np.ndarray) -> dict[str, float | None]:
    known = values[~np.isnan(values)]
    return {f"{name}_p{q}_s": percentile(known, q) for q in (50, 95)}


def turn_table(fleet: Fleet, since_s: float = 0.0) -> pa.Table:
    """Every finished turn that arrived from `since_s` on, as columns of the table `sim_turns`.

    `tpot_s` of a turn of one token is null. `hit` is the share of what the turn began with that was still there.
    """
    turns = fleet.columns()
    turns = turns[turns[:, 0] >= since_s]
    columns: dict[str, pa.Array] = {}
    for k, name in enumerate(COLUMNS):
        values = turns[:, k].astype(np.int64) if name in WHOLE else np.ascontiguousarray(turns[:, k])
        columns["output_tokens" if name == "output" else name] = pa.array(values, mask=np.isnan(turns[:, k]))
    return pa.table(columns)


class Watched:
    """How each replication went over time, and its turns; nothing unless they are `wanted`."""

    def __init__(self, wanted: bool) -> None:
        self.wanted = wanted
        self.rows: list[dict[str, Any]] = []
        self.turns: list[tuple[int, pa.Table]] = []
        self._last: tuple[Fleet, Series, float] | None = None

    def look(self, fleet: Fleet, warm: float, end: float) -> None:
        """Begin to watch a run."""
        if self.wanted:
            self._last = fleet, Series(fleet, warm, end), warm

    def keep(self, seed: int) -> None:
        """Take down what was seen of the run of `seed`, which is over."""
        if self._last is not None:
            fleet, series, warm = self._last
            self.rows += [{"seed": seed} | row for row in series.rows()]
            self.turns.append((seed, turn_table(fleet, warm)))
            self._last = None
