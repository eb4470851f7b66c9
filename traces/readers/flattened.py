"""Lists and objects that were flattened into dotted names (`messages.0.role`), put together again."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

from .messages import parsed

_WIDEST_GAP = 16
_MOST_PARTS = 16


def tree(attributes: Mapping[str, Any], root: str) -> Any:
    """What is flattened below a root; a list may also stand there as such, or as its JSON."""
    if root in attributes:
        return parsed(attributes[root])
    made: dict[str, Any] = {}
    for key, value in attributes.items():
        if key.startswith(root + "."):
            _hang(made, key[len(root) + 1 :].split(".", _MOST_PARTS), value)
    return made


def branch(raw: Any, name: str) -> dict[str, Any] | None:
    """The object of that name inside; it may be flattened itself (`message.role`), as tables of spans have it."""
    if not isinstance(raw, Mapping):
        return None
    inner = raw.get(name)
    if isinstance(inner, Mapping):
        return dict(inner)
    made: dict[str, Any] = {}
    for key, value in raw.items():
        _hang(made, str(key).split(".", _MOST_PARTS), value)
    inner = made.get(name)
    return inner if isinstance(inner, dict) else made


def entries(raw: Any) -> list[Any]:
    """The entries of a flattened list by their numbers (10 comes after 2), None where one is missing."""
    if isinstance(raw, list):
        return raw
    numbers = {int(key): value for key, value in raw.items() if _is_number(key)} if isinstance(raw, Mapping) else {}
    if not numbers:
        return []
    order = sorted(numbers)
    out: list[Any] = [None] * min(order[0], _WIDEST_GAP)
    for here, following in itertools.pairwise([*order, order[-1] + 1]):
        out += [numbers[here], *[None] * min(following - here - 1, _WIDEST_GAP)]
    return out


def _is_number(key: Any) -> bool:
    return isinstance(key, str) and key.isascii() and key.isdigit() and len(key) < 10


def _hang(made: dict[str, Any], path: list[str], value: Any) -> None:
    for part in path[:-1]:
        below = made.get(part)
        if not isinstance(below, dict):
            below = made[part] = {}
        made = below
    made[path[-1]] = value
