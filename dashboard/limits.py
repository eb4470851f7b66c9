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

    def take(self, client: str) -> float:
        """Take one from the client's bucket. 0.0 if there was one, else the seconds until there is."""
        left = self._left(client, self._clock())
        if left < 1:
            return (1 - left) / self.rate_per_s
        self.charge(client, 1)
        return 0.0

    def charge(self, client: str, cost: float) -> None:
        """Take `cost` whether it is there or not: what is owed is waited for."""
        now = self._clock()
        self._buckets[client] = (self._left(client, now) - cost, now)
        if len(self._buckets) > _MOST_CLIENTS:
            self._buckets = {name: at for name, at in self._buckets.items() if self._left(name, now) < self.burst}

    def _left(self, client: str, now: float) -> float:
        left, when = self._buckets.get(client, (self.burst, now))
        return min(self.burst, left + (now - when) * self.rate_per_s)
