"""Numbers as sources write them."""

from __future__ import annotations

import math
from typing import Any

_MOST = 2**40


def count(value: Any) -> int | None:
    """A whole number of 0 or more; None if it is none, or larger than any count of tokens."""
    return value if type(value) is int and 0 <= value < _MOST else None


def finite(value: Any) -> float | None:
    """A finite number; None if it is none (Inspect and others write NaN)."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if number and abs(value) < 1e300 and math.isfinite(value) else None
