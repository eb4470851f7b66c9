"""docs/policies.md from the figures of `kvmill bench policies`: every number and every comparison is computed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from . import peers

Row = Mapping[str, Any]

_CAN = """## What the small model can and cannot show

- The samples are made so that a 135M model answers well above chance (25 %) with the full cache, and at chance from the
  last fifth of the text alone. They tell policies apart that keep or lose facts; they say nothing about reasoning,
  planning or code. Their contexts are about 1,550 tokens: nothing here is about long contexts.
- Recorded text is fed (teacher forcing): the agent's own later turns restate each fact once, so every policy reads it a
  second time. What a policy would *do* differently, more turns or repeated searches, does not show here.
- Weights are 4-bit weights made dense again, not the original ones. Other models rank policies differently: measure
  yours with `kvmill replay --model`.
- `full` answers two thirds to three quarters of the probes. A policy above another by less than the interval of their
  difference is not better; 95 % intervals resample whole trajectories.
- Agreement, ΔNLL and KL compare with the uncompacted run on recorded assistant tokens. They are not accuracy.
- Policies at one keep ratio hold different amounts: a delayed one has its raw turns, a window its last tokens. The
  table at equal size is the fair one."""

_COLUMNS = (
    "| policy | answer accuracy (95 %) | against full, points (95 %) | answer LL | ΔNLL (95 %) | KL | agreement "
    "| KV tokens, mean | KV tokens, peak | compaction, GFLOP | fed after cuts, as copies |\n"
    "|---|---|---|---|---|---|---|---|---|---|---|"
)
_LEGEND = """*Measured.* Answer accuracy: share of probes whose right candidate is the likeliest (chance 25 %). LL: mean
log-likelihood of the right answer, nats. ΔNLL (nats per token), KL and agreement (same likeliest token): recorded
assistant tokens of turns 2…last, against the full cache. KV tokens: rows per layer and KV head, mean over turns and
most inside any turn. Compaction: arithmetic of scoring, fitting, clustering per trajectory, *estimated* from lengths.
Fed after cuts, as copies: tokens per trajectory that follow the first changed token of a cut text, or that are fed
only to score with and taken back."""


def page(
    found: Row, described: Sequence[Row], swept: Sequence[str], ratios: Sequence[str], authors: Row | None = None
) -> str:
    """The whole page. `found` is what `benchmarks.policies.figures` returns, `described` the registry's entries.

    `authors`, if there are any, are the figures of `kvmill bench peers`.
    """
    main, equal = _by_policy(found["policies"]), _by_policy(found["equal_size"])
    full, machine, versions = main["full"], found["machine"], found["versions"]
    return (
        "\n\n".join(
            [
                "# Policies, measured",
                "Written by `kvmill bench policies --limit N --write`; do not edit. "
                f"{full['n']} of the bundled sample trajectories, {full['n_probes']} probes, {found['model']} in "
                f"{found['dtype']}, seed {found['seed']}, on {machine['processor']} with {machine['threads']} torch "
                f"thread{'s' * (machine['threads'] != 1)}, "
                f"torch {versions.get('torch', '?')}, transformers {versions.get('transformers', '?')}.",
                "## What came out",
                _findings(found, main, equal),
                "## Every policy at keep 0.2",
                _LEGEND,
                _table(list(found["policies"]), only="0.2"),
                "## Other ratios",
                _sweep(main, swept, ratios),
                "## At equal size",
                f"Every policy's `keep` is solved so that it holds as many KV tokens as `{found['reference']}` "
                f"({found['equal_by']} over turns). The ratio is in the name.",
                _table(list(found["equal_size"])),
                _CAN,
                *(["## Peers against their authors' code", peers.section(authors)] if authors else []),
                "## What each policy does",
                "\n\n".join(_described(entry) for entry in described),
            ]
        ).rstrip()
        + "\n"
    )


def _by_policy(entries: Sequence[Row]) -> dict[str, Row]:
    return {entry["policy"]: entry for entry in entries}


def _findings(found: Row, main: Mapping[str, Row], equal: Mapping[str, Row]) -> str:
    """Comparisons against `full`, and between policies whose intervals say it, in words."""
    late, soon = main[found["reference"]], main["te(proxy=boundary,keep=0.2)"]
    lines = [
        f"- With the full cache the model answers {_percent(main['full']['answer_accuracy'])}.",
        f"- Compacting a turn at once (`{soon['policy']}`): {_against(soon)}.",
        f"- Waiting one turn (`{late['policy']}`): {_against(late)}.",
    ]
    for policy in ("am(proxy=assistant,delay=1,keep=0.2)", "adaptive(keep=0.2)", "attention(keep=0.2)"):
        if policy in main:
            lines.append(f"- `{policy}`: {_against(main[policy])}.")
    ranked = [e for e in equal.values() if e["policy"] != "full" and e["answer_accuracy"] is not None]
    ranked.sort(key=lambda e: -e["answer_accuracy"])
    best_te = next((e for e in ranked if e["policy"].startswith("te(")), None)
    mine = next((e for e in ranked if e["policy"].startswith("adaptive")), None)
    if ranked:
        lines.append(
            "- At equal size the order by answer accuracy is "
            + ", ".join(f"`{e['policy']}` {_percent(e['answer_accuracy'])}" for e in ranked[:5])
            + f"; the last is `{ranked[-1]['policy']}` {_percent(ranked[-1]['answer_accuracy'])}."
        )
    if mine is not None and best_te is not None:
        pair = next((p for p in found["paired"] if p["other"] == best_te["policy"]), None)
        lines.append(
            f"- `{mine['policy']}` against the best fixed `te` of that table, `{best_te['policy']}`, at "
            f"{mine['kv_tokens_mean']:.0f} and {best_te['kv_tokens_mean']:.0f} mean KV tokens: {_paired(pair)}."
        )
    return "\n".join(lines)


def _paired(pair: Row | None) -> str:
    """The paired differences of accuracy and LL, and what may be said of them."""
    if pair is None or pair["answer_accuracy_low"] is None:
        return "too few trajectories for an interval"
    low, high = pair["answer_accuracy_low"], pair["answer_accuracy_high"]
    sure = "better" if low > 0 else ("worse" if high < 0 else "not distinguishable")
    return (
        f"{100 * pair['answer_accuracy']:+.1f} points ({100 * low:+.1f} to {100 * high:+.1f}, paired over {pair['n']} "
        f"trajectories), LL {pair['answer_ll']:+.2f} ({pair['answer_ll_low']:+.2f} to {pair['answer_ll_high']:+.2f}): "
        f"{sure} by answer accuracy"
    )


def _against(entry: Row) -> str:
    """Accuracy and its paired difference to full, with what may be said of it."""
    low, high = entry["difference_low"], entry["difference_high"]
    if entry["answer_accuracy"] is None:
        return f"failed ({entry['error']})"
    if low is None or high is None:
        return f"{_percent(entry['answer_accuracy'])}, too few trajectories for an interval"
    sure = "a loss" if high < 0 else ("a gain" if low > 0 else "not distinguishable from none")
    return (
        f"{_percent(entry['answer_accuracy'])}, {100 * entry['difference']:+.1f} points against full "
        f"({100 * low:+.1f} to {100 * high:+.1f}): {sure}"
    )


def _table(entries: Sequence[Row], only: str | None = None) -> str:
    rows = [e for e in entries if only is None or f"keep={only}" in e["policy"] or "keep=" not in e["policy"]]
    return "\n".join([_COLUMNS, *(_line(entry) for entry in rows)])


def _line(entry: Row) -> str:
    if entry["status"]["failed"] and not entry["n"]:
        return f"| `{entry['policy']}` | failed: {entry['error']} |" + " |" * 9
    failed = f", {entry['status']['failed']} failed" if entry["status"]["failed"] else ""
    accuracy = (
        f"{_percent(entry['answer_accuracy'])} ({_whole(entry['answer_accuracy_low'])}–"
        f"{_whole(entry['answer_accuracy_high'])}){failed}"
    )
    difference = (
        "–"
        if entry["difference"] is None
        else f"{100 * entry['difference']:+.1f} ({100 * entry['difference_low']:+.1f} to "
        f"{100 * entry['difference_high']:+.1f})"
    )
    fed = (entry["reprefill_tokens"] or 0) + (entry["copied_tokens"] or 0)
    cells = (
        f"`{entry['policy']}`",
        accuracy,
        difference,
        f"{entry['answer_ll']:.2f}",
        f"{entry['delta_nll']:.3f} ({entry['delta_nll_low']:.3f} to {entry['delta_nll_high']:.3f})",
        f"{entry['kl']:.3f}",
        _percent(entry["top1_agreement"]),
        f"{entry['kv_tokens_mean']:,.0f}",
        f"{entry['kv_tokens_peak']:,.0f}",
        f"{(entry['compaction_flops'] or 0) / 1e9:,.1f}",
        f"{fed:,.0f}",
    )
    return "| " + " | ".join(cells) + " |"


def _sweep(main: Mapping[str, Row], swept: Sequence[str], ratios: Sequence[str]) -> str:
    """Accuracy, LL and mean rows by ratio."""
    head = "| policy | " + " | ".join(f"keep {r}: accuracy · LL · mean KV tokens" for r in ratios) + " |"
    lines = [head, "|---" * (1 + len(ratios)) + "|"]
    for policy in swept:
        cells = []
        for ratio in ratios:
            entry = main[policy.format(ratio)]
            if entry["answer_accuracy"] is None:
                cells.append("failed")
                continue
            cells.append(
                f"{_percent(entry['answer_accuracy'])} ({_whole(entry['answer_accuracy_low'])}–"
                f"{_whole(entry['answer_accuracy_high'])}) · {entry['answer_ll']:.2f} · {entry['kv_tokens_mean']:,.0f}"
            )
        lines.append(f"| `{policy.format('…')}` | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _described(entry: Row) -> str:
    options = "; ".join(
        f"`{name}` ({option['type'].replace('|', '·')}"
        + ("" if option["default"] is None else f", default `{option['default']}`")
        + f"): {option['doc']}"
        for name, option in entry["options"].items()
    )
    text = f"**`{entry['name']}`**: {entry['summary']}. Rule: {entry['formula']}. Source: {entry['source']}. "
    return text + f"Footprint: {entry['footprint']}." + (f" Options: {options}." if options else "")


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{share:.1%}"


def _whole(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.0f}"
