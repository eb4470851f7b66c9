"""How much one action agrees with another: tool, arguments, single fields, words. Agreement is not accuracy."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any

from .action import Action

MOST_CHARACTERS = 2_000  # of each text, for the similarity: it costs their product


@dataclass(frozen=True, slots=True)
class Spoken:
    """What was said at one turn, and the calls in it; no actions where nothing could be parsed."""

    text: str
    actions: tuple[Action, ...]


@dataclass(frozen=True, slots=True)
class Agreement:
    """Of one action with another one. The first three are None where the other one is no action.

    `arguments_match`: names and arguments are equal. `field_share`: fields that are in both, of those that are in
    either. `text_similarity`: 2 M / T of the common pieces (Ratcliff and Obershelp), of the first 2,000 characters.
    """

    name_match: bool | None
    arguments_match: bool | None
    field_share: float | None
    text_similarity: float


def agreement(mine: Spoken, other: Spoken) -> Agreement:
    """Of `mine` with `other`. What could not be parsed agrees with no action."""
    similar = similarity(mine.text, other.text)
    if not other.actions:
        return Agreement(None, None, None, similar)
    same_names = [a.name for a in mine.actions] == [a.name for a in other.actions]
    same = same_names and [_spelled(a) for a in mine.actions] == [_spelled(a) for a in other.actions]
    return Agreement(same_names, same, _share(mine.actions, other.actions), similar)


def similarity(one: str, other: str) -> float:
    """0 to 1; 1 for equal texts, two empty ones among them."""
    matcher = SequenceMatcher(None, one[:MOST_CHARACTERS], other[:MOST_CHARACTERS], autojunk=False)
    return matcher.ratio()


def fields(actions: Sequence[Action]) -> dict[tuple[str, ...], str]:
    """Every leaf of the arguments by its path: place and name of the call, then keys and places. Values as JSON."""
    found: dict[tuple[str, ...], str] = {}
    for place, action in enumerate(actions):
        root = (str(place), action.name)
        if action.parsed is None:
            found[root] = action.arguments.strip()
        else:
            _flatten(action.parsed, root, found)
    return found


def _flatten(value: Any, path: tuple[str, ...], found: dict[tuple[str, ...], str]) -> None:
    if isinstance(value, Mapping) and value:
        for key, item in value.items():
            _flatten(item, (*path, f".{key}"), found)
    elif isinstance(value, (list, tuple)) and value:
        for number, item in enumerate(value):
            _flatten(item, (*path, f"[{number}]"), found)
    else:
        found[path] = _json(value)


def _share(mine: Sequence[Action], other: Sequence[Action]) -> float:
    one, two = fields(mine), fields(other)
    either = one.keys() | two.keys()
    return sum(one.get(path) == two.get(path) for path in either) / len(either)


def _spelled(action: Action) -> str:
    return action.arguments.strip() if action.parsed is None else _json(dict(action.parsed))


def _json(value: Any) -> str:
    """One spelling for equal values: 1 and true are not equal, 1 and 1.0 are not either."""
    return json.dumps(value, ensure_ascii=False, sort_keys=True)
