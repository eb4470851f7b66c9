"""The last section of docs/simulator.md, from figures: how fast the simulator is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Row = Mapping[str, Any]
HEAD = "## Speed"
WHAT = {
    "agents": "agents of 25 turns on 16 replicas",
    "requests": "single requests, 512 in, 128 out, one replica",
    "plan": "a plan, three policies",
}


def page(text: str, found: Row) -> str:
    """The page with its section on speed renewed; ValueError when the page has none."""
    before, mark, _ = text.partition(f"{HEAD}\n")
    if not mark:
        raise ValueError(f"the page has no section {HEAD!r}")
    return before + speed(found)


def speed(found: Row) -> str:
    """The section."""
    machine = found["machine"]
    where = f"{machine['processor']}, {machine['cores']} cores, Python {machine['python']}, {found['date']}"
    lines = [
        HEAD,
        "",
        f"Written by `kvmill bench simulator --write`; do not edit from here on. {where}. CPU time of one core, start "
        "and imports left out; the plan in seconds of the clock, two processes, from an empty store.",
        "",
        "| what | policy | turns | seconds | ms per turn | peak MiB |",
        "|---|---|---:|---:|---:|---:|",
        *map(_line, found["rows"]),
        "",
        *(f"- {t['what']}: {t['value']:.3g}, at most {t['at_most']:g}: {_met(t)}." for t in found["targets"]),
        "",
        "Peers, run on the same kind of machine: 0.36 to 0.65 ms per single-turn request and 3.8 to 13 ms per turn "
        "of a session (BLIS, in Go), 1.3 to 5.5 ms per request (Vidur, Python).",
    ]
    return "\n".join(lines) + "\n"


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
