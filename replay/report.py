"""Results as text for a terminal: what was measured, on which model, over how many trajectories, how surely."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..console import table
from .closed.report import behaviour_notes, behaviour_table, mode_text
from .last_answer import answers_text
from .looks import KEY
from .noninferior import FOUND_FROM
from .policies.registry import parse_policy
from .scored import is_recall, legend, name_of, probes_text
from .sweep import sweep_text

Row = Mapping[str, Any]

_QUALITY = {
    "policy": "policy",
    "keep": "keep",
    "accuracy": "answer accuracy (95 %)",
    "answer_ll": "answer LL",
    "delta_nll": "ΔNLL",
    "agreement": "agreement",
    "kv_tokens_peak": "peak KV tokens",
    "kv_saved": "KV saved",
}
_ACTIONS = {
    "action_match": "same action (95 %)",
    "action_match_full": "same as full's (95 %)",
    "action_parsed": "parsed",
}
_LEFT_ALONE = {
    "sliding": "sliding-window layers",
    "linear": "linear-attention layers",
    "shared": "cache-sharing layers",
}
_LATENCY = {"ttft_s": "TTFT s", "tpot_s": "TPOT s", "turn_s": "turn s"}
STOPPED = (
    "trajectories were drawn until the recommendation was decided: intervals and p values here are those of a sample "
    "whose size was fixed beforehand, and too narrow for one that was not; `kvmill recommend` allows for it"
)
_PLAN = {"gpus": "GPUs", "saved": "GPUs saved"}
LEGEND = (
    "answer LL: mean log-likelihood of the right answer (nats)\n"
    "ΔNLL, agreement: recorded assistant tokens of turns 2…last against the full cache (nats per token; share with the "
    "same likeliest token). Agreement is not accuracy\n"
    "peak KV tokens: largest number of cached tokens inside a turn, mean over trajectories"
)
_ACTIONS_LEGEND = (
    "same action: share of turns whose generated action has the recorded one's tools and arguments; same as full's: "
    "those of the full cache's own action; parsed: generations that hold an action. Agreement with the record is not "
    "accuracy"
)
_LATENCY_LEGEND = (
    "TTFT, TPOT, turn: seconds per model call by forced decode, alone on the replay device, over {n} trajectories; "
    "the median of repeats"
)


def summary_text(found: Row) -> str:
    """The text of `kvmill results` and `kvmill replay`."""
    grouped = found["by"] != "policy"
    body = [f"By {found['by']}:", "", groups_table(found)] if grouped else [_table(found)]
    sweeps = [f"{sweep_text(swept, name_of(found['label_scorers']))}\n" for swept in found["sweeps"]]
    return "\n".join([headline(found), "", *body, "", *sweeps, *_notes(found)])


def demo_table(found: Row, plans: Sequence[Row] = ()) -> str:
    """The demo's table: results and, where a policy was planned, GPUs needed and saved."""
    planned = {plan["policy"]: plan for plan in plans}
    extra = {}
    for entry in found["policies"]:
        plan = planned.get(entry["policy"])
        if plan is not None:
            extra[entry["policy"]] = {
                "gpus": plan.get("gpus") if plan.get("feasible", True) else "no fleet",
                "saved": _with_range(plan.get("gpus_saved"), plan.get("gpus_saved_low"), plan.get("gpus_saved_high")),
            }
    body = _table(found, extra, _PLAN if plans else {})
    return "\n".join([headline(found), "", body, "", *_notes(found)])


def headline(found: Row) -> str:
    """Which run, measured with what, over how much."""
    n = max((entry["n"] for entry in found["policies"]), default=0)
    probes = probes_text(max((e["n_probes"] for e in found["policies"]), default=0), found["label_scorers"])
    where = ", ".join(
        str(part)
        for part in (found["dtype"], found["device"], found["threads"] and _count(found["threads"], "thread"))
        if part
    )
    state = "" if found["state"] == "complete" else f" ({found['state']})"
    kinds = found.get("layers") or {}
    alone = ", ".join(f"{count} {_LEFT_ALONE[kind]}" for kind, count in kinds.items() if kind != "full")
    scope = f"; compaction acts on {kinds['full']} of {sum(kinds.values())} layers, {alone} left alone" if alone else ""
    return (
        f"Run {found['run']}{state}: measured with {found['model']} ({where}), {_mode(found)} of "
        f"{n} {'trajectory' if n == 1 else 'trajectories'}, {probes} per policy{scope}"
    )


