"""What a replay costs, against what it could cost: lockstep, a bare forward, transformers' decoding, bfloat16.

`kvmill bench replay` measures the bundled model on this machine, in about ten minutes on one thread, and says which
targets hold; `--part a` measures one part. Where a target is missed, the shares of time say why. Nothing is timed on a
busy machine. `--write` renews the figures and the last section of docs/method.md, from complete runs only.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kvmill.benchmarks.machine import BUSY_CORES, identity, other_cores
from kvmill.benchmarks.pages.replay import counted, page, shares
from kvmill.benchmarks.replay_parts import PARTS, TOY, Size
from kvmill.console import Progress, plain, table
from kvmill.errors import UserError
from kvmill.replay.model import load_model
from kvmill.replay.weights import DEFAULT_MODEL

ROOT = Path(__file__).resolve().parents[1]
FIGURES = ROOT / "benchmarks" / "results" / "replay.json"
PAGE = ROOT / "docs" / "method.md"


def figures(
    parts: Sequence[str],
    *,
    model: str = DEFAULT_MODEL,
    device: str = "auto",
    dtype: str = "auto",
    threads: int | None = None,
    size: Size | None = None,
    force: bool = False,
) -> dict[str, Any]:
    """Rows and targets of these parts. UserError where others use the CPU, unless forced."""
    if (busy := other_cores()) is not None and busy > BUSY_CORES and not force:
        raise UserError(f"other processes use {busy:.1f} cores: wait until they are done, or time anyway with --force")
    loaded = load_model(model, device=device, dtype=dtype, threads=threads)
    bar = Progress("bench replay", len(parts), "parts")
    rows: list[dict[str, Any]] = []
    for part in parts:
        before = other_cores()
        found = PARTS[part](loaded, size or Size())
        # Others may come later: their rows say so, and a time among them meets no target.
        use = max((cores for cores in (before, other_cores()) if cores is not None), default=None)
        disturbed = use is not None and use > BUSY_CORES
        noted = {"other_cores": use, "disturbed": disturbed}
        shared = {"model": model, "dtype": loaded.dtype_name, **identity(loaded.device), **noted}
        rows += [shared | row | ({"met": None} if disturbed and part != "d" else {}) for row in found]
        bar.step(detail=part)
    names = ("part", "what", "value", "target", "met")
    return {
        **identity(loaded.device),
        "model": model,
        "complete": sorted(parts) == sorted(PARTS) and size is None,
        "targets": [{name: row[name] for name in names} for row in rows],
        "rows": rows,
    }


def text(found: Mapping[str, Any]) -> str:
    """A line per target, and where one is missed, where the time went."""
    lines = [
        {
            "part": row["part"],
            "what": row["what"],
            "value": f"{row['value']:.3f}",
            "target": f"{row['target']:g}",
            "met": {None: "disturbed", True: "yes", False: "NO"}[row["met"]],
            "seconds": f"{row['seconds']:.3g}",
            "against": f"{row['against_s']:.3g}",
            "dtype": row["dtype"],
        }
        for row in found["rows"]
    ]
    head = f"{found['device_name']}, {counted(found['threads'], 'thread')}, {found['model']}"
    missed = [row for row in found["rows"] if not row["met"] and "profile" in row]
    return "\n".join([head, "", table(lines, {name: name for name in lines[0]}), *map(profile_line, missed)])


def profile_line(row: Mapping[str, Any]) -> str:
    """Where the time of a row went."""
    return f"{row['part']}, {row['what']}: {shares(row['profile'])}"


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="kvmill bench replay", description=__doc__)
    parser.add_argument("--part", action="append", choices=list(PARTS), help="this part only (may be given again)")
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--device", default="auto", help="cpu or cuda (cuda where there is one)")
    parser.add_argument("--dtype", default="auto", help="of parts a, b and c")
    parser.add_argument("--threads", type=int, help="torch threads (the physical cores)")
    parser.add_argument("--toy", action="store_true", help="everything very small: whether it runs, not how fast")
    parser.add_argument("--force", action="store_true", help="time on a busy machine too; the rows say so")
    parser.add_argument("--write", action="store_true", help="renew docs/method.md and benchmarks/results")
    parser.add_argument("--from-figures", action="store_true", help="time nothing: write the page anew")
    parser.add_argument("--json", action="store_true", help="the figures as one JSON object")
    asked = parser.parse_args()
    if asked.write and (asked.part or asked.toy):
        parser.error("--write needs all parts at full size: leave --part and --toy out")
    if asked.from_figures:
        found = json.loads(FIGURES.read_text())
    else:
        found = figures(
            asked.part or list(PARTS),
            model=asked.model,
            device=asked.device,
            dtype=asked.dtype,
            threads=asked.threads,
            size=TOY if asked.toy else None,
            force=asked.force,
        )
    if asked.write:
        FIGURES.write_text(json.dumps(plain(found), indent=1, ensure_ascii=False) + "\n")
    if asked.write or asked.from_figures:
        PAGE.write_text(page(PAGE.read_text(), found))
    print(json.dumps(plain(found), ensure_ascii=False) if asked.json else text(found))


if __name__ == "__main__":
    main()
