"""How many jobs run at once: lanes of slots, each slot a file lock, given out in the order the jobs were asked for.

A ticket is an empty file named by its job; whoever waits holds one. No process hands out slots: every supervisor looks
by itself, so that nothing has to run for the queue to move.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from pathlib import Path

from ..errors import UserError

HEAVY, LIGHT = "heavy", "light"
VARIABLE = "KVMILL_HEAVY_JOBS"
_LIGHT_SLOTS = 4


def slots_of(lane: str) -> int:
    """Jobs of a lane that run at once. KVMILL_HEAVY_JOBS sets those of the heavy one (1)."""
    if lane == LIGHT:
        return _LIGHT_SLOTS
    given = os.environ.get(VARIABLE, "1")
    if not given.isdigit() or not int(given):
        raise UserError(f"{VARIABLE}={given}: give a whole number from 1 on")
    return int(given)


def ask(folder: Path, lane: str, job: str) -> None:
    """Draw a ticket for a job: from now on, later ones wait for it."""
    waiting = folder / "lanes" / lane / "waiting"
    waiting.mkdir(parents=True, exist_ok=True)
    (waiting / job).touch()


def leave(folder: Path, lane: str, job: str) -> None:
    """Give the ticket back."""
    (folder / "lanes" / lane / "waiting" / job).unlink(missing_ok=True)


def take(folder: Path, lane: str, job: str, still_waits: Callable[[str], bool]) -> int | None:
    """A slot for a job, or None while others are before it. The slot is free again when the process ends.

    `still_waits` says of an earlier ticket's job whether it is queued: a killed supervisor leaves its ticket behind.
    Returns the handle to close.
    """
    place = folder / "lanes" / lane
    turn = _opened(place / "turn")
    try:
        _lock(turn, wait=True)
        for ticket in sorted((place / "waiting").iterdir()):
            if ticket.name < job and still_waits(ticket.name):
                return None
            if ticket.name < job:
                ticket.unlink(missing_ok=True)
        for number in range(slots_of(lane)):
            slot = _opened(place / f"slot-{number}")
            if _lock(slot, wait=False):
                leave(folder, lane, job)
                return slot
            os.close(slot)
        return None
    finally:
        os.close(turn)


def _opened(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)


def _lock(handle: int, *, wait: bool) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    except OSError:
        return True  # a file system without locks: nothing is bounded there, and nothing waits for ever
    return True
