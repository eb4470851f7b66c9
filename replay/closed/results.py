"""What closed-loop runs found: turns, searches, repeats, tokens, answers, by policy and paired with `full`.

Figures are ratios of sums over trajectories, with the trajectory as the unit of their intervals.

Extra turns are of pairs of runs of one trajectory in which one answered by the turn at which the other answered or was
cut, by the turn limit or the window; who was cut counts with the turns it had. A run that broke off by itself says
nothing about how many were needed. Both runs are held to one rule: if `full` had to answer and the policy had not, a
policy that does what `full` does, but for chance, would seem to take more turns. Cuts leave the figure too near to 0.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from ...traces.manifest import RunInfo
from ...traces.store import Store
from ..statistics import FEW, Estimate, difference, estimate

Row = dict[str, Any]

GROUPS = {"policy": "NULL", "family": "family"}
# Ratios without an interval: what, and per what (None: per run).
_RATIOS: dict[str, tuple[str, str | None]] = {
    "calls": ("calls", None),
    "calls_exact": ("calls_exact", "calls"),
    "calls_searched": ("calls_searched", "calls"),
    "tool_errors": ("calls_error", "calls"),
    "repeated_calls": ("repeated_calls", "calls"),
    "searches": ("searches", None),
    "repeated_searches": ("repeated_searches", "searches"),
    "near_repeats": ("near_repeats", "searches"),
    "tokens_generated": ("generated_tokens", None),
}
_INTERVALS = ("turns_mean", "extra_turns", "answered", "closed_accuracy", "closed_difference")
NOT_MEASURED: Row = {
    **{f"{name}{end}": None for name in _INTERVALS for end in ("", "_low", "_high")},
    **dict.fromkeys(_RATIOS),
    **dict.fromkeys(
        ("extra_turns_recorded", "extra_turns_n", "extra_turns_of", "extra_turns_cut", "closed_n", "end_reasons")
    ),
}
_CELLS = (
    "SELECT policy, {group} AS grp, trajectory_id, turns, recorded_turns, end_reason, generated_tokens, calls, "
    "calls_exact, calls_searched, calls_error, repeated_calls, searches, repeated_searches, near_repeats, "
    "answer_score FROM cells WHERE run_id = $1 AND end_reason IS NOT NULL AND status = 'ok' ORDER BY ALL"
)
_ENDS = (
    "SELECT policy, {group} AS grp, coalesce(end_reason, status) AS reason, count(*) AS runs FROM cells "
    "WHERE run_id = $1 AND mode = 'closed' AND status IN ('ok', 'failed') GROUP BY ALL ORDER BY ALL"
)
_CUTS = ("turn_limit", "window")
MOST_WITHOUT = 0.5


def is_closed(info: RunInfo) -> bool:
    """Whether the model acted by itself in a run."""
    return info.config.get("mode") == "closed"


def behaviour_entries(store: Store, run_id: str, by: str = "policy") -> dict[tuple[Any, str], Row]:
    """The figures by (group, policy); empty for other runs, and for a grouping that is not of whole runs."""
    if by not in GROUPS:
        return {}
    members: dict[tuple[Any, str], list[Row]] = defaultdict(list)
    for row in store.query(_CELLS.format(group=GROUPS[by]), [run_id]).to_pylist():
        members[row["grp"], row["policy"]].append(row)
    ends: dict[tuple[Any, str], dict[str, int]] = defaultdict(dict)
    for row in store.query(_ENDS.format(group=GROUPS[by]), [run_id]).to_pylist():
        ends[row["grp"], row["policy"]][row["reason"]] = row["runs"]
    return {
        key: _entry(key[1], members[key], members.get((key[0], "full"), [])) | {"end_reasons": reasons}
        for key, reasons in ends.items()
    }


def model_too_weak(store: Store, run_id: str) -> str | None:
    """Why no behaviour of a run says anything about a policy: `full` itself mostly ends without an answer."""
    rows = store.query(_ENDS.format(group="NULL"), [run_id]).to_pylist()
    ends = {row["reason"]: row["runs"] for row in rows if row["policy"] == "full"}
    runs = sum(ends.values())
    without = runs - ends.pop("answered", 0)
    if without <= MOST_WITHOUT * runs:
        return None
    said = ", ".join(f"{reason} {count}" for reason, count in ends.items())
    return (
        f"model too weak: full itself ended without an answer in {without} of {runs} runs ({said}), so how policies "
        "change behaviour cannot be told; no profile takes these figures"
    )


def extra_turns(store: Store, info: RunInfo) -> dict[str, tuple[float | None, str]]:
    """By policy: the growth in turns that a closed-loop run measured, and where it is from, or why there is none.

    None if the model was too weak, and for fewer than ten pairs of runs that tell; growth below 0 counts as none.
    """
    weak = model_too_weak(store, info.run_id)
    where = f"closed-loop run {info.run_id} with {info.config.get('model')}"
    found: dict[str, tuple[float | None, str]] = {}
    for (_, policy), entry in behaviour_entries(store, info.run_id).items():
        value, pairs = entry["extra_turns"], entry["extra_turns_n"]
        if policy == "full":
            continue
        if weak or value is None or pairs < FEW:
            few = f"{pairs or 0} of {entry['extra_turns_of'] or 0} pairs with full tell, fewer than {FEW}"
            found[policy] = None, f"assumed none: {where}: {'model too weak' if weak else few}"
            continue
        low, high, of = (entry[f"extra_turns_{name}"] for name in ("low", "high", "of"))
        cut = f", {entry['extra_turns_cut']} of them cut at a limit" if entry["extra_turns_cut"] else ""
        span = f"95 % interval {low:+.0%} to {high:+.0%}, {pairs} of {of} pairs with full tell{cut}"
        fewer = ", counted as none" if value < 0 else ""
        found[policy] = max(0.0, value), f"{where}: {value:+.0%} turns, {span}{fewer}"
    return found


def _entry(policy: str, rows: Sequence[Row], full: Sequence[Row]) -> Row:
    out: Row = dict(NOT_MEASURED)
    turns = estimate([row["turns"] for row in rows])
    answered = estimate([row["end_reason"] == "answered" for row in rows])
    judged = [row for row in rows if row["answer_score"] is not None]
    accuracy = estimate([row["answer_score"] for row in judged])
    out |= _spread("turns_mean", turns) | _spread("answered", answered) | _spread("closed_accuracy", accuracy)
    out["closed_n"] = len(judged)
    for name, (top, bottom) in _RATIOS.items():
        per = len(rows) if bottom is None else sum(row[bottom] for row in rows)
        out[name] = sum(row[top] for row in rows) / per if per else None
    recorded = sum(row["recorded_turns"] for row in rows)
    out["extra_turns_recorded"] = sum(row["turns"] for row in rows) / recorded - 1 if recorded else None
    if policy != "full":
        out |= _paired(rows, {row["trajectory_id"]: row for row in full})
    return out


def _paired(rows: Sequence[Row], full: dict[str, Row]) -> Row:
    """Against full's run of the same trajectories."""
    both = [(row, full[row["trajectory_id"]]) for row in rows if row["trajectory_id"] in full]
    telling = [pair for pair in both if _tells(pair)]
    growth = estimate([mine["turns"] for mine, _ in telling], [theirs["turns"] for _, theirs in telling])
    ends = [None if end is None else end - 1 for end in (growth.value, growth.low, growth.high)]
    scored = [pair for pair in both if None not in (pair[0]["answer_score"], pair[1]["answer_score"])]
    change = difference([m["answer_score"] for m, _ in scored], [theirs["answer_score"] for _, theirs in scored])
    return {
        **dict(zip(("extra_turns", "extra_turns_low", "extra_turns_high"), ends, strict=True)),
        "extra_turns_n": growth.n,
        "extra_turns_of": len(both),
        "extra_turns_cut": sum(any(run["end_reason"] in _CUTS for run in pair) for pair in telling),
        **_spread("closed_difference", change),
    }


def _tells(pair: Sequence[Row]) -> bool:
    """Whether one of two runs answered, and the other did, too, or was cut no earlier."""
    answered = [run["turns"] for run in pair if run["end_reason"] == "answered"]
    cut = [run["turns"] for run in pair if run["end_reason"] in _CUTS]
    return len(answered) == 2 or (len(answered) == len(cut) == 1 and answered[0] <= cut[0])


def _spread(name: str, found: Estimate) -> Row:
    return {name: found.value, f"{name}_low": found.low, f"{name}_high": found.high}
