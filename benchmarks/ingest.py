"""How fast recordings are read, checked and stored, and in how much memory.

`kvmill bench ingest` makes recordings of several sizes, ingests each in a process of its own, and prints MB per second
of one core (CPU time: what other programs do to the clock is left out) and the most memory the process had. `--write`
keeps the figures in benchmarks/results. The memory is the same for every size: files of any length can be read.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from kvmill.benchmarks import agent_log
from kvmill.benchmarks.memory import peak_rss_bytes
from kvmill.console import note, table

FIGURES = Path(__file__).resolve().parents[1] / "benchmarks" / "results" / "ingest.json"
PACKAGES = ("orjson", "pyarrow", "duckdb", "numpy")
SIZES_MB, REDACTED_MB, REPEATS = (30, 100, 300), 20, 3
HOLDS = {"runs": "tau-bench runs of 20 to 200 kB", "requests": "Mooncake rows with up to 60 blocks"}


def cases(sizes_mb: Sequence[float], redacted_mb: float) -> list[dict[str, Any]]:
    """What is measured: runs of every size without redaction, and one size with it, packed, and as a request log."""
    plain = [{"holds": "runs", "megabytes": size, "packed": None, "redact": False} for size in sizes_mb]
    return [
        *plain,
        {"holds": "runs", "megabytes": redacted_mb, "packed": None, "redact": True},
        {"holds": "runs", "megabytes": redacted_mb, "packed": "gzip", "redact": False},
        {"holds": "requests", "megabytes": redacted_mb, "packed": None, "redact": False},
    ]


def measured(case: dict[str, Any], repeats: int) -> dict[str, Any]:
    """The case with its figures: ingests of one made file, each in a new process and a new store.

    The fastest counts: what else runs on the machine takes caches away and can only make it slower.
    """
    with tempfile.TemporaryDirectory() as folder:
        path, size = Path(folder, "recordings"), 0
        with path.open("wb") if case["packed"] is None else gzip.open(path, "wb", compresslevel=1) as file:
            for line in getattr(agent_log, case["holds"])(case["megabytes"]):
                file.write(line)
                size += len(line)
        found = [_in_new_process(path, Path(folder, f"store-{n}"), case["redact"]) for n in range(repeats)]
    best = min(found, key=lambda row: row["cpu_s"])
    peak = max(row["peak_rss_bytes"] for row in found)
    return case | {"bytes": size, "mb_per_core_s": size / 1e6 / best["cpu_s"]} | best | {"peak_rss_bytes": peak}


def _in_new_process(path: Path, store: Path, redact: bool) -> dict[str, Any]:
    command = [sys.executable, "-m", "kvmill.benchmarks.ingest", "--one", str(path), str(store)]
    command += [] if redact else ["--no-redact"]
    quiet = os.environ | {"KVMILL_QUIET": "1", "OMP_NUM_THREADS": "1"}
    child = subprocess.run(command, env=quiet, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(child.stdout)


def one(path: str, store: str, redact: bool) -> dict[str, Any]:
    """One ingest in this process. Start and imports do not count: they are the same for every size."""
    from kvmill.traces.ingest import ingest
    from kvmill.traces.store import Store

    opened = Store.open(store)
    opened.query("select 1")
    cpu, wall = time.process_time(), time.perf_counter()
    report = ingest(opened, [path], redact=redact)
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    assert not report.rejected, report.reasons
    return {"records": report.accepted, "cpu_s": cpu, "wall_s": wall, "peak_rss_bytes": peak_rss_bytes()}


def figures(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The rows with what they were measured on."""
    from kvmill.benchmarks.machine import processor

    return {
        "machine": {"processor": processor(), "cores": os.cpu_count(), "python": platform.python_version()},
        "versions": {name: version(name) for name in PACKAGES},
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "holds": HOLDS,
        "rows": rows,
    }


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="kvmill bench ingest", description=__doc__)
    parser.add_argument("--sizes", default=",".join(map(str, SIZES_MB)), help="MB without redaction, with commas")
    parser.add_argument("--redacted", type=float, default=REDACTED_MB, help="MB of the other rows")
    parser.add_argument("--repeats", type=int, default=REPEATS, help="ingests of each, of which the fastest counts")
    parser.add_argument("--write", action="store_true", help="renew benchmarks/results")
    parser.add_argument("--json", action="store_true", help="the figures as one JSON object")
    parser.add_argument("--one", nargs=2, metavar=("FILE", "STORE"), help="one ingest, in this process")
    parser.add_argument("--no-redact", action="store_true", help="of --one")
    asked = parser.parse_args()
    if asked.one:
        print(json.dumps(one(*asked.one, redact=not asked.no_redact)))
        return
    rows = []
    for case in cases([float(size) for size in asked.sizes.split(",")], asked.redacted):
        note(f"{case['megabytes']:g} MB of {HOLDS[case['holds']]}")
        rows.append(measured(case, asked.repeats))
    found = figures(rows)
    if asked.write:
        FIGURES.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found) if asked.json else shown(rows))


def shown(rows: list[dict[str, Any]]) -> str:
    """The rows as a table."""
    told = [
        {
            "what": HOLDS[row["holds"]] + (f", {row['packed']}" if row["packed"] else ""),
            "mb": f"{row['bytes'] / 1e6:.0f}",
            "redact": "yes" if row["redact"] else "no",
            "speed": f"{row['mb_per_core_s']:.1f}",
            "rss": f"{row['peak_rss_bytes'] / 2**20:.0f}",
        }
        for row in rows
    ]
    heads = {"what": "recordings", "mb": "MB", "redact": "redacted", "speed": "MB/s of a core", "rss": "peak MiB"}
    return table(told, heads)


if __name__ == "__main__":
    main()
