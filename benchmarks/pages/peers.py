"""Two programs' selections compared head by head: what `kvmill bench peers` prints and what docs/policies.md tells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

Row = Mapping[str, Any]
ROUNDING = 1e-4
"""Relative gap of two float32 scores below which the order of summation may decide which is larger."""
WINDOW = 64
"""Latest tokens that snapkv always keeps, on both sides."""


def compared(
    mine: NDArray[np.bool_], theirs: NDArray[np.bool_], scores: NDArray[np.float32], *, together: bool = False
) -> dict[str, Any]:
    """Heads that keep the same tokens, and how near the boundary the others differ. All are (layers, heads, n).

    The boundary is the lowest of `scores` (theirs) that they keep: in each head, or in all heads `together`. A head's
    `gap` is the largest distance of a differing token's score from it, relative to the boundary; `tie` says that all
    of them equal it exactly, so that their code could as well have kept ours.
    """
    if mine.shape != theirs.shape or mine.shape != scores.shape:
        raise ValueError(f"shapes differ: {mine.shape}, {theirs.shape}, {scores.shape}")
    exact = scores.astype(np.float64)
    lowest = np.where(theirs, exact, np.inf)
    lowest = np.full(mine.shape[:2], lowest.min()) if together else lowest.min(-1)
    differing = []
    for layer, head in np.argwhere((mine != theirs).any(-1)).tolist():
        tokens, boundary = (mine != theirs)[layer, head], lowest[layer, head]
        distance = float(np.abs(exact[layer, head][tokens] - boundary).max())
        gap = distance / max(abs(float(boundary)), np.finfo(np.float32).tiny)
        differing.append({"layer": layer, "head": head, "tokens": int(tokens.sum()), "gap": gap, "tie": distance == 0})
    heads = mine.shape[0] * mine.shape[1]
    kept = [int(mine.sum()), int(theirs.sum())]
    return {"heads": heads, "equal": heads - len(differing), "kept": kept, "differing": differing}


def lines(cells: Sequence[Row]) -> list[dict[str, Any]]:
    """A row per policy, prompt and keep, and below it one per differing head that is no tie."""
    out: list[dict[str, Any]] = []
    for cell in cells:
        what = {"policy": cell["policy"], "tokens": cell["compared"], "keep": cell["keep"]}
        told = {"equal heads": f"{cell['equal']}/{cell['heads']}", **_reasons(cell["differing"])}
        out.append({**what, **told})
        out += [
            {
                **dict.fromkeys([*what, *told], ""),
                "policy": f"  layer {head['layer']}, head {head['head']}: {head['tokens']} tokens differ",
                "largest gap": head["gap"],
            }
            for head in cell["differing"]
            if not head["tie"]
        ]
    return out


def totals(cells: Sequence[Row]) -> list[dict[str, Any]]:
    """A row per policy, over all prompts and keeps."""
    out = []
    for policy in dict.fromkeys(cell["policy"] for cell in cells):
        mine = [cell for cell in cells if cell["policy"] == policy]
        equal, heads = sum(cell["equal"] for cell in mine), sum(cell["heads"] for cell in mine)
        differing = [head for cell in mine for head in cell["differing"]]
        out.append({"policy": policy, "equal heads": f"{equal:,}/{heads:,}", **_reasons(differing)})
    return out


def section(found: Row) -> str:
    """The section of docs/policies.md, from what `benchmarks.peers.figures` returns."""
    cells, versions = found["cells"], found["versions"]["kvpress"]
    lengths = sorted({cell["tokens"] for cell in cells})
    keeps = sorted({cell["keep"] for cell in cells})
    rows = totals(cells)
    columns = list(rows[0])
    table = ["| " + " | ".join(columns) + " |", "|---" * len(columns) + "|"]
    table += ["| " + " | ".join(_cell(row[name]) for name in columns) + " |" for row in rows]
    told = "\n".join(table)
    return (
        f"Measured by `kvmill bench peers --write`: what `kvmill.select` keeps against kvpress {versions['kvpress']} "
        f"(transformers {versions['transformers']}, torch {versions['torch']}), {found['model']} in {found['dtype']}, "
        f"{len(lengths)} prompts of {lengths[0]:,} to {lengths[-1]:,} tokens of the bundled samples, "
        f"keep {' and '.join(keeps)}. A head counts as equal when it keeps the same tokens, index by index; a tie is a "
        "head where all differing tokens have one and the same score in kvpress. The gap is relative to the score at "
        f"the boundary.\n\n{told}\n\n{_verdict(cells)}{_ties(cells)} "
        "`kvzip` is compared with and without the chat template's opening; its per-head form takes the best of every "
        "head by kvpress's scores, which selects over all heads together only. `rkv` is not in kvpress: tests hold it "
        "against its formula."
    )


def _reasons(differing: Sequence[Row]) -> dict[str, Any]:
    others = [head["gap"] for head in differing if not head["tie"]]
    ties = len(differing) - len(others)
    return {"exact ties": ties, "other heads": len(others), "largest gap": max(others, default=None)}


def _verdict(cells: Sequence[Row]) -> str:
    wrong = [cell for cell in cells if any(head["gap"] > ROUNDING for head in cell["differing"])]
    if wrong:
        told = ", ".join(f"{c['policy']} ({c['compared']:,} tokens, keep {c['keep']})" for c in wrong)
        return f"**Not explained by rounding** (gaps above {ROUNDING:g}): {told}."
    if all(cell["equal"] == cell["heads"] for cell in cells):
        return "Every head keeps the same tokens."
    return f"Every head that differs does so at a tie or within rounding (gaps below {ROUNDING:g})."


def _ties(cells: Sequence[Row]) -> str:
    """Where snapkv may keep fewer tokens than its window: all of those have one score."""
    small = [c for c in cells if c["policy"] == "snapkv" and c["kept"][0] < WINDOW * c["heads"] and c["differing"]]
    if not small:
        return ""
    told = " and ".join(f"{c['compared']:,} tokens at keep {c['keep']}" for c in small)
    return (
        f" With {told}, `snapkv` may keep fewer tokens than its window of {WINDOW}, which all have the same score: "
        "kvmill keeps the latest of them, kvpress any."
    )


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    return f"{value:.1e}" if isinstance(value, float) else f"{value}"
