"""The last section of docs/simulator.md, from figures: the paper's method line by line, and how fast all this is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]
HEAD = "## Figures"
WHAT = {
    "agents": "agents of 25 turns on 16 replicas",
    "requests": "single requests, 512 in, 128 out, one replica",
    "plan": "a plan, three policies",
}


def page(text: str, found: Row) -> str:
    """The page with its section on figures renewed; ValueError when the page has none."""
    before, mark, _ = text.partition(f"{HEAD}\n")
    if not mark:
        raise ValueError(f"the page has no section {HEAD!r}")
    machine = found["machine"]
    parts = [
        HEAD,
        f"Written by `kvmill bench simulator --write`; do not edit from here on. {machine['processor']}, "
        f"{machine['cores']} cores, Python {machine['python']}, {found['date']}.",
        "### What of the paper's Table 2 does not follow from its inputs",
        "\n".join(f"- {finding}" for finding in found["findings"]),
        *walks([row for row in found["rows"] if row["what"] == "walk"]),
        *speed(found),
    ]
    return before + "\n\n".join(parts) + "\n"


def walks(rows: Sequence[Row]) -> list[str]:
    """The paper's method on a workload: a line for everything that is counted beside, each case in two columns."""
    if not rows:
        return []
    cases = [f"{row['model']} on {row['gpu']}, {row['dtype']}" for row in rows]
    head = ["### The paper's method on long-agents", f"`full` → `{rows[0]['policy']}`, one replica."]
    table = ["| counting | | " + " | ".join(f"{case}: batch | sessions/h | ratio" for case in cases) + " |"]
    table.append("|---|---|" + "---:|---:|---:|" * len(cases))
    for key in dict.fromkeys(line["key"] for row in rows for line in row["lines"]):
        found = [next((line for line in row["lines"] if line["key"] == key), None) for row in rows]
        first = next(line for line in found if line is not None)
        cells = [_pairs(line) if line else "– | – | –" for line in found]
        table.append(f"| {first['what']} | *{first['label']}* | {' | '.join(cells)} |")
    return [*head, "\n".join(table)]


def _pairs(line: Row) -> str:
    batch, rate = line["batch"], line["sessions_per_hour"]
    return f"{batch[0]:.3g} → {batch[1]:.3g} | {rate[0]:.3g} → {rate[1]:.3g} | {line['ratio']:.2g} ×"


def speed(found: Row) -> list[str]:
    """How long simulations take, and which targets are met."""
    rows = [row for row in found["rows"] if row["what"] != "walk"]
    table = ["| what | policy | turns | seconds | ms per turn | peak MiB |", "|---|---|---:|---:|---:|---:|"]
    return [
        "### Speed",
        "CPU time of one core, start and imports left out; the plan in seconds of the clock, in two processes, from an "
        "empty store.",
        "\n".join([*table, *map(_line, rows)]),
        "\n".join(f"- {t['what']}: {t['value']:.3g}, at most {t['at_most']:g}: {_met(t)}." for t in found["targets"]),
        "Peers, run on the same kind of machine: 0.36 to 0.65 ms per single-turn request and 3.8 to 13 ms per turn of "
        "a session (BLIS, in Go), 1.3 to 5.5 ms per request (Vidur, Python).",
    ]


def _line(row: Row) -> str:
    if row["what"] == "plan":
        return f"| {WHAT['plan']}, {row['replications']} replications | {row['policy']} | | {row['wall_s']:.0f} | | |"
    peak = row["peak_rss_bytes"] / 2**20
    return (
        f"| {WHAT[row['what']]} | {row['policy']} | {row['turns']:,} | {row['cpu_s']:.1f} | {row['ms_per_turn']:.4f} | "
        f"{peak:.0f} |"
    )


def _met(target: Row) -> str:
    return "met" if target["met"] else "**not met**"
