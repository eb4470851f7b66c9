"""Closed-loop results as text: one line per policy or family, and what must be said of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...console import table
from ..scored import idle_text

Row = Mapping[str, Any]

COLUMNS = {
    "answered": "answered",
    "closed_accuracy": "right (95 %)",
    "turns": "turns (95 %)",
    "extra": "extra turns (95 %)",
    "searches": "searches",
    "near": "near repeats",
    "errors": "tool errors",
    "tokens": "tokens",
    "ends": "ends",
}
LEGEND = (
    "answered: share of runs that ended with an answer; right: mean score of what was done and answered by the label "
    "(choice: share of probes right on the final cache)\n"
    "turns: per run, recorded ones at its beginning counted; extra turns: growth against full's runs of the same "
    "trajectories, where one answered and the other did, too, or was cut at a limit, which leaves it too near to 0\n"
    "searches: per run; near repeats: share of searches near an earlier one (cosine of character groups above 0.9, "
    "equal ones among them); tool errors: share of calls; tokens: generated per run"
)


def behaviour_table(entries: Sequence[Row], by: str = "policy") -> str:
    """A line per policy, or per family and policy."""
    first = {by: by, "policy": "policy"} if by != "policy" else {"policy": "policy"}
    return table([_shown(entry) for entry in entries], first | COLUMNS | {"kv_tokens_peak": "peak KV tokens"})


def behaviour_notes(found: Row) -> list[str]:
    """The legend, and whether any of it may be used."""
    weak = found["model_too_weak"]
    return [LEGEND, *idle_text(found), *([weak] if weak else [])]


def mode_text(found: Row) -> str:
    """How long the model was let act."""
    most = found["max_turns"]
    return f"{found['seed_turns']} recorded turns first, at most {most or 'twice the recorded turns and 4'}"


def _shown(entry: Row) -> dict[str, Any]:
    return {
        **entry,
        "answered": _percent(entry["answered"]),
        "closed_accuracy": _spread(entry, "closed_accuracy", "{:.0%}"),
        "turns": _spread(entry, "turns_mean", "{:.1f}"),
        "extra": _extra(entry),
        "searches": _fixed(entry["searches"]),
        "near": _percent(entry["near_repeats"]),
        "errors": _percent(entry["tool_errors"]),
        "tokens": None if entry["tokens_generated"] is None else f"{entry['tokens_generated']:.0f}",
        "ends": ", ".join(f"{reason} {count}" for reason, count in (entry["end_reasons"] or {}).items()),
    }


def _spread(entry: Row, name: str, form: str) -> str | None:
    value, low, high = (entry[f"{name}{end}"] for end in ("", "_low", "_high"))
    if value is None:
        return None
    return form.format(value) + (f" ({form.format(low)} to {form.format(high)})" if low is not None else "")


def _extra(entry: Row) -> str | None:
    """Extra turns, and of how many pairs: one pair alone may say anything."""
    said, pairs = _spread(entry, "extra_turns", "{:+.0%}"), entry["extra_turns_n"]
    return said and f"{said}, {pairs} {'pair' if pairs == 1 else 'pairs'}"


def _percent(share: float | None) -> str | None:
    return None if share is None else f"{share:.0%}"


def _fixed(value: float | None) -> str | None:
    return None if value is None else f"{value:.1f}"
