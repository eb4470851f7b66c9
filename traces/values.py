"""JSON values that are safe to keep: finite numbers, whole characters, bounded nesting."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

MAX_DEPTH = 200
_ESCAPED = re.compile(r"\\u[dD][89a-fA-F]")
_HALF = re.compile("[\ud800-\udfff]")


def flaw(value: Any) -> str | None:
    """Why a parsed value cannot be kept, in words, or None. Walks without recursion."""
    level, depth = [value], 0
    while level:
        if depth > MAX_DEPTH:
            return f"nested more than {MAX_DEPTH} levels deep"
        below: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                below.extend(item.values())
            elif isinstance(item, list):
                below.extend(item)
            elif isinstance(item, float) and not math.isfinite(item):
                return "holds NaN, Infinity or a number beyond all bounds"
        level, depth = below, depth + 1
    return None


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
    """The JSON object in `text`, or None if it holds none that can be kept."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return whole(value, text) if isinstance(value, dict) and flaw(value) is None else None
