"""How much one visitor may ask: a token bucket per address."""

from __future__ import annotations

import time
from collections.abc import Callable

_MOST_CLIENTS = 10_000


class Buckets:
    """Every client has a bucket of `burst` requests, filled again at `rate_per_s`."""

    def __init__(self, rate_per_s: float, burst: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.rate_per_s, self.burst = rate_per_s, burst
        self._clock = clock
        self._buckets: dict[str, tuple[float, float]] = {}  # client → (left, when)

    def take(self, client: str, cost: float = 1.0) -> float:
        """Take from the client's bucket. 0.0 if there was enough, else the seconds to wait; nothing is taken then."""
        now = self._clock()
        left = self._left(client, now)
        if left < min(cost, self.burst):
            return (min(cost, self.burst) - left) / self.rate_per_s
        self._buckets[client] = (left - cost, now)
        if len(self._buckets) > _MOST_CLIENTS:
            self._buckets = {name: at for name, at in self._buckets.items() if self._left(name, now) < self.burst}
        return 0.0

    def _left(self, client: str, now: float) -> float:
        left, when = self._buckets.get(client, (self.burst, now))
        return min(self.burst, left + (now - when) * self.rate_per_s)
