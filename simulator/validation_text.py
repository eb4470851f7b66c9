"""What `validate` found, as text and as the page of the documentation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..console import table

HEAD = """# Validation of the simulator

Printed by `kvmill validate --markdown`. *exact*: an identity of the engine, true at any seed; an order between runs of
the same seeds; an account of memory, or of a published table. *interval*: a closed form that lies inside the
simulation's own interval from 30 batch means, 99 % over all interval checks together (Bonferroni), seed 0; the limit is
the half-width, which may be 2 % of the truth, and 5 % beyond a load of 0.9. *reality*: what was measured on real
machines, simulated again; signed errors are relative.
"""
CHECKS = ("check", "kind", "value", "truth", "error", "limit", "passed")
SWINGS = ("run", "constant", "times", "TTFT", "TPOT", "E2E")
SWINGS_HEAD = "What the recorded runs rest on"
SWINGS_NOTE = "Signed errors of the means when one constant of the cost model is 20 % smaller or larger."
OTHERS = ("model", "GPU", "dtype", "engine", "rows", "mean error", "p10", "median", "p90")
OTHERS_HEAD = "Where nothing was fitted"
OTHERS_NOTE = """Closed-loop rows of other models, GPUs and engines at the shipped constants: mean absolute error of
the time per output token, and percentiles of the signed error (below 0: measured slower than simulated). No tolerance
is claimed here: calibrate on rows like your own (`kvmill calibrate`) where this matters."""


def text(found: dict[str, Any]) -> str:
    """The verdict first, then the checks as a table, what was skipped, and what the recorded runs say beyond."""
    parts = [verdict(found), _plain(CHECKS, [_check(check, ".3g") for check in found["checks"]])]
    parts += ["\n".join(f"skipped: {row['name']}: {row['reason']}" for row in found["skipped"])]
    for heading, columns, rows in _beyond(found):
        parts.append(f"{heading}\n\n{_plain(columns, rows)}")
    return "\n\n".join(part for part in parts if part)


def markdown(found: dict[str, Any]) -> str:
    """The same as a page of the documentation."""
    lines = [HEAD, verdict(found), *_rows(CHECKS, [_check(check, ".6g") for check in found["checks"]], 2)]
    if found["skipped"]:
        lines += ["", *(f"- skipped: {row['name']}: {row['reason']}" for row in found["skipped"])]
    notes = {SWINGS_HEAD: SWINGS_NOTE, OTHERS_HEAD: OTHERS_NOTE}
    for heading, columns, rows in _beyond(found):
        lines += ["", f"## {heading}", "", notes[heading], *_rows(columns, rows, 2 if columns is SWINGS else 4)]
    return "\n".join(lines) + "\n"


def verdict(found: dict[str, Any]) -> str:
    """How many checks, and how many failed or were left out."""
    failed = sum(not check["passed"] for check in found["checks"])
    left = f"; {len(found['skipped'])} skipped" if found["skipped"] else ""
    return f"{len(found['checks'])} checks, {f'{failed} failed' if failed else 'all passed'}{left}."


def _check(check: dict[str, Any], digits: str) -> tuple[str, ...]:
    figures = (f"{check[name]:{digits}}" for name in ("value", "truth"))
    error = f"{check['signed']:+.2%}" if check["signed"] is not None else f"{check['error']:.2g}"
    limit = f"{check['limit']:.2g}" if check["signed"] is None else f"{check['limit']:.0%}"
    return check["name"], check["kind"], *figures, error, limit, "yes" if check["passed"] else "NO"


def _beyond(found: dict[str, Any]) -> list[tuple[str, Sequence[str], list[tuple[str, ...]]]]:
    """The tables beside the checks, as far as they have rows."""
    swings = [
        (row["run"], row["constant"] or "as it is", f"{row['factor']:g}", *_signed(row, ("ttft", "tpot", "e2e")))
        for row in found["sensitivity"]
    ]
    others = [
        (
            *(str(row[name]) for name in ("model", "gpu", "dtype", "engine", "rows")),
            f"{row['error']:.1%}",
            *_signed(row, ("p10", "p50", "p90")),
        )
        for row in found["elsewhere"]
    ]
    tables = [(SWINGS_HEAD, SWINGS, swings), (OTHERS_HEAD, OTHERS, others)]
    return [entry for entry in tables if entry[2]]


def _signed(row: dict[str, Any], names: Sequence[str]) -> list[str]:
    return [f"{row[name]:+.1%}" for name in names]


def _plain(columns: Sequence[str], rows: list[tuple[str, ...]]) -> str:
    return table([dict(zip(columns, row, strict=True)) for row in rows], {name: name for name in columns})


def _rows(columns: Sequence[str], rows: list[tuple[str, ...]], left: int) -> list[str]:
    """A Markdown table; its first `left` columns are words."""
    rule = "|" + "---|" * left + "---:|" * (len(columns) - left)
    return ["", *(f"| {' | '.join(row)} |" for row in [tuple(columns)]), rule, *(f"| {' | '.join(r)} |" for r in rows)]
