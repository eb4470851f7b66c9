"""Verify and time the kernels on a GPU, from a bare checkout: `python benchmarks/gpu_check.py --out results.json`.

Needs Python 3.12, torch, triton, transformers and pyarrow; no installation, no network, at most six minutes. Every
operation is compared with its float64 reference on all shapes, timed against torch and the measured roofline, and held
to its target; one compaction is compared with one decode step; a random model is replayed. The parts run in processes
of their own, each with a time limit: a failure is a row. `--dry-run` does all of it on a CPU at toy size, under
Triton's interpreter; that of Triton 3.6 needs a numpy below 2.4, as it makes scalars of arrays.

Exit code 0: every part ended and every case is right (targets may be missed: they are figures); 2: no GPU; 6: not so.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
LIMIT_S, DRY_LIMIT_S = 350.0, 560.0
"""Of all parts together; a dry run times nothing and may meet a busy machine."""
TOGETHER = 16
"""Processes that verify at once: as many as a lent machine has cores, each a few hundred MB of the GPU."""
Row = dict[str, Any]


@contextmanager
def linked() -> Iterator[Path]:
    """A folder in which this checkout is the package `kvmill`, on the path instead of the checkout's own folders.

    transformers imports whatever is called `kernels`: it must find neither our folder nor the file beside this one.
    """
    before = list(sys.path)
    kept = [entry for entry in before if Path(entry or ".").resolve() not in (HERE, HERE.parent)]
    with tempfile.TemporaryDirectory() as name:
        (Path(name) / "kvmill").symlink_to(HERE.parent, target_is_directory=True)
        sys.path[:] = [name, *kept]
        try:
            yield Path(name)
        finally:
            sys.path[:] = before


def check(folder: Path, *, toy: bool, limit_s: float = LIMIT_S) -> Row:
    """Run every part, those that may together first; returns everything as one object."""
    from kvmill.benchmarks import gpu_parts

    start = time.monotonic()
    wanted = gpu_parts.parts(toy)
    together = [part for part, (_, beside) in wanted.items() if beside]
    ends: dict[str, Row] = {}

    def left(part: str) -> float:
        return max(1.0, min(wanted[part][0], limit_s - (time.monotonic() - start)))

    with ThreadPoolExecutor(TOGETHER) as pool:
        waiting = {part: pool.submit(lambda part=part: _run(part, folder, toy, left(part))) for part in together}
        ends |= {part: found.result() for part, found in waiting.items()}
    for part in wanted:
        if part not in ends:
            ends[part] = _run(part, folder, toy, left(part))
    return gathered(folder, ends, toy) | {"seconds": time.monotonic() - start}


def gathered(folder: Path, ends: Mapping[str, Row], toy: bool) -> Row:
    """All rows by kind, speed-ups where an operation's cases are right, and the targets."""
    import torch

    from kvmill.benchmarks import kernel_rows
    from kvmill.benchmarks.gpu_parts import known_roofline
    from kvmill.benchmarks.machine import identity

    device = torch.device("cpu" if toy else "cuda")
    rows = [row for part in ends for row in _read(part, folder)]
    by_kind = {kind: [r for r in rows if r["kind"] == kind] for kind in ("case", "time", "turn", "replay")}
    wrong = verdicts(by_kind["case"], ends)
    timed = kernel_rows.with_speedups(by_kind["time"], wrong)
    aims: list[Row] = []
    try:
        roofline = known_roofline(folder)
    except RuntimeError:
        roofline = None
    else:
        aims = [*kernel_rows.targets(timed, roofline, "cuda"), *by_kind["turn"]]
    if toy:  # nothing can be met or missed at toy size
        aims = [{**aim, "value": None, "met": None} for aim in aims]
    return {
        **identity(device),
        "dry_run": toy,
        "parts": [{"part": part, **end} for part, end in ends.items()],
        "verified": wrong,
        "roofline": None if roofline is None else vars(roofline),
        "targets": aims,
        "rows": timed,
        "replay": by_kind["replay"],
        "cases": by_kind["case"],
    }


def verdicts(cases: Sequence[Row], ends: Mapping[str, Row]) -> dict[str, str | None]:
    """Per operation None, or what is wrong with it: a case, or a verification that did not end."""
    from kvmill.benchmarks.kernel_cases import MODULES

    out: dict[str, str | None] = {}
    for part, end in ends.items():
        for op in part.split()[1:] if part.startswith("verify") else ():
            if op in MODULES and out.get(op) is None:
                out[op] = None if end["status"] == "ok" else f"{part}: {end['status']}"
    for row in cases:
        if not row["passed"] and not (out.get(row["op"]) or "").startswith("case"):
            seen = row["error"] or f"{row['deviation']:.3g} times what is allowed"
            out[row["op"]] = f"case {row['case']}, {row['impl']}: {seen}"
    return out


