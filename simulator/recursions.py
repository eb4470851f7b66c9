"""Exact checks: the engine as a queue whose every turn a recursion gives, on the engine's own arrivals and outputs."""

from __future__ import annotations

import heapq
from collections.abc import Iterable

import numpy as np

from .identities import Identity
from .laws import Law, Observed, open_queue
from .queues import SERVICE_S, STEP_S, lengths, recent_waits

TURNS = 10_000


def recursion_checks() -> Iterable[Identity]:
    """One sequence at a time is Lindley's recursion; c of them are Kiefer and Wolfowitz's, up to the step under way."""
    for load, cv2 in ((0.95, 0.0), (0.8, 4.0)):
        seen = open_queue(Law(step_s=STEP_S, cap=1), load / SERVICE_S, lengths(cv2), TURNS, seed=0)
        times = recent_waits(seen, 2 * len(seen.turns)) + seen.tokens * STEP_S
        late = float(np.abs(seen.times / times - 1).max())
        yield (
            f"one at a time, load {load:g}, cv² {cv2:g} ≡ Lindley's recursion: largest relative error",
            late,
            0.0,
            1e-9,
        )
    for servers in (2, 10):
        seen = open_queue(Law(step_s=STEP_S, cap=servers), 0.9 * servers / SERVICE_S, lengths(1.0), TURNS, seed=0)
        late = float(np.abs(seen.times - in_order(seen, servers)[seen.inside]).max()) / STEP_S
        yield f"{servers} at a time, load 0.9 ≡ Kiefer and Wolfowitz's recursion: largest error, steps", late, 0.0, 1.0


def in_order(seen: Observed, servers: int) -> np.ndarray:
    """Seconds that every turn would take if `servers` served in order: each begins when the first of them is free."""
    free = [0.0] * servers
    times = []
    for arrival, _, tokens in seen.turns.tolist():
        end = max(arrival, heapq.heappop(free)) + tokens * STEP_S
        heapq.heappush(free, end)
        times.append(end - arrival)
    return np.array(times)
