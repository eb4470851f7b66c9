"""Values of a TOML table, checked one by one: a UserError names the file, the table and the key."""

from __future__ import annotations

import types
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Union, get_args, get_origin

from ..errors import UserError, unknown

Kind = type | tuple[type, ...]
_BY_NAME: dict[Any, str] = {
    str: "a text",
    int: "a whole number",
    float: "a number",
    list: "a list of texts",
    bool: "true or false",
    dict: "a table",
    Path: "a path",
}


def known(raw: Mapping[str, Any], names: Collection[str], where: str) -> None:
    """UserError on a key that is not among `names`."""
    for key in raw:
        if key not in names:
            raise unknown("key", key, names, where)


def table(raw: Mapping[str, Any], key: str, where: str) -> Mapping[str, Any]:
    """The table `key`, empty where it is left out."""
    found = raw.get(key, {})
    if not isinstance(found, Mapping):
        raise UserError(f"{where}: {key}: give a table, [{key}]")
    return found


def of(raw: Mapping[str, Any], key: str, kind: Kind, where: str, *, least: int | None = None) -> Any:
    """The value of `key`, None where it is left out. Texts are not empty, alone or in a list."""
    value = raw.get(key)
    if value is None:
        return None
    kinds = kind if isinstance(kind, tuple) else (kind,)
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        raise UserError(f"{where}: {key} = {value!r}: give {_wanted(kinds)}")
    if isinstance(value, list) and not all(isinstance(item, str) for item in value):
        raise UserError(f"{where}: {key} = {value!r}: give {_BY_NAME[list]}")
    if value == "" or (isinstance(value, list) and "" in value):
        raise UserError(f"{where}: {key} = {value!r}: an empty text names nothing")
    if least is not None and isinstance(value, (int, float)) and value < least:
        raise UserError(f"{where}: {key} = {value}: give {max(1, least)} or more")
    return value


def of_hint(raw: Mapping[str, Any], key: str, hint: Any, where: str) -> Any:
    """The value of `key` for a parameter with this type hint."""
    return of(raw, key, tuple(dict.fromkeys(_kinds(hint))), where)


def share(raw: Mapping[str, Any], key: str, where: str, default: float | None) -> float | None:
    """A number of 0 or more; None for false."""
    value = raw.get(key, default)
    if value is False:
        return None
    if value is not None and (isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1e9):
        raise UserError(f"{where}: {key} = {value!r}: a number of 0 or more, or false")
    return None if value is None else float(value)


def _kinds(hint: Any) -> list[type]:
    """The types of TOML that may stand for a type hint: a whole number for any number, a text for a path."""
    if get_origin(hint) in (Union, types.UnionType):
        return [kind for part in get_args(hint) if part is not types.NoneType for kind in _kinds(part)]
    if isinstance(origin := get_origin(hint), type):
        return [dict] if issubclass(origin, Mapping) else [list] if issubclass(origin, Sequence) else [origin]
    return {float: [int, float], Path: [str]}.get(hint, [hint])


def _wanted(kinds: Sequence[type]) -> str:
    if set(kinds) == {int, float}:
        return _BY_NAME[float]
    return " or ".join(_BY_NAME[kind] for kind in kinds)
