"""`HostPool`: caches of sessions that were moved to host memory, as counts of blocks.

When it is full, the least recently used goes first, and whole.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Protocol


class Guest(Protocol):
    """What the pool needs to know of a session: how many blocks it has here."""

    host: int


class HostPool:
    """Counts of blocks in host memory. Mutates."""

    def __init__(self, total: int) -> None:
        self.total = self.free = total
        self.guests: OrderedDict[Guest, None] = OrderedDict()
        self.dropped = 0  # sessions whose copy had to go

    def put(self, guest: Guest, count: int) -> bool:
        """Take `count` more blocks of a session, dropping older sessions; False when they are more than there is."""
        if guest.host + count > self.total:
            self.drop(guest)
            return False
        self.guests[guest] = None
        self.guests.move_to_end(guest)
        while self.free < count:
            oldest = next(iter(self.guests))
            self.drop(oldest)
            self.dropped += 1
        self.free -= count
        guest.host += count
        return True

    def drop(self, guest: Guest) -> None:
        """Forget what is here of a session."""
        self.free += guest.host
        guest.host = 0
        self.guests.pop(guest, None)

    def check(self) -> None:
        """Conservation. AssertionError with the figures when the counts do not add up."""
        held = sum(guest.host for guest in self.guests)
        if self.free < 0 or self.free + held != self.total:
            raise AssertionError(f"host blocks lost or doubled: free {self.free}, held {held}, total {self.total}")
