"""Routers: which replica a turn goes to.

`affinity`: a session stays where its cache is; a new one, and one whose cache is gone, goes to the replica that holds
the fewest rows. `prefix-aware`: the replica that has the most of the prompt, unless the fleet is out of balance: the
rule and the thresholds of SGLang's `cache_aware` router. `round-robin` and `least-loaded` know nothing of caches.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar

from ..errors import unknown
from .live import Live
from .replica import Replica

# SGLang's defaults (--cache-threshold, --balance-abs-threshold, --balance-rel-threshold).
CACHE_THRESHOLD = 0.3
BALANCE_REQUESTS = 64
BALANCE_FACTOR = 1.5

Replicas = Mapping[int, Replica]


def counted(live: Live) -> int:
    """The rows of a session that its replica's load includes while a turn is open."""
    plan = live.plan
    return plan.after[plan.begin] if live.turn == plan.begin else plan.rows(live.turn - 1)


def fewest_rows(live: Live, replicas: Replicas) -> int:
    """The replica that holds the fewest rows, those of the session itself left out; its own if none has fewer."""
    best, least = live.replica, float("inf")
    if best in replicas:
        least = replicas[best].load - counted(live)
    for index, replica in replicas.items():
        if index != live.replica and replica.load < least:
            best, least = index, replica.load
    return best


def in_flight(replica: Replica) -> int:
    """Requests that a replica has not finished."""
    return len(replica.running) + len(replica.waiting) + len(replica.arrived) + len(replica.fetching)


class Router(ABC):
    """The rule of one router. `replicas` are those that work, by index; there is one at least."""

    name: ClassVar[str]
    looks: ClassVar[bool] = False  # into the caches of replicas

    @abstractmethod
    def choose(self, live: Live, replicas: Replicas) -> int:
        """The replica for the turn of `live` that arrives now."""

    def again(self, live: Live, replicas: Replicas) -> int:
        """The replica for a turn that turns out to find nothing of its cache where it was sent: the same."""
        return live.replica


class Affinity(Router):
    """Home while there is one, else the fewest rows."""

    name = "affinity"

    def choose(self, live: Live, replicas: Replicas) -> int:
        """The replica of the turn before."""
        return live.replica if live.replica in replicas else fewest_rows(live, replicas)

    def again(self, live: Live, replicas: Replicas) -> int:
        """Nothing holds the session any more."""
        return fewest_rows(live, replicas)


class RoundRobin(Router):
    """One replica after the other, turn by turn."""

    name = "round-robin"

    def __init__(self) -> None:
        self.last = -1

    def choose(self, live: Live, replicas: Replicas) -> int:
        """The next one that works."""
        self.last = next((index for index in replicas if index > self.last), min(replicas))
        return self.last


class LeastLoaded(Router):
    """The fewest rows, turn by turn."""

    name = "least-loaded"

    def choose(self, live: Live, replicas: Replicas) -> int:
        """The replica that holds the fewest rows of other sessions."""
        return fewest_rows(live, replicas)


class PrefixAware(Router):
    """The most of the prompt, while the queues are in balance.

    Out of balance (the longest queue has more than 64 requests more than the shortest, and more than 1.5 times as
    many) the shortest queue takes the turn. Otherwise the replica that has the largest share of the prompt, when that
    is more than 0.3; of equals, and when none has, the one that holds the fewest rows. SGLang's router remembers what
    it sent where; this one knows what is there.
    """

    name = "prefix-aware"
    looks = True

    def choose(self, live: Live, replicas: Replicas) -> int:
        """Shortest queue, longest prefix or fewest rows."""
        queues = {index: in_flight(replica) for index, replica in replicas.items()}
        least, most = min(queues.values()), max(queues.values())
        if most - least > BALANCE_REQUESTS and most > BALANCE_FACTOR * least:
            return min(queues, key=lambda index: queues[index])
        found = {index: self.reusable(live, index, replica) for index, replica in replicas.items()}
        longest = max(found.values())
        if longest <= CACHE_THRESHOLD * live.plan.raw[live.turn]:
            return fewest_rows(live, replicas)
        return fewest_rows(live, {index: replicas[index] for index in replicas if found[index] == longest})

    def again(self, live: Live, replicas: Replicas) -> int:
        """What was there has gone since."""
        return self.choose(live, replicas)

    @staticmethod
    def reusable(live: Live, index: int, replica: Replica) -> int:
        """Tokens of the prompt that `replica` need not prefill: of the session's own cache, or its group's prefix."""
        plan, turn = live.plan, live.turn
        if index == live.replica and replica.cache.here(live):
            start, whole = replica.cache.found(live)
            return plan.raw[turn] - plan.feed[turn] if whole else start
        return plan.shared if replica.cache.loaded(live) else 0


ROUTERS = {router.name: router for router in (Affinity, LeastLoaded, PrefixAware, RoundRobin)}


def find_router(name: str) -> Router:
    """A router of that name, new: one may remember what it did. UserError on an unknown name."""
    if name not in ROUTERS:
        raise unknown("router", name, ROUTERS)
    return ROUTERS[name]()
