"""The last section of docs/scale.md, from figures: the whole set, its storage, and what sampling needs instead."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]
HEAD = "## Figures"


def page(text: str, found: Row) -> str:
    """The page with its section on figures renewed; ValueError when the page has none."""
    before, mark, _ = text.partition(f"{HEAD}\n")
    if not mark:
        raise ValueError(f"the page has no section {HEAD!r}")
    written = f"Written by `kvmill bench scale --write`, {found['date']}; do not edit from here on."
    return f"{before}{HEAD}\n\n{written}\n\n{tables(found)}\n"


def tables(found: Row) -> str:
    """All tables with what their figures are and where they come from."""
    return "\n\n".join([*whole_set(found), *storage(found), *draws(found), *saved(found)])


def whole_set(found: Row) -> list[str]:
    """GPU hours and money, by model and GPU."""
    given, rows = found["assumed"], found["computing"]
    lines = [
        (
            f"{row['model']} on {row['gpu']}",
            f"{row['tokens_per_s']:,.0f}",
            f"{row['gpu_hours']:,.0f}",
            f"{row['usd_per_hour']:.2f}",
            f"{row['usd']:,.0f}",
        )
        for row in rows
    ]
    errors = ", ".join(f"{row['gpu']} {row['error']:.1%}" for row in {r["gpu"]: r for r in rows}.values())
    prices = ", ".join(sorted({row["price_source"] for row in rows}))
    return [
        "### The whole set",
        f"GPU hours = trajectories · (1 + policies) · seconds of one prefill / 3,600, for {given['trajectories']:,} "
        f"trajectories of {given['tokens']:,} tokens under `full` and {given['policies']} policies. Seconds: the cost "
        "model's steps of 8,192 tokens, bf16, one GPU (*estimated*; relative error of a decode step on servers nothing "
        f"was fitted on: {errors}). That is a serving engine's speed; the replay engine was not timed on a GPU. Every "
        "policy is counted as dear as `full` (*assumed*: compacted caches are shorter, a policy that scores by a "
        f"repeated copy reads nearly twice). Price of a GPU hour in USD: {prices}.",
        _table(("model and GPU", "prefill tokens/s", "GPU hours", "USD per hour", "USD"), lines),
    ]


def storage(found: Row) -> list[str]:
    """Bytes of one trajectory and of all, by table."""
    given, seen = found["assumed"], found["measured"]
    total = sum(row["bytes"] for row in found["storage"])
    lines = [
        (
            row["table"],
            f"{row['rows']:,}",
            f"{seen['bytes_per_row'][row['table']]:,.1f}",
            f"{row['bytes'] / 1e6:.3f}",
            _size(row["bytes"] * given["trajectories"]),
        )
        for row in found["storage"]
    ]
    lines.append(("all", "", "", f"{total / 1e6:.3f}", _size(total * given["trajectories"])))
    usd = total * given["trajectories"] / 1e9 * given["storage_usd"]
    return [
        "### Storage",
        f"Bytes = rows · bytes per row (*measured*: the files of a complete run of {seen['model']}, "
        f"{seen['rows']['cells']} cells, {seen['rows']['kept']:,} rows of `kept`). Rows of one trajectory: "
        f"{given['tokens']:,} tokens, {given['turns']} turns and {given['probes']} probes (*assumed*) under "
        f"{1 + given['policies']} policies. All of it in an object store at {given['storage_usd']} USD per GB and "
        f"month (*assumed*): {usd:,.0f} USD a month. The recordings themselves are not counted.",
        _table(("table", "rows per trajectory", "bytes per row", "MB per trajectory", "whole set"), lines),
    ]


def draws(found: Row) -> list[str]:
    """How many trajectories prove something, by the loss there is."""
    limits, given = found["limits"], found["assumed"]
    lines = [
        (
            f"{row['loss']:.0%}",
            "at most the limit" if row["loss"] <= limits["max_loss"] else "more than the limit",
            _draws(row["median"], limits),
            _draws(row["most"], limits),
            f"{row['fixed']:,}",
            f"{row['wrong']:.1%}",
        )
        for row in found["effects"]
    ]
    edge, steps = found["at_the_limit"], found["ladder"]
    losses = ", ".join(f"{loss:.0%}" for loss in steps["losses"])
    return [
        "### How many trajectories prove it",
        f"*Simulated*: {found['effects'][0]['campaigns']:,} campaigns each, seed {limits['seed']}, limit "
        f"{limits['max_loss']:.0%}, {limits['confidence']:.0%} confidence shared by {given['policies']} policies, a "
        f"look every {limits['batch']} trajectories; {given['probes']} probes each, {given['alike']:.0%} of them "
        "answered as `full` does but for the loss (*assumed*). Fixed sample: the size at which a paired test finds it "
        "in four cases of five, if someone had known loss and spread beforehand (normal approximation, at least ten).",
        _table(("true loss", "proven to lose", "half stop by", "90 % stop by", "fixed sample", "wrong proofs"), lines),
        f"Policies that lose exactly the limit: one of {given['policies']} is ever named in {edge['wrong']:.1%} of "
        f"{edge['campaigns']:,} campaigns of {edge['draws']} trajectories, {edge['draws'] // limits['batch']} looks "
        f"each (promised: at most {1 - limits['confidence']:.0%}).",
        f"A whole recommendation, among policies that lose {losses} from the smallest to the largest: half stop by "
        f"{_draws(steps['median'], limits)} trajectories, 90 % by {_draws(steps['most'], limits)}; of those that "
        f"stopped, {steps['right']:.1%} name the smallest policy within the limit. Peaks are taken as known and "
        "families as one; where either must be settled, it takes longer.",
    ]


def saved(found: Row) -> list[str]:
    """The price of a recommendation by sampling beside that of the whole set."""
    given, used = found["assumed"], found["ladder"]["most"]
    if used is None:
        return []
    share = used / given["trajectories"]
    total = sum(row["bytes"] for row in found["storage"]) * given["trajectories"]
    lines = [
        (f"{row['model']} on {row['gpu']}", f"{row['gpu_hours'] * share:.1f}", f"{row['usd'] * share:,.0f}")
        for row in found["computing"]
    ]
    return [
        "### The same question by sampling",
        f"{used:,} of {given['trajectories']:,} trajectories, by which nine of ten such campaigns have stopped "
        f"(*simulated*): the formulas above with that number. Storage: {_size(total * share)}.",
        _table(("model and GPU", "GPU hours", "USD"), lines),
    ]


def _draws(value: int | None, limits: Row) -> str:
    return f"more than {limits['draws']:,}" if value is None else f"{value:,}"


def _size(count: float) -> str:
    return f"{count / 1e12:,.1f} TB" if count >= 1e12 else f"{count / 1e9:,.1f} GB"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [" | ".join(head), " | ".join(["---", *["---:"] * (len(head) - 1)]), *(" | ".join(row) for row in rows)]
    return "\n".join(f"| {line} |" for line in lines)
