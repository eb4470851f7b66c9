"""Times as sources write them, in seconds."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any


def when(value: Any) -> float | None:
    """Seconds since 1970 of an ISO 8601 time; one without a zone is taken as UTC. None if it is none."""
    if not isinstance(value, str):
        return None
    try:
        time = datetime.fromisoformat(value)
        return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return None


def between(start: float | None, end: float | None) -> float | None:
    """Seconds from one time to another; None if either is unknown or they run backwards."""
    return None if start is None or end is None or end < start else end - start
