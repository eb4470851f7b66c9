"""Numbers and objects as sources write them, or leave them out."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

_MOST = 2**40


def count(value: Any) -> int | None:
    """A whole number of 0 or more; None if it is none, or larger than any count of tokens."""
    return value if type(value) is int and 0 <= value < _MOST else None


def finite(value: Any) -> float | None:
    """A finite number; None if it is none (Inspect and others write NaN)."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if number and abs(value) < 1e300 and math.isfinite(value) else None


def inside(value: Any, *keys: str) -> Mapping[str, Any]:
    """The object at a path of keys; an empty one if there is none."""
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value if isinstance(value, Mapping) else {}
