"""What a fleet holds when a run begins: which replica every session lives on, and whose caches are there."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .deployment import BLOCK_TOKENS
from .live import Live
from .positions import Place
from .replica import Replica
from .routers import counted

Present = Sequence[tuple[Place, Live]]  # sessions under way between two turns, and where they are


def house(present: Present, replicas: Sequence[Replica]) -> None:
    """Give every session, oldest first, the replica that held the fewest rows when it began.

    Rows are taken to have grown evenly since each session's start. Balancing today's rows instead would begin
    with a fleet better balanced than any that has been running.
    """
    rows, per_second = np.zeros(len(replicas)), np.zeros(len(replicas))  # today's, and how fast they grew
    for place, live in sorted(present, key=lambda item: -item[0].age_s):
        live.replica = int((rows - place.age_s * per_second).argmin())
        rows[live.replica] += counted(live)
        per_second[live.replica] += (counted(live) - live.plan.after[live.plan.begin]) / max(place.age_s, 1e-9)
        replicas[live.replica].load += counted(live)


def furnish(present: Present, replicas: Sequence[Replica]) -> None:
    """Fill each pool with the caches of its sessions, the most recently active first, until one does not fit.

    The rest has left, or is in host memory where caches are moved there.
    """
    full: set[int] = set()
    kept: list[tuple[float, Live, int]] = []
    for place, live in sorted(present, key=lambda item: item[0].since_s):
        replica, plan, turn = replicas[live.replica], live.plan, live.turn - 1
        if place.since_s > replica.cache.ttl_s:
            continue
        need = plan.blocks(turn, plan.rows(turn))
        lent = 0 if replica.cache.loaded(live) else plan.shared // BLOCK_TOKENS
        fits = live.replica not in full and need + lent <= replica.pool.free
        if fits:
            replica.pool.take(need + lent)
            if lent:
                replica.pool.share(plan.group, lent)
            live.blocks = need
        else:
            full.add(live.replica)
        if fits or replica.cache.offloads:
            kept.append((place.since_s, live, need))
    for since_s, live, need in reversed(kept):  # as they left: the least recently active first
        cache = replicas[live.replica].cache
        if live.blocks:
            cache.keep(live, -since_s)
        elif cache.host.put(live, need):
            live.parked = need
