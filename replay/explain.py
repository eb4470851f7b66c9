"""Why a policy's run went another way: where it first departed from the full cache, what it had dropped, and its work.

`kvmill inspect` shows it. Everything is read from the rows of a run; what was not measured is None.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from ..console import table
from ..traces.store import Store
from .policies.registry import parse_policy

Row = Mapping[str, Any]
MOST = 10
DROPPED_BELOW = 0.5
AROUND = 5
ACTION, TEXT, TOKEN = "action", "text", "likeliest token"

_WORK = ("compactions", "kv_tokens_peak", "kv_tokens", "reprefill_tokens", "copied_tokens")
_SECONDS = ("ttft_s", "compaction_s", "prefill_s", "decode_s")
_TURNS = (
    "SELECT policy, turn, measure, top1_agreement, generated_tokens, action_arguments_match_full, "
    f"action_text_similarity_full, {', '.join((*_WORK, *_SECONDS))} FROM turn_metrics "
    "WHERE run_id = $1 AND trajectory_id = $2 ORDER BY policy, turn, measure"
)
DIVERGED_BY = {
    ACTION: "its action is not the full cache's",
    TEXT: "what it says is not what the full cache says, and that holds no action to compare",
    TOKEN: "the likeliest next token after a recorded one is not the full cache's (no action was generated)",
}


def explained(
    store: Store, run_id: str, trajectory_id: str, kept: Mapping[str, Sequence[Row]], turn: int | None = None
) -> list[dict[str, Any]]:
    """One entry for every policy of `kept` (its tokens: position, turn, kind, text, share, mass_full).

    `diverged_turn` is the first turn at which it departed from `full`, `diverged_by` in what: the generated action,
    the generated text where full's held no action, or in runs without actions the likeliest next token; None if it
    never did. `lost`: the tokens of that turn's past (of the whole text where it never departed) that most
    layer-heads had dropped at the end of the run, the `mass_full` they carried first; None without it. `turns`: what
    was compacted at each turn (or at `turn` alone) and how long the call took, by part.
    """
    measured: dict[str, list[Row]] = defaultdict(list)
    for row in store.query(_TURNS, [run_id, trajectory_id]).to_pylist():
        measured[row["policy"]].append(row)
    out: list[dict[str, Any]] = []
    for policy, tokens in kept.items():
        rows = measured[policy]
        quality = [row for row in rows if row["measure"] == "quality"]
        at, by = diverged(quality)
        worked = [entry for entry in _worked(rows) if turn in (None, entry["turn"])]
        lost = most_lost(tokens, getattr(parse_policy(policy), "delay", 0), at)
        out.append({"policy": policy, "diverged_turn": at, "diverged_by": by, "lost": lost, "turns": worked})
    return out


def diverged(rows: Sequence[Row]) -> tuple[int | None, str | None]:
    """The first of these turns that departs from full's, and in what; two None where none does."""
    stepwise = any(row["generated_tokens"] is not None for row in rows)
    for row in rows:
        if not stepwise:
            if row["top1_agreement"] is not None and row["top1_agreement"] < 1:
                return row["turn"], TOKEN
        elif row["generated_tokens"] is not None:
            same = row["action_arguments_match_full"]
            if same is False:
                return row["turn"], ACTION
            if same is None and row["action_text_similarity_full"] < 1:
                return row["turn"], TEXT
    return None, None


def most_lost(tokens: Sequence[Row], delay: int, turn: int | None) -> list[dict[str, Any]] | None:
    """The dropped tokens that carried most mass, of the turns that were compacted before `turn`; None without masses.

    A turn is compacted when the one `delay` later closes. Dropped: held by fewer than half of the layer-heads at the
    end of the run.
    """
    if any(token["mass_full"] is None for token in tokens):
        return None
    past = [at for at, token in enumerate(tokens) if turn is None or token["turn"] + delay < turn]
    gone = [at for at in past if tokens[at]["share"] < DROPPED_BELOW]
    first = sorted(gone, key=lambda at: (-tokens[at]["mass_full"], at))[:MOST]
    return [
        {name: tokens[at][name] for name in ("position", "turn", "kind", "text", "share")}
        | {"mass": tokens[at]["mass_full"], "around": _around(tokens, at)}
        for at in first
    ]


