"""Results of a replay run: one entry per policy, computed from the store's rows, with intervals over trajectories.

Every figure is a ratio of sums over trajectories (right answers over probes, nats over scored tokens); what was not
measured is None, and so is accuracy on a family that is `too_weak`. Text output is in `report.py`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from ..errors import UserError, unknown
from ..traces.manifest import RunInfo
from ..traces.store import Store
from .action_results import NOT_MEASURED, action_entries
from .closed.results import NOT_MEASURED as NOT_ACTED
from .closed.results import behaviour_entries, is_closed, model_too_weak
from .last_answer import NOT_MEASURED as NOT_ANSWERED
from .last_answer import answer_entries
from .looks import KEY
from .noninferior import detectable
from .scored import NO_GUESSES, guesses, scorers
from .statistics import FEW, Estimate, changes, estimates, holm, sign_flips
from .sweep import plateaus
from .too_weak import too_weak, without_accuracy

Row = dict[str, Any]
_Pair = tuple[Row, Row]
_Paired = tuple[Estimate, float | None, float | None]
_AllPaired = tuple[list[_Pair], _Paired, _Paired]
BY = ("policy", "turn", "age", "kind", "family")
_ASKED = ("actions", "temperature", "max_action_tokens", "seed_turns", "max_turns")

# One row per policy × group × trajectory. A sum and the count it is divided by are null or filled together.
_PER_TOKEN = ("nll", "delta_nll", "kl", "top1_agreement")
_PER_PROBE = ("answer_accuracy", "answer_ll", "answer_margin")
_WORK = ("compaction_flops", "reprefill_tokens", "copied_tokens")
_MEANS = ("kv_tokens_peak", "kv_tokens_final", "kv_bytes_peak", "aux_bytes_peak", "logical_tokens", *_WORK)
_SPEEDS = ("ttft_s", "tpot_s", "prefill_s_per_turn", "compaction_s_per_turn", "decode_s_per_token", "turn_spread")


def _sums(names: Sequence[str], count: str) -> str:
    pairs = [f"sum({n} * {count}) AS {n}, sum({count}) FILTER ({n} IS NOT NULL)::BIGINT AS {n}_count" for n in names]
    return ", ".join(pairs)


def _averages(names: Sequence[str]) -> str:
    return ", ".join(f"avg({name}) AS {name}" for name in names)


_CELLS = (
    f"SELECT policy, {{group}} AS grp, trajectory_id, {_sums(_PER_TOKEN, 'scored_tokens')}, "
    f"{_sums(_PER_PROBE, 'probes')}, {_averages(_MEANS)} FROM cells "
    "WHERE run_id = $1 AND measure = 'quality' AND status = 'ok' GROUP BY ALL ORDER BY ALL"
)
_TURNS = (
    f"SELECT policy, turn AS grp, trajectory_id, {_sums(_PER_TOKEN, 'scored_tokens')}, "
    "avg(kv_tokens) AS kv_tokens, avg(kv_tokens_peak) AS kv_tokens_peak, avg(logical_tokens) AS logical_tokens "
    "FROM turn_metrics WHERE run_id = $1 AND measure = 'quality' GROUP BY ALL ORDER BY ALL"
)
_PROBES = (
    "SELECT policy, {group} AS grp, trajectory_id, sum(correct::INT)::BIGINT AS answer_accuracy, count(*) AS "
    "answer_accuracy_count, sum(answer_ll) AS answer_ll, count(answer_ll) AS answer_ll_count, sum(answer_margin) AS "
    "answer_margin, count(answer_margin) AS answer_margin_count FROM probes WHERE run_id = $1 GROUP BY ALL ORDER BY ALL"
)
_QUERIES = {
    "policy": _CELLS.format(group="NULL"),
    "family": _CELLS.format(group="family"),
    "turn": _TURNS,
    "age": _PROBES.format(group="age_turns"),
    "kind": _PROBES.format(group="kind"),
}
_STATUS = (
    "SELECT policy, count(*) FILTER (status = 'ok') AS ok, count(*) FILTER (status = 'failed') AS failed, "
    "count(*) FILTER (status = 'skipped') AS skipped, min(error) FILTER (status = 'failed') AS error "
    "FROM cells WHERE run_id = $1 GROUP BY policy"
)
_SKIPPED = (
    "SELECT error AS reason, count(DISTINCT trajectory_id) AS trajectories, count(*) AS cells FROM cells "
    "WHERE run_id = $1 AND status = 'skipped' GROUP BY error ORDER BY cells DESC, reason"
)
_CUT = (
    "SELECT trajectory_id, max(cut_turns) AS cut_turns FROM cells WHERE run_id = $1 AND cut_turns > 0 "
    "GROUP BY trajectory_id ORDER BY trajectory_id"
)
_LATENCY = (
    f"SELECT policy, count(DISTINCT trajectory_id) AS latency_n, {_averages(_SPEEDS)} FROM cells "
    "WHERE run_id = $1 AND measure = 'latency' AND status = 'ok' GROUP BY policy"
)
# Like the latency columns of `cells`: over all timed calls but the first turn's.
_HELD = (
    "SELECT policy, avg(held) AS kv_tokens_mean FROM (SELECT policy, trajectory_id, avg(kv_tokens) AS held "
    "FROM turn_metrics WHERE run_id = $1 AND measure = 'quality' GROUP BY ALL) GROUP BY policy"
)
_TURN_TIME = (
    "SELECT policy, avg(ttft_s + decode_s) AS turn_s FROM turn_metrics "
    "WHERE run_id = $1 AND measure = 'latency' AND turn > 0 GROUP BY policy"
)


def find_run(store: Store, run_id: str | None = None, *, recorded: bool = False) -> RunInfo:
    """The replay run asked for, else the newest complete one. UserError if there is none.

    `recorded`: one whose tokens are the recorded ones, not a closed-loop run.
    """
    if run_id is not None:
        info = store.info(run_id)
        if info.kind != "replay":
            raise UserError(f"run {run_id} is of kind {info.kind}; results are about replay runs")
        if recorded and is_closed(info):
            raise UserError(f"run {run_id} is a closed-loop run: name one of --mode teacher or stepwise")
        return info
    complete = store.runs("replay", "complete")
    if newest := next((info for info in complete if not (recorded and is_closed(info))), None):
        return newest
    begun = [info for info in store.runs("replay") if info not in complete]
    hint = f"; {begun[0].run_id} is not complete: name it, or go on with --resume" if begun else ""
    what = "replay run of recorded turns" if recorded else "replay run"
    raise UserError(f"no complete {what} in {store}: run `kvmill replay` first{hint}")


def summary(store: Store, run_id: str | None = None, by: str = "policy") -> dict[str, Any]:
    """The object that `kvmill results --json` prints (DESIGN.md section 8).

    `policies` has one entry per policy, `full` first as it was run. With another `by` than `policy`, `groups` has
    one entry per policy and turn, age of the fact, kind of probe, or family. UserError without such a run.
    """
    if by not in BY:
        raise unknown("grouping", by, BY, "--by")
    info = find_run(store, run_id)
    weak = too_weak(store, info.run_id)
    measured = without_accuracy(_rows(store, _QUERIES["policy"], info.run_id), weak)
    entries = _entries(measured)
    actions = action_entries(store, info.run_id, "policy", info.config.get("max_action_tokens"))
    status = {row["policy"]: row for row in _rows(store, _STATUS, info.run_id)}
    acted, answered = behaviour_entries(store, info.run_id), answer_entries(store, info.run_id)
    guessed = guesses(store, info.run_id)
    speeds: dict[str, Row] = defaultdict(dict)
    for query in (_LATENCY, _TURN_TIME, _HELD):
        for row in _rows(store, query, info.run_id):
            speeds[row["policy"]] |= row
    policies = []
    for policy in _order(info, [*status]):
        quality = next((e for e in entries if e["policy"] == policy), None) or _entry(policy)
        counts = status.get(policy, {})
        policies.append(
            quality
            | actions.get((None, policy), NOT_MEASURED)
            | acted.get((None, policy), NOT_ACTED)
            | answered.get((None, policy), NOT_ANSWERED)
            | guessed.get(policy, NO_GUESSES)
            | {name: speeds[policy].get(name) for name in (*_SPEEDS, "turn_s", "kv_tokens_mean")}
            | {
                "latency_n": speeds[policy].get("latency_n", 0),
                "n": quality["n"] or speeds[policy].get("latency_n", 0),
                "status": {name: counts.get(name, 0) for name in ("ok", "failed", "skipped")},
                "error": counts.get("error"),
            }
        )
    out = {
        "run": info.run_id,
        "state": info.state,
        "model": info.config.get("model"),
        "device": info.device or info.config.get("device"),
        "dtype": info.config.get("dtype"),
        "threads": info.config.get("threads"),
        "mode": info.config.get("mode"),
        **{name: info.config.get(name) for name in _ASKED},
        "model_too_weak": model_too_weak(store, info.run_id) if is_closed(info) else None,
        "layers": info.config.get("layers"),
        "equal_size": info.config.get("equal_size"),
        "equal_by": info.config.get("equal_by"),
        "seed": info.seed,
        "by": by,
        KEY: info.config.get(KEY),
        "label_scorers": scorers(store, info.run_id),
        "policies": policies,
        "sweeps": plateaus(info.config.get("sweeps", []), measured, entries),
        "skipped": _rows(store, _SKIPPED, info.run_id),
        "cut": _rows(store, _CUT, info.run_id),
        "accuracy_not_shown": [{name: family[name] for name in ("family", "n", "reason")} for family in weak],
    }
    if by != "policy":
        found = without_accuracy(_rows(store, _QUERIES[by], info.run_id), weak)
        groups = _entries(found, by, _order(info, [*status]))
        actions = action_entries(store, info.run_id, by, info.config.get("max_action_tokens"))
        acted, answered = behaviour_entries(store, info.run_id, by), answer_entries(store, info.run_id, by)
        out["groups"] = [
            group
            | actions.get((group[by], group["policy"]), NOT_MEASURED)
            | acted.get((group[by], group["policy"]), NOT_ACTED)
            | answered.get((group[by], group["policy"]), NOT_ANSWERED)
            for group in groups
        ]
    return out


def _rows(store: Store, query: str, run_id: str) -> list[Row]:
    return store.query(query, [run_id]).to_pylist()


def _order(info: RunInfo, found: list[str]) -> list[str]:
    """The policies of a run as they were given, then any other that has rows."""
    given = [str(policy) for policy in info.config.get("policies", [])]
    return given + sorted(set(found) - set(given))


def _entries(rows: list[Row], by: str = "policy", order: Sequence[str] = ()) -> list[Row]:
    """One entry per policy and group, paired with `full` in the same group; p values corrected within a group."""
    members: dict[tuple[Any, str], list[Row]] = defaultdict(list)
    for row in rows:
        members[row["grp"], row["policy"]].append(row)
    rank = {policy: i for i, policy in enumerate(order)}
    keys = sorted(members, key=lambda key: (key[0] is not None and key[0], rank.get(key[1], 0), key[1]))
    found = _all_entries([(policy, members[group, policy], members.get((group, "full"), [])) for group, policy in keys])
    out = [entry if by == "policy" else {by: group, **entry} for (group, _), entry in zip(keys, found, strict=True)]
    for group in {entry.get(by) if by != "policy" else None for entry in out}:
        tested = [e for e in out if e["difference_p"] is not None and (by == "policy" or e[by] == group)]
        for entry, adjusted in zip(tested, holm([e["difference_p"] for e in tested]), strict=True):
            entry["difference_p_holm"] = adjusted
    return out


def _entry(policy: str) -> Row:
    """The entry of a policy that has no rows."""
    return _all_entries([(policy, [], [])])[0]


def _all_entries(groups: Sequence[tuple[str, Sequence[Row], Sequence[Row]]]) -> list[Row]:
    """The figures of groups: a policy, its rows (one per trajectory), and those of `full` in the same group."""
    accuracies = estimates([_summed(members, "answer_accuracy") for _, members, _ in groups])
    losses = estimates([_summed(members, "delta_nll") for _, members, _ in groups])
    pairs = [_pairs(policy, members, full) for policy, members, full in groups]
    paired = zip(pairs, _paired(pairs, "answer_accuracy"), _paired(pairs, "answer_ll"), strict=True)
    told = zip(groups, accuracies, losses, paired, strict=True)
    return [_figures(*group, accuracy, nll, against) for group, accuracy, nll, against in told]


def _figures(
    policy: str, members: Sequence[Row], full: Sequence[Row], accuracy: Estimate, nll: Estimate, paired: _AllPaired
) -> Row:
    """All quality and memory figures of one policy over `members`."""
    pairs, (change, change_p, smallest), (likelihood, likelihood_p, _) = paired
    peaks = [m["kv_tokens_peak"] for m in members if m.get("kv_tokens_peak") is not None]
    full_peaks = sum(f.get("kv_tokens_peak") or 0 for _, f in pairs)
    return {
        "policy": policy,
        "n": len(members),
        "few": len(members) < FEW,
        "n_probes": sum(int(m.get("answer_accuracy_count") or 0) for m in members),
        "answer_accuracy": accuracy.value,
        "answer_accuracy_low": accuracy.low,
        "answer_accuracy_high": accuracy.high,
        **{name: _ratio(members, name) for name in ("answer_ll", "answer_margin", "nll")},
        "delta_nll": nll.value,
        "delta_nll_low": nll.low,
        "delta_nll_high": nll.high,
        **{name: _ratio(members, name) for name in ("kl", "top1_agreement")},
        "full_accuracy": _ratio(full, "answer_accuracy"),
        "difference": change.value,
        "difference_low": change.low,
        "difference_high": change.high,
        "difference_n": change.n,
        "difference_p": change_p,
        "difference_p_holm": None,
        "detectable_difference": smallest,
        "answer_ll_difference": likelihood.value,
        "answer_ll_difference_low": likelihood.low,
        "answer_ll_difference_high": likelihood.high,
        "answer_ll_difference_p": likelihood_p,
        **{name: _mean(members, name) for name in ("kv_tokens_peak", "kv_tokens_final", "kv_tokens")},
        "kv_tokens_peak_max": max(peaks, default=None),
        "kv_saved": 1 - sum(m["kv_tokens_peak"] for m, _ in pairs) / full_peaks if full_peaks else None,
        **{name: _mean(members, name) for name in ("kv_bytes_peak", "aux_bytes_peak", "logical_tokens", *_WORK)},
    }


def _summed(rows: Sequence[Row], name: str) -> tuple[list[float], list[float]]:
    """The sums `name` and what they are divided by, of the rows that have them."""
    count = f"{name}_count"
    have = [row for row in rows if row.get(name) is not None and row.get(count)]
    return [row[name] for row in have], [row[count] for row in have]


def _ratio(rows: Sequence[Row], name: str) -> float | None:
    """The ratio of the sums."""
    tops, counts = _summed(rows, name)
    return sum(tops) / sum(counts) if counts else None


def _pairs(policy: str, members: Sequence[Row], full: Sequence[Row]) -> list[_Pair]:
    """Each row with full's of the same trajectory; none for `full` itself."""
    reference = {f["trajectory_id"]: f for f in full} if policy != "full" else {}
    return [(m, reference[m["trajectory_id"]]) for m in members if m["trajectory_id"] in reference]


def _paired(groups: Sequence[Sequence[_Pair]], name: str) -> list[_Paired]:
    """By group: policy minus full, the p of the sign-flip test on the trajectories' own means, and the smallest mean
    difference that such a sample would find in four cases of five.
    """
    count = f"{name}_count"
    both = [
        [pair for pair in pairs if all(row.get(name) is not None and row.get(count) for row in pair)]
        for pairs in groups
    ]
    found = changes(
        [
            (
                [m[name] for m, _ in own],
                [f[name] for _, f in own],
                [m[count] for m, _ in own],
                [f[count] for _, f in own],
            )
            for own in both
        ]
    )
    own = [[m[name] / m[count] - f[name] / f[count] for m, f in pairs] for pairs in both]
    told = zip(found, sign_flips(own), map(detectable, own), strict=True)
    return [(change, None, None) if change.n < 2 else (change, p, least) for change, p, least in told]


def _mean(rows: Sequence[Row], name: str) -> float | None:
    values = [row[name] for row in rows if row.get(name) is not None]
    return sum(values) / len(values) if values else None
