"""The parts of `gpu_check`, each run by a process of its own: a kernel that breaks the device breaks one part only.

A part yields rows, which its process writes down one by one: what was done before a failure or a time limit is kept.
"""

from __future__ import annotations

import json
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from .kernel_cases import MODULES
from .kernel_contests import BUILD
from .kernel_problems import cases
from .roofline import Roofline, measure

Row = dict[str, Any]
FORMS = ("torch", "triton")
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
TIMED_ALONE = {"attention_mass": 50.0, "decode_attention": 30.0, "compact_kv": 30.0}
"""Those that have targets, each in a part of so many seconds."""
BUDGET_S = 1.0
TOY_S = 300.0
"""For a part of a dry run, which a busy machine may slow down."""


def parts(toy: bool) -> dict[str, tuple[float, bool]]:
    """Part → seconds it may take, and whether it may run beside others (what is timed may not).

    Verification is mostly Triton's compiler at work: a part for each operation and dtype keeps all cores busy.
    """
    if toy:
        alone = dict.fromkeys(("roofline", f"time {' '.join(BUILD)}", "turn"), (TOY_S, False))
        return {f"verify {' '.join(MODULES)}": (TOY_S, True), **alone, "replay": (TOY_S, True)}
    checks = {f"verify {op} {_name(dtype)}": (90.0, True) for op in MODULES for dtype in DTYPES}
    rest = [op for op in BUILD if op not in TIMED_ALONE]
    timed = {f"time {op}": (seconds, False) for op, seconds in TIMED_ALONE.items()}
    timed[f"time {' '.join(rest)}"] = (55.0, False)
    return checks | {"roofline": (20.0, False)} | timed | {"turn": (30.0, False), "replay": (45.0, False)}


def run(part: str, folder: Path, *, toy: bool) -> None:
    """Write the rows of a part to a file of its own in `folder`, one JSON object a line; the last says how it ended."""
    device = torch.device("cpu" if toy else "cuda")
    with path(folder, part).open("w") as file:

        def write(row: Row) -> None:
            file.write(json.dumps(row) + "\n")
            file.flush()

        try:
            for row in _rows(part, folder, device, toy):
                write(row)
        except Exception as error:
            at = traceback.extract_tb(error.__traceback__)[-1]
            write({"kind": "end", "status": "failed", "error": f"{_said(error)} ({at.name}, line {at.lineno})"})
        else:
            write({"kind": "end", "status": "ok", "error": None})


def path(folder: Path, part: str) -> Path:
    """Where the rows of a part are."""
    return folder / (part.replace(" ", "-")[:80] + ".jsonl")


def _rows(part: str, folder: Path, device: torch.device, toy: bool) -> Iterator[Row]:
    name, *ops = part.split()
    budget_s = 0.01 if toy else BUDGET_S
    if name == "verify":
        dtypes = [dtype for dtype in DTYPES if _name(dtype) in ops] or list(DTYPES)
        for op in (word for word in ops if word not in map(_name, DTYPES)):
            yield from ({"kind": "case", **row} for row in verify(op, device, dtypes, toy=toy))
    elif name == "roofline":
        yield {"kind": "roofline", **asdict(measure(device, DTYPES, budget_s, toy=toy))}
    elif name == "time":
        from .kernel_rows import rows_of

        size = "toy" if toy else "default"
        for op in ops:
            found = rows_of(op, device, known_roofline(folder), size=size, budget_s=budget_s, compiled=not toy)
            yield from ({"kind": "time", **row} for row in found)
    elif name == "turn":
        from .gpu_turn import turns

        found = turns(device, known_roofline(folder).copy_bytes_per_s, toy=toy, budget_s=budget_s)
        yield from ({"kind": "turn", **row} for row in found)
    else:
        from .gpu_replay import replays

        yield from ({"kind": "replay", **row} for row in replays(device, toy=toy))


def verify(op: str, device: torch.device, dtypes: Sequence[torch.dtype], *, toy: bool) -> Iterator[Row]:
    """Every case of an operation in every form: its error in units of what is allowed, or why there is none."""
    for case in (case for case in cases(op, full=not toy) if case.dtype in dtypes):
        for impl in FORMS:
            row: Row = {"op": op, "case": case.label, "impl": impl, "deviation": None, "error": None}
            try:
                row["deviation"] = min(case.error(impl, device), 1e30)  # JSON has no infinity
            except Exception as error:
                row["error"] = _said(error)
            yield {**row, "passed": row["error"] is None and row["deviation"] <= 1}


def known_roofline(folder: Path) -> Roofline:
    """What the part `roofline` measured. RuntimeError where it did not."""
    file = path(folder, "roofline")
    for line in file.read_text().splitlines() if file.is_file() else ():
        row = json.loads(line)
        if row.pop("kind") == "roofline":
            return Roofline(**row)
    raise RuntimeError("the roofline was not measured")


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _said(error: Exception) -> str:
    text = str(error).strip()
    return f"{type(error).__name__}: {text.splitlines()[0][:300]}" if text else type(error).__name__
