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
from .policies.registry import parse_policies, parse_policy
from .statistics import FEW, holm, sign_flip

CHOICE = "|"
MOST = 64
SCORES = {"answer_accuracy": "answer accuracy", "delta_nll": "−ΔNLL"}
"""What a sweep can be judged by, larger being better; the first that a run has."""

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


def with_sweeps(policies: Sequence[str], sweeps: Sequence[Sweep]) -> list[str]:
    """The policies and those of the sweeps, each once, `full` first. UserError as for any list of policies."""
    chosen = parse_policies(list(policies))
    swept = [parse_policy(text) for sweep in sweeps for text in sweep.policies()]
    chosen += [policy for policy in dict.fromkeys(swept) if policy not in chosen]
    return [str(policy) for policy in parse_policies([str(policy) for policy in chosen])]


def plateaus(
    specs: Sequence[str], rows: Sequence[Mapping[str, Any]], entries: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """One entry per sweep of a run, from its `rows` by policy and trajectory: sums, each with its `_count`.

    `entries` have the policies' peak KV. A setting's score on a trajectory is the share of right answers, or −ΔNLL in
    a run without answers: `score` says which. A sweep of which nothing was measured has n = 0 and nulls.
    """
    found = []
    for sweep in map(parse_sweep, specs):
        # Rows bear the policy as it was given; a setting may be spelled otherwise.
        names = {parse_policy(text): text for text in sweep.policies()}
        mine = [{**row, "policy": names.get(parse_policy(row["policy"]))} for row in rows]
        mine = [row for row in mine if row["policy"] is not None]
        score = next((name for name in SCORES if any(_score(row, name) is not None for row in mine)), "delta_nll")
        scores: dict[str, dict[str, float]] = {}
        for row in mine:
            if (value := _score(row, score)) is not None:
                scores.setdefault(row["policy"], {})[row["trajectory_id"]] = value
        held = {names[p]: e["kv_tokens_peak"] for e in entries if (p := parse_policy(e["policy"])) in names}
        found.append(plateau(sweep, scores, held, score) or _nothing(sweep))
    return found


def _score(row: Mapping[str, Any], name: str) -> float | None:
    total, count = row.get(name), row.get(f"{name}_count")
    if total is None or not count:
        return None
    return -total / count if name == "delta_nll" else total / count


def _nothing(sweep: Sweep) -> dict[str, Any]:
    unknown_yet = ("score", "peak", "peak_score", "centre", "centre_score", "plateau", "options")
    return {"sweep": sweep.spec, "n": 0, "few": True, "settings": len(sweep.settings), **dict.fromkeys(unknown_yet)}


def plateau(
    sweep: Sweep,
    scores: Mapping[str, Mapping[str, float]],
    sizes: Mapping[str, float | None],
    score: str = "answer_accuracy",
) -> dict[str, Any] | None:
    """The plateau of a sweep from `scores` (policy → trajectory → score, larger is better); None without any.

    `sizes` is each policy's peak KV: between equal centres the smaller one is used. `score` is the name in `SCORES` of
    what the scores are. Only trajectories that every setting has count.
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
        "score": score,
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


def sweep_text(found: Mapping[str, Any], accuracy: str = SCORES["answer_accuracy"]) -> str:
    """The plateau in words; `accuracy` is what the share of right answers is called in this run."""
    if not found["n"]:
        return f"sweep {found['sweep']}: no trajectory was measured under all of its settings"
    names = SCORES | {"answer_accuracy": accuracy}
    ranges = ", ".join(f"{key} {_range(values)}" for key, values in found["options"].items())
    lines = [
        f"sweep {found['sweep']}: {len(found['plateau'])} of {found['settings']} settings are not distinguishable from "
        f"the best ({ranges})",
        f"centre of the plateau: {found['centre']} ({found['centre_score']:.3f}); the best single setting, "
        f"{found['peak']} ({found['peak_score']:.3f}), is partly luck",
        f"judged by {names[found['score']]}, mean over {found['n']} trajectories that every setting has",
    ]
    if found["few"]:
        lines.append(f"only {found['n']} trajectories: fewer than {FEW} tell no settings apart")
    return "\n".join(lines)


def _range(values: Sequence[str]) -> str:
    return values[0] if len(values) == 1 else f"{values[0]}…{values[-1]}"
