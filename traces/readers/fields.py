"""Fields of a request log's row, typed or as the text of a CSV cell."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from ..reading import Reject

MOST_TOKENS = 2**40
MOST_HASH = 2**64 - 1
_MOST_DIGITS = 20
_MOST_EXACT = 2**53
_SEPARATED = re.compile(r"\d{1,3}(?:[.,'’ \u00a0\u202f]\d{3})+\Z")
_ZONE = re.compile(r"\s*(?:[+-]00:?00\s+)?(?:UTC|GMT)\Z")
_FRACTION = re.compile(r"[.,](\d+)")


def row_of(record: Any) -> Mapping[str, Any]:
    """The record as a row. Reject if it is none."""
    if not isinstance(record, Mapping):
        raise Reject("not an object with named fields")
    return record


def has(record: Any, *names: str) -> bool:
    """Whether a record is a row with all of these columns."""
    return isinstance(record, Mapping) and all(name in record for name in names)


def whole(value: Any) -> int | None:
    """A whole number of 0 or more: as such, as digits, or as a float without fraction. None if it is none."""
    if isinstance(value, str):
        text = value.strip()
        if text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS:
            return int(text)
        value = _float(text)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    if isinstance(value, int):  # first: a large one is beyond what a float holds
        return value if value >= 0 else None
    return int(value) if value >= 0 and math.isfinite(value) and value == int(value) else None


def tokens(row: Mapping[str, Any], name: str) -> int:
    """A number of tokens."""
    value = row.get(name)
    if isinstance(value, str) and _SEPARATED.match(value.strip()):  # 2.000 is two or two thousand
        raise Reject(f"{name} is {_shown(value)}: write numbers without separators")
    count = whole(value)
    if count is None or count > MOST_TOKENS:
        raise Reject(f"{name} is {_shown(row.get(name))}, not a number of tokens")
    return count


def seconds(row: Mapping[str, Any], name: str, per_second: int = 1) -> float:
    """A time or duration of 0 or more, in seconds; the column counts `per_second` to the second."""
    value = row.get(name)
    number = _float(value.strip()) if isinstance(value, str) else value
    known = isinstance(number, (int, float)) and not isinstance(number, bool)
    if number is None or not known or not 0 <= number <= MOST_HASH:
        unit = {1: "s", 1000: "ms", 10**6: "µs", 10**9: "ns"}[per_second]
        raise Reject(f"{name} is {_shown(value)}, not a time in {unit}")
    return number / per_second


def clock(row: Mapping[str, Any], name: str) -> tuple[int, int]:
    """A calendar time as whole seconds since 1970 and nanoseconds: logs have more digits than a float holds."""
    value = row.get(name)
    if isinstance(value, str):
        text = _ZONE.sub("+00:00", value.strip())
        digits = _FRACTION.search(text)
        fraction = digits.group(1)[:9].ljust(9, "0") if digits else "0"
        try:
            time = datetime.fromisoformat(text if digits is None else text[: digits.start()] + text[digits.end() :])
            time = time if time.tzinfo else time.replace(tzinfo=UTC)
            return math.floor(time.timestamp()), int(fraction)
        except (ValueError, OverflowError):
            pass
    raise Reject(f"{name} is {_shown(value)}, not a date and time as 2025-03-01T10:00:00Z")


def hashes(value: Any, name: str) -> tuple[int, ...] | None:
    """Block hashes of 64 bits: a list, or the JSON of one. None where there are none."""
    if isinstance(value, str) and value.strip():
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            value = [None]
    if value is None or value == "":
        return None
    if isinstance(value, list) and all(isinstance(h, str) and h.isascii() and h.isdigit() for h in value):
        value = [
            int(h) if len(h) <= _MOST_DIGITS else -1 for h in value
        ]  # as text, for the sake of readers with doubles
    if not isinstance(value, list) or not all(type(h) is int and 0 <= h <= MOST_HASH for h in value):
        raise Reject(f"{name} is not a list of whole numbers from 0 to 2^64-1")
    return tuple(value)


def named(value: Any) -> str | None:
    """An id as text; None where the cell is empty or holds no simple value. Columns of ids of which some are missing
    are written as floats.
    """
    if isinstance(value, float) and abs(value) < _MOST_EXACT and value == int(value):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        return None
    try:
        return str(value) or None
    except ValueError:  # a number of more digits than Python prints
        return None


def _float(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _shown(value: Any) -> str:
    try:
        return repr(value)[:60]
    except (ValueError, RecursionError):
        return "something else"