def _mode(found: Row) -> str:
    """How the tokens came about, and how actions were generated and read."""
    if not found.get("actions"):
        return "teacher-forced replay"
    grammars = found["actions"]
    closed = found["mode"] == "closed"
    same = len(set(grammars.values())) == 1
    read = next(iter(grammars.values())) if same else ", ".join(f"{g} ({s})" for s, g in sorted(grammars.items()))
    drawn = f"temperature {found['temperature']:g}" if found["temperature"] else "greedy"
    how = f"actions: {drawn}, at most {found['max_action_tokens']} tokens, read as {read}"
    return f"closed-loop replay ({mode_text(found)}; {how})" if closed else f"stepwise replay ({how})"


def groups_table(found: Row) -> str:
    """One line per group and policy."""
    by = found["by"]
    if found["mode"] == "closed" and by == "family":
        return behaviour_table(found["groups"], by)
    names = {"age": "turns since the fact", "kind": "probe kind"}
    columns = {by: names.get(by, by), "policy": "policy", "n": "n"}
    if any(group["answer_accuracy"] is not None for group in found["groups"]):
        columns |= {"n_probes": "probes", "accuracy": _accuracy(found), "answer_ll": _QUALITY["answer_ll"]}
    if any(group.get("action_turns") for group in found["groups"]):
        columns |= _ACTIONS
    for name in ("delta_nll", "agreement", "kv_tokens", "kv_tokens_peak"):
        if any(group.get(_SOURCE.get(name, name)) is not None for group in found["groups"]):
            columns[name] = _QUALITY.get(name, "KV tokens after")
    return table([_shown(group) for group in found["groups"]], columns)


_SOURCE = {"agreement": "top1_agreement"}


def _accuracy(found: Row) -> str:
    return f"{name_of(found['label_scorers'])} (95 %)"


def _table(found: Row, extra: Mapping[str, Row] | None = None, more: Mapping[str, str] | None = None) -> str:
    entries = found["policies"]
    if found["mode"] == "closed":
        return behaviour_table(entries)
    columns = _QUALITY | {"accuracy": _accuracy(found)}
    if any(entry.get("action_turns") for entry in entries):
        columns |= _ACTIONS
    if any(entry["latency_n"] for entry in entries):
        columns |= _LATENCY
    return table([_shown(e) | dict((extra or {}).get(e["policy"], {})) for e in entries], columns | dict(more or {}))


def _shown(entry: Row) -> dict[str, Any]:
    """An entry with its derived cells: keep ratio, accuracy with interval, agreement, saving in percent."""
    keep = parse_policy(entry["policy"]).ratio
    return {
        **entry,
        "keep": None if keep is None else format(keep.normalize(), "f"),
        "accuracy": _share(entry, "answer_accuracy"),
        **{name: _share(entry, name) for name in ("action_match", "action_match_full")},
        "action_parsed": _percent(entry.get("action_parsed")),
        "agreement": _percent(entry["top1_agreement"]),
        "kv_saved": _percent(entry["kv_saved"]),
        "answer_ll": _fixed(entry["answer_ll"]),
        "delta_nll": _fixed(entry["delta_nll"], 3),
    }


def _share(entry: Row, name: str) -> str | None:
    """In percent, with its interval."""
    value, low, high = (entry.get(f"{name}{end}") for end in ("", "_low", "_high"))
    if value is None:
        return None
    return _percent(value) + (f" ({low:.0%}–{high:.0%})" if low is not None else "")


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{share:.1%}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _fixed(value: float | None, digits: int = 2) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def _with_range(value: Any, low: Any, high: Any) -> str | None:
    if value is None:
        return None
    return f"{value:g} ({low:.3g}–{high:.3g})" if low is not None and high is not None else f"{value:g}"


