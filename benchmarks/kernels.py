"""How fast the kernels are, against the naive form, the best form of torch, and the measured roofline of the machine.

`kvmill bench kernels` times every operation on this machine and says which targets hold; `--quick` takes one shape of
each. A speed-up is shown only where the operation's tests pass, and nothing is timed on a busy machine. `--write`
renews the page and the figures. On a GPU machine without the rest of kvmill use `gpu_check` instead.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from kvmill.benchmarks import kernel_rows, memory
from kvmill.benchmarks.kernel_contests import BUILD
from kvmill.benchmarks.machine import BUSY_CORES, identity, other_cores
from kvmill.benchmarks.roofline import Roofline, measure
from kvmill.benchmarks.verified import verified
from kvmill.console import Progress, plain, table
from kvmill.errors import UserError, unknown
from kvmill.replay.device import choose_device, choose_threads

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "kernels.md"
FIGURES = ROOT / "benchmarks" / "results" / "kernels.json"
ON_GPU = ROOT / "benchmarks" / "results" / "gpu_check.json"  # of `gpu_check`
BUDGETS_S = {"quick": 1.0, "default": 5.0, "toy": 0.01}
"""Of one contest; the roofline takes as long for each of its measurements."""
DTYPES = (torch.float32, torch.bfloat16)


def figures(
    ops: Sequence[str], device: torch.device, *, size: str = "default", verify: bool = True, force: bool = False
) -> dict[str, Any]:
    """Rows, targets and roofline of these operations. UserError where others use the CPU, unless forced."""
    wrong = (
        verified(ops, device.type, quick=size == "quick")
        if verify
        else dict.fromkeys(ops, "not verified (--no-verify)")
    )
    if (busy := other_cores()) is not None and busy > BUSY_CORES and not force:
        raise UserError(f"other processes use {busy:.1f} cores: wait until they are done, or time anyway with --force")
    budget_s = BUDGETS_S[size]
    roofline = measure(device, DTYPES, budget_s / 2, toy=size == "toy")
    bar = Progress("bench kernels", len(ops), "operations")
    rows: list[dict[str, Any]] = []
    for op in ops:
        # Others may come later: their rows say so and show no speed-up.
        busy = other_cores(0.2)
        more = {"other_cores": busy, "disturbed": busy is not None and busy > BUSY_CORES}
        compiled = size == "default"
        rows += kernel_rows.rows_of(op, device, roofline, size=size, budget_s=budget_s, compiled=compiled, **more)
        bar.step(detail=op)
    rows = kernel_rows.with_speedups(rows, wrong)
    return {
        **identity(device),
        "forced": force,
        "verified": {op: reason is None for op, reason in wrong.items()},
        "roofline": {"copy_gb_per_s": roofline.copy_bytes_per_s / 1e9, "tflop_per_s": _tera(roofline)},
        "targets": kernel_rows.targets(rows, roofline, device.type),
        "rows": rows,
    }


def text(found: Mapping[str, Any]) -> str:
    """What is printed: the roofline, a line per provider, and the targets."""
    ceilings = ", ".join(f"{name} {rate:.2f} TFLOP/s" for name, rate in found["roofline"]["tflop_per_s"].items())
    head = f"{found['device_name']}, {found['threads']} threads: copy {found['roofline']['copy_gb_per_s']:.1f} GB/s, "
    lines = [head + ceilings, "", table([_line(row) for row in found["rows"]], COLUMNS), ""]
    return "\n".join(lines + [target_line(target) for target in found["targets"]])


COLUMNS = {
    "op": "operation",
    "shape": "shape",
    "provider": "form",
    "ms": "median ms",
    "range": "20 %–80 %",
    "gb_per_s": "GB/s",
    "tflop_per_s": "TFLOP/s",
    "share": "of roofline",
    "speedup_naive": "× naive",
    "speedup_torch": "× torch",
    "note": "note",
}


def _line(row: Mapping[str, Any]) -> dict[str, Any]:
    ms = None if row["seconds"] is None else row["seconds"] * 1e3
    between = None if ms is None else f"{row['seconds_p20'] * 1e3:.3g}–{row['seconds_p80'] * 1e3:.3g}"
    share = None if row["roofline_share"] is None else f"{row['roofline_share']:.0%}"
    noted = "; ".join(filter(None, (row["note"], "disturbed" if row.get("disturbed") else None)))
    shown = {"shape": f"{row['shape']} {row['dtype']}", "ms": ms, "range": between, "share": share, "note": noted}
    return {**row, **shown}


def target_line(target: Mapping[str, Any]) -> str:
    """One target as a line."""
    said = {None: "not measured", True: "met", False: "NOT met"}[target["met"]]
    value = "" if target["value"] is None else f"{target['value']:.2f}, "
    return f"{target['op']}: {value}target {target['target']:g} {target['what']}: {said}"


def written(found: Mapping[str, Any]) -> str:
    """The figures as JSON with a line for every row."""
    head = json.dumps({k: v for k, v in found.items() if k != "rows"}, indent=1, ensure_ascii=False)
    body = ",\n".join(f"  {json.dumps(row, ensure_ascii=False)}" for row in found["rows"])
    return head.removesuffix("\n}") + f',\n "rows": [\n{body}\n ]\n}}\n'


def _tera(roofline: Roofline) -> dict[str, float]:
    return {name: rate / 1e12 for name, rate in roofline.flops_per_s.items()}


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="kvmill bench kernels", description=__doc__)
    parser.add_argument("--op", action="append", help="this operation only (may be given again)")
    parser.add_argument("--device", default="auto", help="cpu or cuda (cuda where there is one)")
    parser.add_argument("--threads", type=int, help="torch threads (the physical cores)")
    parser.add_argument("--quick", action="store_true", help="one shape each, no torch.compile, under a minute")
    parser.add_argument("--no-verify", action="store_true", help="run no tests, show no speed-up")
    parser.add_argument("--force", action="store_true", help="time on a busy machine too; the rows say so")
    parser.add_argument("--write", action="store_true", help="renew docs/kernels.md and benchmarks/results")
    parser.add_argument("--from-figures", action="store_true", help="time nothing: write the page anew")
    parser.add_argument("--json", action="store_true", help="the figures as one JSON object")
    asked = parser.parse_args()
    if asked.from_figures:
        found = json.loads(FIGURES.read_text())
    else:
        for op in asked.op or ():
            if op not in BUILD:
                raise unknown("operation", op, BUILD, "--op")
        device = choose_device(asked.device)
        torch.set_num_threads(choose_threads(asked.threads))
        memory.settle()
        size = "quick" if asked.quick else "default"
        found = figures(asked.op or list(BUILD), device, size=size, verify=not asked.no_verify, force=asked.force)
    if asked.write:
        FIGURES.write_text(written(plain(found)))
    if asked.write or asked.from_figures:
        from kvmill.benchmarks.pages.kernels import page

        PAGE.write_text(page(found, json.loads(ON_GPU.read_text()) if ON_GPU.is_file() else None))
    if asked.json:
        sys.stdout.write(json.dumps(plain(found), ensure_ascii=False) + "\n")
    elif not asked.from_figures:
        print(text(found))


if __name__ == "__main__":
    main()
