"""JSON values that are safe to keep: finite numbers, whole characters, bounded nesting.

orjson reads what is plainly good. Whatever it refuses, or would change without a word (whole numbers beyond 64 bits
become floats there), the standard library reads: the values, and what is refused, are the same as if it read all.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

MAX_DEPTH = 200
_ESCAPED = re.compile(r"\\u[dD][89a-fA-F]")
_HALF = re.compile("[\ud800-\udfff]")
_BEYOND = 2.0**63
_TOO_DEEP = f"nested more than {MAX_DEPTH} levels deep"
_ENDLESS = "holds NaN, Infinity or a number beyond all bounds"


@dataclass(frozen=True, slots=True)
class Loaded:
    """A parsed value. `repaired`: half surrogate pairs were replaced; `nulled`: NaN or Infinity became null."""

    value: Any
    repaired: bool = False
    nulled: bool = False


def load(text: bytes | str) -> Loaded:
    """The value of one JSON text. ValueError says in words why there is none that can be kept."""
    value, good = _quick(text)
    return Loaded(value) if good else _carefully(text)


def _quick(text: bytes | str) -> tuple[Any, bool]:
    """What orjson reads, and whether the standard library would have read the same."""
    import orjson  # here, as the replay engine loads this file on machines without it

    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        return None, False
    depth, greatest = _measure(value)
    return value, depth <= MAX_DEPTH and greatest < _BEYOND


def _carefully(text: bytes | str) -> Loaded:
    try:
        plain = text.decode() if isinstance(text, bytes) else text
        value = json.loads(plain)
    except (ValueError, RecursionError) as error:
        raise ValueError(why(error)) from None
    return safe(value, plain)


def safe(value: Any, text: str) -> Loaded:
    """A value that the standard library parsed from `text`, with what cannot be kept replaced.

    ValueError if it is nested too deeply.
    """
    depth, greatest = _measure(value)
    if depth > MAX_DEPTH:
        raise ValueError(_TOO_DEEP)
    nulled = not math.isfinite(greatest)
    if nulled:
        value = _finite(value)
    kept = whole(value, text)
    return Loaded(kept, kept is not value and kept != value, nulled)


def why(error: Exception) -> str:
    """What a JSON parser said, in words that need no source code."""
    if isinstance(error, RecursionError):
        return "nested too deeply"
    if isinstance(error, UnicodeDecodeError):
        return f"invalid UTF-8 at byte {error.start + 1}"
    if isinstance(error, json.JSONDecodeError):
        return f"no valid JSON: {error.msg.removesuffix(' at')} at character {error.pos + 1}"
    if "digits" in str(error):
        return "holds a whole number of thousands of digits"
    return str(error).partition(";")[0]


def flaw(value: Any) -> str | None:
    """Why a parsed value cannot be kept as it is, in words, or None. Walks without recursion."""
    depth, greatest = _measure(value)
    if depth > MAX_DEPTH:
        return _TOO_DEEP
    return None if math.isfinite(greatest) else _ENDLESS


def _measure(value: Any) -> tuple[int, float]:
    """How deep it is nested (as far as MAX_DEPTH + 1), and the greatest size of its floats; infinite for NaN."""
    level, depth, greatest = [value], -1, 0.0
    while level and depth <= MAX_DEPTH:
        below: list[Any] = []
        for item in level:
            kind = type(item)
            if kind is dict:
                below.extend(item.values())
            elif kind is list:
                below.extend(item)
            elif kind is float:
                greatest = max(greatest, abs(item)) if math.isfinite(item) else math.inf
        level, depth = below, depth + 1
    return depth, greatest


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list) else value


def whole(value: Any, text: str) -> Any:
    """The value parsed from `text` with half surrogate pairs replaced: no encoding has bytes for them."""
    return _whole(value) if _ESCAPED.search(text) else value


def _whole(value: Any) -> Any:
    if isinstance(value, str):
        return _HALF.sub("\ufffd", value)
    if isinstance(value, dict):
        return {_whole(key): _whole(item) for key, item in value.items()}
    return [_whole(item) for item in value] if isinstance(value, list) else value


def parse_object(text: str) -> Mapping[str, Any] | None:
    """The JSON object in `text`, or None if it holds none that can be kept as it is."""
    value, good = _quick(text)
    if not good:
        try:
            loaded = _carefully(text)
        except ValueError:
            return None
        value = None if loaded.nulled else loaded.value
    return value if isinstance(value, dict) else None
