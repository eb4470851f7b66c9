"""A sweep over a policy's options, and the plateau of its results: settings that do as well as the best one.

`te(delay=1|2|3,keep=0.1|0.2)` stands for six policies. The best single setting of many is partly luck; what can be
relied on is a region. Two settings are neighbours if they differ by one step in one option; the plateau is what can be
reached from the best setting through neighbours that are not distinguishably worse (paired sign-flip test on
trajectories, Holm over the sweep). Its centre, the member with most neighbours in it, is what to use.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import UserError
from .policies.options import split_spec
from .policies.registry import parse_policy
from .statistics import FEW, holm, sign_flip

CHOICE = "|"
MOST = 64
_LEVEL = 0.05


@dataclass(frozen=True, slots=True)
class Sweep:
    """`settings`: policies by their place on the grid, one index per swept option."""

    spec: str
    name: str
    options: tuple[tuple[str, tuple[str, ...]], ...]
    settings: Mapping[tuple[int, ...], str]

    def policies(self) -> list[str]:
        """All policies, as they are printed."""
        return list(self.settings.values())


def parse_sweep(spec: str) -> Sweep:
    """The policies of a sweep. UserError for an unknown policy or value, a sweep without choices, and a huge one."""
    name, pairs = split_spec(spec)
    swept = tuple((key, tuple(value.split(CHOICE))) for key, value in pairs.items() if CHOICE in value)
    if not swept:
        raise UserError(f"--sweep {spec}: give values to choose from, as te(delay=1|2|3,keep=0.1|0.2)")
    grid = list(itertools.product(*(range(len(values)) for _, values in swept)))
    if len(grid) > MOST:
        raise UserError(f"--sweep {spec}: {len(grid)} policies; at most {MOST} in one sweep")
    settings: dict[tuple[int, ...], str] = {}
    for place in grid:
        chosen = {key: values[i] for (key, values), i in zip(swept, place, strict=True)}
        text = ",".join(f"{key}={chosen.get(key, value)}" for key, value in pairs.items())
        settings[place] = str(parse_policy(f"{name}({text})"))
    if len(set(settings.values())) < len(settings):
        raise UserError(f"--sweep {spec}: two of its settings are the same policy")
    return Sweep(spec, name, swept, settings)


def plateau(
    sweep: Sweep, scores: Mapping[str, Mapping[str, float]], sizes: Mapping[str, float | None]
) -> dict[str, Any] | None:
    """The plateau of a sweep from `scores` (policy → trajectory → score, larger is better); None without any.

    `sizes` is each policy's peak KV: between equal centres the smaller one is used. Only trajectories that every
    setting has count.
    """
    there = {place: policy for place, policy in sweep.settings.items() if scores.get(policy)}
    if not there:
        return None
    shared = sorted(set.intersection(*(set(scores[policy]) for policy in there.values())))
    if not shared:
        return None
    values = {place: [scores[policy][t] for t in shared] for place, policy in there.items()}
    means = {place: sum(row) / len(row) for place, row in values.items()}
    peak = max(sorted(there), key=lambda place: means[place])
    others = [place for place in there if place != peak]
    tested = [sign_flip([a - b for a, b in zip(values[p], values[peak], strict=True)]) for p in others]
    worse = {p for p, adjusted in zip(others, holm(tested), strict=True) if adjusted <= _LEVEL}
    region = _reached(peak, set(there) - worse)
    centre = min(region, key=lambda p: (-_neighbours(p, region), sizes.get(there[p]) or float("inf"), p))
    return {
        "sweep": sweep.spec,
        "n": len(shared),
        "few": len(shared) < FEW,
        "peak": there[peak],
        "peak_score": means[peak],
        "centre": there[centre],
        "centre_score": means[centre],
        "plateau": [there[place] for place in sorted(region)],
        "settings": len(sweep.settings),
        "options": {
            key: [choices[i] for i in sorted({place[axis] for place in region})]
            for axis, (key, choices) in enumerate(sweep.options)
        },
    }


def _reached(peak: tuple[int, ...], good: set[tuple[int, ...]]) -> set[tuple[int, ...]]:
    """What is reached from the peak through neighbours that are good."""
    region, edge = {peak}, [peak]
    while edge:
        place = edge.pop()
        fresh = [other for other in _around(place) if other in good and other not in region]
        region.update(fresh)
        edge += fresh
    return region


def _neighbours(place: tuple[int, ...], region: set[tuple[int, ...]]) -> int:
    return sum(other in region for other in _around(place))


def _around(place: tuple[int, ...]) -> list[tuple[int, ...]]:
    return [(*place[:axis], place[axis] + step, *place[axis + 1 :]) for axis in range(len(place)) for step in (-1, 1)]


def sweep_text(found: Mapping[str, Any]) -> str:
    """The plateau in words."""
    ranges = ", ".join(f"{key} {_range(values)}" for key, values in found["options"].items())
    lines = [
        f"sweep {found['sweep']}: {len(found['plateau'])} of {found['settings']} settings are not distinguishable from "
        f"the best ({ranges})",
        f"centre of the plateau: {found['centre']} ({found['centre_score']:.3f}); the best single setting, "
        f"{found['peak']} ({found['peak_score']:.3f}), is partly luck",
    ]
    if found["few"]:
        lines.append(f"only {found['n']} trajectories: fewer than {FEW} tell no settings apart")
    return "\n".join(lines)


def _range(values: Sequence[str]) -> str:
    return values[0] if len(values) == 1 else f"{values[0]}…{values[-1]}"
