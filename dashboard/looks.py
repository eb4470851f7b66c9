"""How policies are called and how they look in charts: a short name, and a colour with a shape and a dash of its own.

Nine hues and the grey of `full` go with eight shapes and seven dashes. The three numbers have no common factor, so
that 72 points and 63 lines are told apart before a pair comes back, and neighbours differ in both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import altair as alt

from ..errors import UserError
from ..replay.policies.options import split_spec
from ..replay.policies.registry import DEMO_POLICIES, parse_policy
from . import theme

SHAPES = ("square", "diamond", "triangle-right", "cross", "triangle-down", "triangle-up", "circle", "triangle-left")
DASHES = ((1, 0), (7, 3), (2, 2), (9, 3, 2, 3), (12, 4), (5, 2, 1, 2), (4, 5))
FULL = "full"
_FIRST = (
    "te(proxy=assistant,delay=1,keep=0.2)",
    "te(proxy=boundary,keep=0.2)",
    *(policy for policy in DEMO_POLICIES if policy != FULL),
)
_OWN = {policy: slot for slot, policy in enumerate(dict.fromkeys(_FIRST))}
"""Places of the demo's policies, which look the same on every page."""


@dataclass(frozen=True)
class Mark:
    """How one policy is drawn."""

    colour: str
    shape: str
    dash: tuple[int, ...]


@dataclass(frozen=True)
class Looks:
    """The policies of one page: `names` (short) and `marks` by policy, in the page's order."""

    names: Mapping[str, str]
    marks: Mapping[str, Mark]

    @staticmethod
    def of(policies: Sequence[str]) -> Looks:
        """Names and marks of `policies`, which should be all that the page speaks of: then its charts agree."""
        known = tuple(dict.fromkeys(policies))
        return Looks(short_names(known), marks(known))

    def colour(self, *, legend: alt.Legend | None = None) -> alt.Color:
        """Colours by `name`; none of the channels has a legend unless it is given one."""
        return alt.Color("name:N", title="policy", scale=self._scale([m.colour for m in self._all]), legend=legend)

    def shape(self, *, legend: alt.Legend | None = None) -> alt.Shape:
        """Shapes by `name`; with `colour` they share one legend."""
        return alt.Shape("name:N", title="policy", scale=self._scale([m.shape for m in self._all]), legend=legend)

    def dash(self, *, legend: alt.Legend | None = None) -> alt.StrokeDash:
        """Dashes by `name`; with `colour` they share one legend."""
        dashes = [list(m.dash) for m in self._all]
        return alt.StrokeDash("name:N", title="policy", scale=self._scale(dashes), legend=legend)

    @property
    def _all(self) -> list[Mark]:
        return [self.marks[policy] for policy in self.names]

    def _scale(self, values: Sequence[Any]) -> alt.Scale:
        return alt.Scale(domain=list(self.names.values()), range=list(values))


def marks(policies: Sequence[str]) -> dict[str, Mark]:
    """A mark for each policy, no two alike: `full` is a grey circle, the demo's policies keep places of their own."""
    taken = {_OWN[policy] for policy in policies if policy in _OWN}
    free = (slot for slot in count() if slot not in taken)
    slots = {policy: _OWN[policy] if policy in _OWN else next(free) for policy in sorted(policies) if policy != FULL}
    full = Mark(theme.GREY, "circle", DASHES[0])
    return {policy: full if policy == FULL else _mark(slots[policy]) for policy in policies}


def _mark(slot: int) -> Mark:
    hues = theme.HUES
    return Mark(hues[slot % len(hues)], SHAPES[slot % len(SHAPES)], DASHES[slot % len(DASHES)])


def short_names(policies: Sequence[str], *, keeps: bool = True) -> dict[str, str]:
    """What to call each policy where there is little room: its name, query source and keep ratio (if `keeps`).

    Policies that would be called the same get the options in which they differ, and their whole text if that does
    not tell them apart either. So no two names are the same.
    """
    names = {policy: _brief(policy, keeps) for policy in policies}
    for name in set(names.values()):
        alike = [policy for policy in policies if names[policy] == name]
        if len(alike) > 1:
            names |= _told_apart(name, alike)
    twice = {name for name in names.values() if list(names.values()).count(name) > 1}
    return {policy: policy if name in twice else name for policy, name in names.items()}


def keep_of(policy: str) -> str:
    """The keep ratio as text, empty where none is in force."""
    try:
        keep = parse_policy(policy).ratio
    except UserError:
        return ""
    return "" if keep is None else str(keep)


def _brief(policy: str, keeps: bool) -> str:
    name, options = _parts(policy)
    keep = keep_of(policy)
    rest = [] if keep else [f"{key}={value}" for key, value in options.items() if key not in ("proxy", "keep")]
    return " ".join(filter(None, [name, options.get("proxy"), keep if keeps else "", *rest]))


def _parts(policy: str) -> tuple[str, dict[str, str]]:
    """Name and options; of what is no policy, the whole text."""
    try:
        return split_spec(policy)
    except UserError:
        return policy, {}


def _told_apart(name: str, alike: Sequence[str]) -> dict[str, str]:
    """`name` with the options that are not the same in all that would be called so."""
    options = {policy: _parts(policy)[1] for policy in alike}
    said = dict.fromkeys(key for given in options.values() for key in given if key not in ("proxy", "keep"))
    differ = [key for key in said if len({given.get(key) for given in options.values()}) > 1]
    return {
        policy: " ".join([name, *(f"{key}={given[key]}" for key in differ if key in given)])
        for policy, given in options.items()
    }
