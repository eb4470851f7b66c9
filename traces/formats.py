"""The table of trace formats. A file's format is found by trying its first records, never by its name."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Sequence
from typing import Any

from ..errors import InputError, UserError, unknown
from . import readers
from .reading import Format

__all__ = ["FORMATS", "Format", "detect", "named"]


def _formats() -> dict[str, Format]:
    """Every module of `readers` that has a FORMAT: adding a file there adds a format."""
    names = sorted(module.name for module in pkgutil.iter_modules(readers.__path__))
    modules = [importlib.import_module(f".{name}", readers.__name__) for name in names]
    found = [module.FORMAT for module in modules if hasattr(module, "FORMAT")]
    return {format.name: format for format in found}


FORMATS = _formats()


def named(name: str) -> Format:
    """The format of that name. UserError lists the known ones."""
    if name not in FORMATS:
        raise unknown("trace format", name, FORMATS)
    return FORMATS[name]


def detect(records: Sequence[Any], where: str) -> Format:
    """The one format that at least half of the first records look like; values that are no records do not count.

    UserError if several do, naming them; InputError if none does, saying what was seen.
    """
    whole = [record for record in records if isinstance(record, (dict, list)) and record]
    found = [f for f in FORMATS.values() if whole and 2 * sum(map(f.sniff, whole)) >= len(whole)]
    if len(found) == 1:
        return found[0]
    if found:
        names = ", ".join(f.name for f in found)
        raise UserError(f"{where} could be any of: {names}; choose with --format")
    raise InputError(
        f"{where}: no known format; its first record is {_seen(records)}. Known formats: {', '.join(FORMATS)} "
        "(`kvmill traces formats`); choose with --format if it is one of them"
    )


def _seen(records: Sequence[Any]) -> str:
    if not records:
        return "no JSON"
    first = records[0]
    if isinstance(first, dict) and set(first) == {"member", "value"}:
        return f"{first['member']} in a zip archive, of which only Inspect's logs are read; unpack it first"
    if isinstance(first, dict):
        keys = ", ".join(str(key)[:40] for key in list(first)[:6]) + (", …" if len(first) > 6 else "")
        return f"an object with the keys {keys}" if first else "an empty object"
    kinds = {list: "a list", str: "a string", type(None): "null", bool: "true or false"}
    return kinds.get(type(first), "a number")
