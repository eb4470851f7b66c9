"""What replay knows about policies for the simulator: quality of one run, turns of a closed-loop one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..traces.manifest import RunInfo
from ..traces.store import Store
from .closed.results import extra_turns, is_closed
from .looks import KEY
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

    Quality is of runs that fed recorded turns, extra turns are of closed-loop runs: of the run named if it is of that
    kind, else of the newest complete one with the same model. Without a name it begins with the newest that fed
    recorded turns, if there is any.
    """
    complete = store.runs("replay", "complete")
    if run_id is None and not complete:
        return {}
    info = find_run(store, run_id) if run_id else next((run for run in complete if not is_closed(run)), complete[0])
    other = _partner(complete, info)
    recorded, closed = (other, info) if is_closed(info) else (info, other)
    out = _quality(store, recorded.run_id) if recorded else {}
    for policy, (growth, source) in (extra_turns(store, closed) if closed else {}).items():
        out[policy] = replace(out.get(policy, PolicyProfile(policy)), extra_turns=growth, extra_turns_source=source)
    return out


def _partner(complete: Sequence[RunInfo], info: RunInfo) -> RunInfo | None:
    """The newest of the runs with the same model that is closed-loop where `info` is not, and the other way round."""
    model = info.config.get("model")
    same = (run for run in complete if run.config.get("model") == model)
    return next((run for run in same if is_closed(run) != is_closed(info)), None)


def _quality(store: Store, run_id: str) -> dict[str, PolicyProfile]:
    found = summary(store, run_id)
    return {
        entry["policy"]: PolicyProfile(
            keep_measured=_kept(store, found["run"], entry["policy"]),
            policy=entry["policy"],
            run=found["run"],
            model=found["model"],
            label_scorers=tuple(found["label_scorers"]),
            until_decided=bool(found[KEY]),
            **{name: entry[name] for name in _PROFILED},
        )
        for entry in found["policies"]
    }


def _kept(store: Store, run_id: str, policy: str) -> float | None:
    """The share kept, of policies whose footprint is only a bound."""
    rule = parse_policy(policy)
    if rule.exact:
        return None
    return store.query(_KEPT, [run_id, policy, getattr(rule, "delay", 0)]).to_pylist()[0]["share"]