def _run(part: str, folder: Path, toy: bool, seconds: float) -> Row:
    """Run a part; how it ended: its own last word, a time limit, or the death of its process."""
    link = next(entry for entry in sys.path if (Path(entry) / "kvmill").exists())
    path = os.pathsep.join(filter(None, (link, os.environ.get("PYTHONPATH"))))
    env = {**os.environ, "PYTHONPATH": path, "HF_HUB_OFFLINE": "1", "KVMILL_QUIET": "1"}
    env |= {"TRITON_INTERPRET": "1"} if toy else {}
    env |= {"OMP_NUM_THREADS": "1"} if toy or part.startswith("verify") else {}  # many run beside each other
    command = [sys.executable, "-m", "kvmill.benchmarks.gpu_check", "--part", part, "--out", str(folder)]
    command += ["--dry-run"] if toy else []
    begun, last = time.monotonic(), "no output"
    try:
        done = subprocess.run(command, cwd=link, env=env, capture_output=True, text=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        end: Row = {"status": "out of time", "error": None}
    else:
        last = (done.stderr.strip().splitlines() or [last])[-1][:300]
        said = [row for row in _read(part, folder) if row["kind"] == "end"]
        end = said[-1] if said else {"status": "failed", "error": f"exit code {done.returncode}: {last}"}
    rows = [row for row in _read(part, folder) if row["kind"] != "end"]
    wrong = sum(not row["passed"] for row in rows if row["kind"] == "case")
    told = f"{part}: {end['status']}, {len(rows)} rows" + (f", {wrong} WRONG" if wrong else "")
    print(told + (f": {end['error']}" if end["error"] else ""), file=sys.stderr, flush=True)
    return {"status": end["status"], "error": end["error"], "seconds": time.monotonic() - begun}


def _read(part: str, folder: Path) -> list[Row]:
    from kvmill.benchmarks.gpu_parts import path

    file = path(folder, part)
    lines = file.read_text().splitlines() if file.is_file() else []
    # A process that was killed may have left half a line.
    return [json.loads(line) for line in lines if line.endswith("}")]


def report(found: Row) -> str:
    """What matters, short: the last 12,000 characters of the output are all that a lent machine returns."""
    versions = ", ".join(f"{name} {number}" for name, number in found["versions"].items())
    lines = [f"{found['device_name']}; {versions}; {found['seconds']:.0f} s"]
    lines += ["dry run: toy sizes, an interpreter; the seconds mean nothing"] if found["dry_run"] else []
    right = sum(row["passed"] for row in found["cases"])
    lines.append(f"{right} of {len(found['cases'])} cases right")
    lines += [f"  WRONG {op}: {reason}" for op, reason in found["verified"].items() if reason]
    if found["roofline"]:
        rates = ", ".join(f"{name} {rate / 1e12:.4g}" for name, rate in found["roofline"]["flops_per_s"].items())
        lines.append(f"copy {found['roofline']['copy_bytes_per_s'] / 1e9:.4g} GB/s; TFLOP/s: {rates}")
    for row in found["rows"]:
        took = "–" if row["seconds"] is None else f"{row['seconds'] * 1e6:.4g} µs, {row['roofline_share']:.0%}"
        name = f"{row['op']} {row['shape']} {row['dtype']} {row['provider']}"
        lines.append(f"  {name}: {took}{'; ' + row['note'] if row['note'] else ''}")
    for row in found["replay"]:
        shown = {k: v for k, v in row.items() if k not in ("kind", "model") and v is not None}
        lines.append(
            "  replay " + ", ".join(f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in shown.items())
        )
    for aim in found["targets"]:
        said = {None: "not measured", True: "met", False: "NOT met"}[aim["met"]]
        value = "" if aim["value"] is None else f"{aim['value']:.3g}, "
        lines.append(f"{aim['op']}: {value}target {aim['target']:g} {aim['what']}: {said}")
    return "\n".join(lines)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="gpu_check", description=__doc__)
    parser.add_argument("--out", type=Path, help="file for all rows as JSON ($OUT/gpu_check.json, else gpu_check.json)")
    parser.add_argument("--dry-run", action="store_true", help="every part on the CPU at toy size")
    parser.add_argument("--json", action="store_true", help="print all rows as one JSON object")
    parser.add_argument("--part", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.part:
        from kvmill.benchmarks import gpu_parts

        gpu_parts.run(asked.part, asked.out, toy=asked.dry_run)
        return
    with linked(), tempfile.TemporaryDirectory() as folder:
        import torch

        if not asked.dry_run and not torch.cuda.is_available():
            sys.stderr.write("error: no CUDA device is here: nothing can be said about a GPU (try --dry-run)\n")
            sys.exit(2)
        found = check(Path(folder), toy=asked.dry_run, limit_s=DRY_LIMIT_S if asked.dry_run else LIMIT_S)
    out = asked.out or Path(os.environ.get("OUT", ".")) / "gpu_check.json"
    out.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found) if asked.json else report(found))
    whole = all(part["status"] == "ok" for part in found["parts"]) and not any(found["verified"].values())
    sys.exit(0 if whole else 6)


if __name__ == "__main__":
    main()