def _around(tokens: Sequence[Row], at: int) -> str:
    return "".join(token["text"] for token in tokens[max(0, at - AROUND) : at + AROUND + 1])


def _worked(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Quality and latency rows of each turn, as one."""
    turns: dict[int, dict[str, Any]] = {}
    for row in rows:
        entry = turns.setdefault(row["turn"], {"turn": row["turn"], **dict.fromkeys((*_WORK, *_SECONDS))})
        names = _SECONDS if row["measure"] == "latency" else _WORK
        entry |= {name: row[name] for name in names}
    return [turns[turn] for turn in sorted(turns)]


def explained_text(entries: Sequence[Row]) -> str:
    """For a terminal: where each policy departed, what it had lost, what it did."""
    lines = []
    for entry in (entry for entry in entries if entry["policy"] != "full"):
        lines += [f"{entry['policy']}: {_departed(entry)}", *_lost_lines(entry), ""]
    head = ["Where a policy departs from the full cache:", "", *lines] if lines else []
    return "\n".join([*head, *_work_lines(entries)])


def _departed(entry: Row) -> str:
    if entry["diverged_turn"] is None:
        return "nowhere"
    return f"first at turn {entry['diverged_turn']}: {DIVERGED_BY[entry['diverged_by']]}"


def _lost_lines(entry: Row) -> list[str]:
    if entry["lost"] is None:
        return ["what the dropped tokens carried was not measured: replay with --explain"]
    if not entry["lost"]:
        return ["no token of its past was dropped by then"]
    rows = [
        {
            "position": token["position"],
            "turn": token["turn"],
            "kind": token["kind"],
            "mass": f"{token['mass']:.2f}",
            "kept": f"{token['share']:.0%}",
            "text": one_line(token["text"]).strip() or "␣",
            "around": one_line(token["around"]),
        }
        for token in entry["lost"]
    ]
    head = "dropped before that" if entry["diverged_turn"] is not None else "dropped"
    legend = (
        f"{head}, most attention first (mass: sum over later tokens of the attention it gets in the full run, mean "
        "over layers and heads; kept: share of layer-heads that hold it at the end of the run):"
    )
    return [legend, table(rows, {name: name for name in rows[0]})]


def one_line(text: str) -> str:
    """Line ends and tabs as signs."""
    return text.replace("\n", "⏎").replace("\t", "→").replace("\r", "␍")


def _work_lines(entries: Sequence[Row]) -> list[str]:
    columns = {"policy": "policy", "turn": "turn", "compactions": "compactions", "held": "KV tokens, peak → after"}
    if any(turn["copied_tokens"] or turn["reprefill_tokens"] for entry in entries for turn in entry["turns"]):
        columns |= {"copied_tokens": "copied", "reprefill_tokens": "prefilled again"}
    timed = any(turn["compaction_s"] is not None for entry in entries for turn in entry["turns"])
    if timed:
        columns |= {"compaction_s": "compaction s", "prefill_s": "prefill s", "decode_s": "decode s"}
    rows = [
        {**turn, "policy": entry["policy"], "held": f"{_whole(turn['kv_tokens_peak'])} → {_whole(turn['kv_tokens'])}"}
        | {name: None if turn[name] is None else f"{turn[name]:.3f}" for name in _SECONDS}
        for entry in entries
        for turn in entry["turns"]
    ]
    note = (
        "seconds of the call of this turn; its compaction is what it waits for since the turn before closed"
        if timed
        else "seconds were not measured for this trajectory: replay with --measure both"
    )
    return ["What was compacted at each turn:", "", table(rows, columns), "", note]


def _whole(rows: float | None) -> str:
    return "–" if rows is None else f"{rows:.0f}"
