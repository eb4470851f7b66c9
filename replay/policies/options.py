"""Policies as text: `name(option=value,…)` parsed into frozen dataclasses and printed back.

An option is a dataclass field made by `option()`. Printing gives the options that were given, in class
order, without spaces; equality ignores which were given explicitly.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any, TypeVar, cast

from ...errors import UserError, unknown

P = TypeVar("P")
MOST_DECIMALS = 15
_NUMBER = re.compile(rf"[0-9]{{1,9}}(\.[0-9]{{0,{MOST_DECIMALS}}})?|\.[0-9]{{1,{MOST_DECIMALS}}}")
_SPEC = re.compile(r"^\s*([a-z_][a-z0-9_]*)\s*(?:\(\s*(.*?)\s*\))?\s*$", re.DOTALL)


def option(default: Any, doc: str, *, parse: Callable[[str], Any], show: str) -> Any:
    """A policy option: `parse` reads its text (raising ValueError with a reason), `show` names its type."""
    return dataclasses.field(default=default, metadata={"doc": doc, "parse": parse, "show": show})


def ratio(text: str) -> Decimal:
    """A keep ratio in [0, 1], exact: 0.2 is one fifth, not the nearest double."""
    return decimal_in("0", "1")(text)


def decimal_in(low: str, high: str) -> Callable[[str], Decimal]:
    """A decimal number in the closed interval [low, high], with few enough digits that products stay exact."""

    def parse(text: str) -> Decimal:
        if not _NUMBER.fullmatch(text) or not Decimal(low) <= Decimal(text) <= Decimal(high):
            raise ValueError(f"a number between {low} and {high}, at most {MOST_DECIMALS} decimals")
        return Decimal(text)

    return parse


def integer(least: int) -> Callable[[str], int]:
    """A whole number of at least `least`."""

    def parse(text: str) -> int:
        if not re.fullmatch(r"[0-9]{1,9}", text) or int(text) < least:
            raise ValueError(f"a whole number of at least {least}")
        return int(text)

    return parse


def choice(*words: str) -> Callable[[str], str]:
    """One of `words`."""

    def parse(text: str) -> str:
        if text not in words:
            raise ValueError(f"one of {', '.join(words)}")
        return text

    return parse


def true_false(text: str) -> bool:
    """`true` or `false`."""
    return choice("true", "false")(text) == "true"


def mix(*words: str) -> Callable[[str], str]:
    """One or several of `words` joined by `+`, each at most once; printed in the order given."""

    def parse(text: str) -> str:
        parts = text.split("+")
        if any(part not in words for part in parts) or len(set(parts)) != len(parts):
            raise ValueError(f"one or more of {', '.join(words)}, joined by +")
        return text

    return parse


def show_value(value: Any) -> str:
    """The text form of an option's value."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Decimal):
        return format(value.normalize(), "f")
    return str(value)


def split_spec(text: str) -> tuple[str, dict[str, str]]:
    """`te(delay=1,keep=0.2)` → `("te", {"delay": "1", "keep": "0.2"})`. UserError on anything malformed."""
    match = _SPEC.match(text)
    if not match:
        raise UserError(f"policy {text!r}: write it as name or name(option=value,…)")
    pairs: dict[str, str] = {}
    for part in filter(None, (match.group(2) or "").split(",")):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or not key or not value:
            raise UserError(f"policy {text!r}: {part.strip()!r} is not option=value")
        if key in pairs:
            raise UserError(f"policy {text!r}: option {key!r} is given twice")
        pairs[key] = value
    return match.group(1), pairs


def build(cls: type[P], pairs: dict[str, str], text: str) -> P:
    """An instance of the policy class from its option texts; UserError names the known options."""
    known = {f.name: f for f in dataclasses.fields(cast(Any, cls)) if "parse" in f.metadata}
    values: dict[str, Any] = {}
    for key, raw in pairs.items():
        if key not in known:
            raise unknown("option", key, known, f"policy {text!r}")
        try:
            values[key] = known[key].metadata["parse"](raw)
        except ValueError as error:
            raise UserError(f"policy {text!r}: {key}={raw} must be {error}") from None
    return cast(Any, cls)(**values, given=frozenset(values))


def in_order(cls: type) -> list[dataclasses.Field[Any]]:
    """The options of a policy class in the order they are printed: `leading` ones first, then as they are declared."""
    leading = getattr(cls, "leading", ())
    found = [f for f in dataclasses.fields(cls) if "parse" in f.metadata]
    return sorted(found, key=lambda f: leading.index(f.name) if f.name in leading else len(leading))


def spell(policy: Any) -> str:
    """The policy as text, with the options that were given, in class order, without spaces."""
    parts = [
        f"{f.name}={show_value(getattr(policy, f.name))}" for f in in_order(type(policy)) if f.name in policy.given
    ]
    return f"{policy.name}({','.join(parts)})" if parts else str(policy.name)
