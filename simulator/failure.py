"""`Failure`: one replica breaks down during a run, and comes back with nothing in its memory."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import UserError


@dataclass(frozen=True, slots=True)
class Failure:
    """Replica `replica` is gone for `outage_s` seconds, from `at_s` on, or else from a share of the measured time on.

    Every cache on it is lost. Its open turns start over on other replicas, and their latencies count from when they
    first arrived; while no replica works, turns wait.
    """

    outage_s: float
    at_s: float | None = None
    at_share: float = 0.5
    replica: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.outage_s < float("inf"):
            raise UserError("--fail: the outage lasts a finite number of seconds, above 0")
        if self.at_s is not None and not 0 <= self.at_s < float("inf"):
            raise UserError("a failure begins at a finite time, 0 or later")
        if not 0 <= self.at_share <= 1:
            raise UserError("a failure begins after a share of the measured time between 0 and 1")

    def moment(self, warm_s: float, end_s: float) -> float:
        """When it begins, in seconds of the simulation whose warm-up ends at `warm_s`."""
        return warm_s + self.at_share * (end_s - warm_s) if self.at_s is None else self.at_s
