"""The last section of docs/method.md, from figures: what a replay costs, which targets hold, where time goes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvmill.simulator.models import find_geometry

Row = Mapping[str, Any]
HEAD = "## What a replay costs"
BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
AT_LEAST = 0.005  # a share of time below this is not named
LINEAR = "linear layers"
OP = {"a": "at most", "b": "at most", "c": "at least", "d": "below"}
BATCHED = "one generated token per policy is a product with one row, and sixteen rows read the weights once."
COMPUTE_BOUND = (
    "a chunk of recorded tokens keeps the CPU computing as it is, and once the caches differ every policy's tokens are "
    "computed. What is shared is the beginning, up to a policy's first eviction."
)


def counted(count: int, what: str) -> str:
    """`1 thread`, `2 threads`."""
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def page(text: str, found: Row) -> str:
    """The page with its section on costs renewed; ValueError when the page has none."""
    before, mark, _ = text.partition(f"{HEAD}\n")
    if not mark:
        raise ValueError(f"the page has no section {HEAD!r}")
    return before + "\n\n".join([HEAD, *section(found)]) + "\n"


def section(found: Row) -> list[str]:
    """Paragraphs and the table under the heading."""
    versions = found["versions"]
    rows = found["rows"]
    return [
        f"Written by `kvmill bench replay --write`; do not edit from here on. *Measured* on {found['date']}: "
        f"{found['device_name']}, {counted(found['threads'], 'thread')}, {found['model']}, torch {versions['torch']}, "
        f"transformers {versions['transformers']}. Times are of the clock, medians where "
        "there is more than one round; the two dtypes replayed the same trajectories (n).",
        "\n".join(
            [
                "| what | dtype | value | target | met | sample |",
                "|---|---|---:|---:|---|---|",
                *(_line(row) for row in rows),
            ]
        ),
        *(f"**{_verdict(row)}** {reason}" for row in rows if (reason := why(row))),
        *(dtypes(row) for row in rows[-1:] if row["part"] == "d"),
    ]


def why(row: Row) -> str:
    """Where the time of a row went, and what stands between it and its target; empty where nothing is to be said."""
    if "profile" not in row or row["met"] is None:
        return ""
    said = f"Of {_seconds(row['seconds'])}{' per token' if row['part'] == 'c' else ''}: {shares(row['profile'])}."
    if row["part"] == "a":
        together, alone = (row[name][LINEAR] for name in ("profile_s", "against_profile_s"))
        said += (
            f" The linear layers take {together / alone:.0%} of what they take in single runs ({together:.1f} of "
            f"{alone:.1f} s): " + (BATCHED if "actions" in row["profile_s"] else COMPUTE_BOUND)
        )
    if row["part"] == "c":
        said += f" {bound(row)}"
    return said


def dtypes(row: Row) -> str:
    """What bfloat16 cost in the comparison of dtypes, all of whose rows are of the same replays."""
    return (
        f"The replays that compare the dtypes took {_seconds(row['seconds'])} in bfloat16 and "
        f"{_seconds(row['against_s'])} in float32. `--dtype auto` takes bfloat16 on a CPU only where it is faster."
    )


def bound(row: Row) -> str:
    """What a decode step must at least read, and how long that takes at the rate of the output head of the same run."""
    shape, size = find_geometry(row["model"]), BYTES[row["dtype"]]
    weights = (shape.body_parameters + shape.head_parameters) * size
    cache = row["tokens"] * sum(group.count * group.row_values for group in shape.groups) * size
    rate = shape.head_parameters * size / (row["profile"]["output head"] * row["seconds"])
    least = (weights + cache) / rate
    best = row["against_s"] / least
    said = (
        f"A step reads {weights / 1e6:.0f} MB of weights and {cache / 1e6:.0f} MB of cache once. At the rate of the "
        f"output head, {rate / 1e9:.1f} GB/s, which is one large product and nothing else, that alone takes "
        f"{_seconds(least)}: no program could be more than {best:.1f} × as fast as `generate` here (*estimated* from "
        "this row)"
    )
    reach = "out of reach" if best < row["target"] else "within reach"
    return f"{said}, so that {row['target']:g} × is {reach} on this machine in {row['dtype']}."


def shares(profile: Row) -> str:
    """Shares of time, those that count."""
    return ", ".join(f"{part} {share:.0%}" for part, share in profile.items() if share >= AT_LEAST)


def _line(row: Row) -> str:
    sample = f"n = {row['n']}, {row['turns']} turns each" if "n" in row else f"{row['tokens']:,} tokens of context"
    if row["part"] in ("a", "b"):
        sample = f"one trajectory, {row['turns']} turns, {row['tokens']:,} tokens, {counted(row['rounds'], 'round')}"
    elif row["part"] == "c":
        sample += f", {counted(row['rounds'], 'round')}"
    return (
        f"| {row['what']} | {row['dtype']} | {row['value']:.3f} | {OP[row['part']]} {row['target']:g} | "
        f"{_met(row)} | {sample} |"
    )


def _met(row: Row) -> str:
    return {None: "disturbed", True: "yes", False: "no"}[row["met"]]


def _verdict(row: Row) -> str:
    verdict = "Met" if row["met"] else "Missed"
    return f"{verdict}, {row['value']:.3g} for {OP[row['part']]} {row['target']:g}: {row['what']}."


def _seconds(value: float) -> str:
    return f"{value:.3g} s" if value >= 1 else f"{value * 1e3:.3g} ms"
