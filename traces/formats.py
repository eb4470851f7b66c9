"""The table of trace formats. A file's format is found by trying its first records, never by its name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ..errors import InputError, UserError, unknown
from .readers import mooncake, openai_chat, tau_bench
from .trajectory import Request, Trajectory


@dataclass(frozen=True, slots=True)
class Format:
    """One reader. `sniff` says whether a parsed record looks like it; `read` makes the noun or raises Reject."""

    name: str
    title: str
    kind: Literal["trajectories", "requests"]
    sniff: Callable[[Any], bool]
    read: Callable[[Any], Trajectory | Request]


FORMATS = {
    f.name: f
    for f in (
        Format(openai_chat.NAME, openai_chat.TITLE, "trajectories", openai_chat.sniff, openai_chat.read),
        Format(tau_bench.NAME, tau_bench.TITLE, "trajectories", tau_bench.sniff, tau_bench.read),
        Format(mooncake.NAME, mooncake.TITLE, "requests", mooncake.sniff, mooncake.read),
    )
}


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
    if isinstance(first, dict):
        keys = ", ".join(str(key)[:40] for key in list(first)[:6]) + (", …" if len(first) > 6 else "")
        return f"an object with the keys {keys}" if first else "an empty object"
    kinds = {list: "a list", str: "a string", type(None): "null", bool: "true or false"}
    return kinds.get(type(first), "a number")
