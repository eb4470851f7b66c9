"""What replay knows about policies for the simulator: quality of one run, turns of a closed-loop one."""

from __future__ import annotations

from dataclasses import replace

from ..traces.store import Store
from .closed.results import closed_run_for, extra_turns, is_closed
from .policies.registry import parse_policy
from .profile import PolicyProfile
from .results import find_run, summary

_PROFILED = (
    "n",
    "answer_accuracy",
    "answer_accuracy_low",
    "answer_accuracy_high",
    "full_accuracy",
    "difference",
    "difference_low",
    "difference_high",
)
# Of the tokens of turns that were old enough to be compacted: turn t is when turn t + delay closes.
_KEPT = (
    "SELECT avg(share) AS share FROM kept JOIN (SELECT cell_id, max(turn) AS last FROM kept WHERE run_id = $1 "
    "GROUP BY cell_id) USING (cell_id) WHERE run_id = $1 AND policy = $2 AND kind IN ('assistant', 'tool') "
    "AND turn + $3 <= last"
)


def profiles(store: Store, run_id: str | None = None) -> dict[str, PolicyProfile]:
    """What replay knows about each policy for the simulator, by the policy's text; empty if nothing was replayed.

    Quality is of the run named, else of the newest complete one that fed recorded turns; extra turns are of that run
    if it is a closed-loop one, else of the newest complete closed-loop run with its model. A closed-loop run in which
    the model was too weak gives neither.
    """
    complete = store.runs("replay", "complete")
    if run_id is None and not complete:
        return {}
    info = find_run(store, run_id) if run_id else next((run for run in complete if not is_closed(run)), complete[0])
    found = summary(store, info.run_id)
    weak = found["model_too_weak"] is not None
    closed = closed_run_for(store, info)
    out = {
        entry["policy"]: PolicyProfile(
            keep_measured=_kept(store, found["run"], entry["policy"]),
            policy=entry["policy"],
            run=found["run"],
            model=found["model"],
            label_scorers=tuple(found["label_scorers"]),
            **({} if weak else {name: entry[name] for name in _PROFILED}),
        )
        for entry in found["policies"]
    }
    for policy, (growth, source) in (extra_turns(store, closed) if closed else {}).items():
        known = out.get(policy, PolicyProfile(policy))
        out[policy] = replace(known, extra_turns=growth, extra_turns_source=source)
    return out


def _kept(store: Store, run_id: str, policy: str) -> float | None:
    """The share kept, of policies whose footprint is only a bound."""
    rule = parse_policy(policy)
    if rule.exact:
        return None
    return store.query(_KEPT, [run_id, policy, getattr(rule, "delay", 0)]).to_pylist()[0]["share"]