def _notes(found: Row) -> list[str]:
    """The legend, and what must be said of this run."""
    entries = found["policies"]
    lines = [*legend(found), LEGEND] if any(e["kv_tokens_peak"] is not None for e in entries) else []
    if found["mode"] == "closed":
        lines = behaviour_notes(found)
    if any(e.get("action_turns") for e in entries):
        lines.append(_ACTIONS_LEGEND)
        cut = ", ".join(f"{e['policy']} {e['actions_cut']:.0%}" for e in entries if e.get("actions_cut"))
        lines += [f"of these, cut at {found['max_action_tokens']} tokens (--max-action-tokens): {cut}"] if cut else []
    lines += answers_text(entries)
    if timed := max((entry["latency_n"] for entry in entries), default=0):
        widest = max((e["turn_spread"] for e in entries if e["turn_spread"] is not None), default=None)
        spread = "" if widest is None else f", which differ by up to {widest:.0%} (slowest less fastest, of the median)"
        lines.append(_LATENCY_LEGEND.format(n=timed) + spread)
    if found.get("equal_size"):
        rows = {"peak": "at their peak", "mean": "on average over turns", "final": "after the last turn"}
        lines.append(
            f"equal size: the keep ratio of every policy is solved so that it holds as many KV tokens "
            f"{rows[found['equal_by']]} as {found['equal_size']}"
        )
    if found.get(KEY):
        lines.append(STOPPED)
    if any(0 < entry["n"] < 10 for entry in entries):
        lines.append("fewer than 10 trajectories: intervals are rough, and nothing should be decided on them")
    failed = [f"{e['policy']} ({e['status']['failed']}: {e['error']})" for e in entries if e["status"]["failed"]]
    if failed:
        lines.append("failed cells: " + "; ".join(failed))
    lines += [f"skipped: {_count(s['cells'], 'cell')}: {s['reason']}" for s in found.get("skipped", [])]
    lines += [family["reason"] for family in found.get("accuracy_not_shown", [])]
    if cut := found.get("cut"):
        said = ", ".join(f"{c['trajectory_id']} ({_count(c['cut_turns'], 'turn')})" for c in cut)
        lines.append(f"cut to the model's window, their last turns and the probes about them left out: {said}")
    for entry in () if found["model_too_weak"] else entries:
        if entry["difference"] is not None and entry["difference_p_holm"] is not None:
            lines.append(_difference(entry, name_of(found["label_scorers"])))
    return lines


def _difference(entry: Row, what: str) -> str:
    low, high, smallest = entry["difference_low"], entry["difference_high"], entry["detectable_difference"]
    n, finds = entry["difference_n"], ""
    if smallest is not None:
        finds = f"; a sample like this finds {100 * smallest:.1f} points in four cases of five"
    elif n < FOUND_FROM:
        finds = f"; fewer than {FOUND_FROM} trajectories prove no difference, however large"
    return (
        f"{entry['policy']} against full: {what} {100 * entry['difference']:+.1f} points "
        f"({100 * low:+.1f} to {100 * high:+.1f}), paired over {n} trajectories, "
        f"sign-flip p = {entry['difference_p']:.2g}, {entry['difference_p_holm']:.2g} after Holm{finds}"
    )


def decided_text(found: Row) -> str:
    """The answer of a run that was to go on until decided, before its results; empty for any other run."""
    if found.get(KEY) is None:
        return ""
    return f"{found['policy'] or 'no policy'}: {found['reason']}\n\n"


def recommendation_text(found: Row) -> str:
    """The text of `kvmill recommend`: the policy or why there is none, then every candidate."""
    lines = [f"{found['policy'] or 'no policy'}: {found['reason']}"]
    if found["policy"]:
        guarantee = {
            "paired-interval": "by the paired differences, if these trajectories are like those to come",
            "learn-then-test": "whatever the distribution of the trajectories (learn-then-test)",
            "anytime-valid": "whatever their distribution, and however often the run was looked at",
        }[found["guarantee"]]
        lines.append(f"guarantee: {found['guarantee']}, {guarantee}; KV saved {_percent(found['kv_saved'])}")
        worst = found["worst_family"]
        if worst:
            lines.append(f"worst family: {worst['family']}, loss {_percent(worst['loss'])} (n = {worst['n']})")
        if is_recall(found["label_scorers"]):
            lines.append("accuracy here is recall of facts (made probes): that the task is still solved is not claimed")
        if found["latency"] is None:
            lines.append("latency was not measured in this run, and nothing is claimed about it")
    rows = [
        {
            "policy": candidate["policy"],
            "n": candidate["n"],
            "peak": _fixed(candidate["kv_tokens_peak"], 0),
            "loss": _percent(candidate["loss"]),
            "p": _fixed(candidate["p_paired"], 4),
            "free": _fixed(candidate["p_betting"], 4),
            "verdict": candidate["verdict"],
        }
        for candidate in found["candidates"]
    ]
    columns = {
        "policy": "policy",
        "n": "n",
        "peak": "peak KV tokens",
        "loss": f"relative loss of {'recall' if is_recall(found['label_scorers']) else 'accuracy'}",
        "p": "p (paired)",
        "free": "p (any distribution)",
        "verdict": "verdict",
    }
    limits = found["limits"]
    shared = "Holm's correction" if found["decided"] is None else f"the level is shared by {len(rows)} policies"
    note = (
        f"Measured with {found['model']}, run {found['run']}. p: that the loss exceeds {limits['max_loss']:.0%}, "
        f"before {shared}; no family may lose more than {limits['max_family_loss']:.0%}"
    )
    return "\n".join([*lines, "", *([table(rows, columns)] if rows else []), note])
