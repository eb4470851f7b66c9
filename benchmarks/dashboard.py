"""How long a page of the dashboard takes to answer on a store of 1,000 trajectories and 200,000 turn rows.

`kvmill bench dashboard` draws such a store at random, opens every page once on a small one (so that what Python has to
load is loaded, as in a server that runs), and then on the large one: the first answer, with nothing remembered of it,
and the answer to a visitor who comes again. Without a browser: what the server does until the page is whole.
`--write` renews the figures.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import secrets
import shutil
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

from streamlit.testing.v1 import AppTest

from kvmill.api import plan
from kvmill.benchmarks.dashboard_store import fill
from kvmill.benchmarks.memory import peak_rss_bytes
from kvmill.console import note, table
from kvmill.replay import statistics
from kvmill.replay.policies.registry import QUICK_POLICIES
from kvmill.traces.store import Store

ROOT = Path(__file__).resolve().parents[1]
APP, FIGURES = ROOT / "dashboard" / "app.py", ROOT / "benchmarks" / "results" / "dashboard.json"
PACKAGES = ("altair", "duckdb", "pyarrow", "streamlit")
SMALL, TARGET_S = 40, 2.0
VIEWS = ("Memory over turns", "Seconds per turn", "Age of the fact", "Families", "Behaviour")


def visits(runs: dict[str, str]) -> list[tuple[str, dict[str, str]]]:
    """What is opened: page and address."""
    replay = {"run": runs["replay"]}
    other = ("overview", "traces", "replay", "inspector", "capacity", "regressions", "jobs")
    compared = [("compare", replay | {"view": view}) for view in VIEWS]
    return [*compared, *((page, dict(replay) if page == "inspector" else {}) for page in other)]


def opened(page: str, address: dict[str, str]) -> tuple[float, float, float]:
    """Seconds until the page is whole: at the first visit and at the next, and CPU seconds of the first.

    RuntimeError if it shows a stack trace.
    """
    app = AppTest.from_file(str(APP), default_timeout=120)
    app.run()
    app.switch_page(f"app_pages/{page}.py")
    for name, value in address.items():
        app.query_params[name] = value
    took: list[float] = []
    cpu = time.process_time()
    for _ in range(2):
        begun = time.perf_counter()
        app.run()
        took += [time.perf_counter() - begun, time.process_time() - cpu]
        if app.exception:
            raise RuntimeError(f"page {page}: {app.exception[0].message}")
    return took[0], took[2], took[1]


def planned(store: Store) -> Path:
    """The folder of a real plan, for the page Capacity."""
    slo = {"ttft_p95": 2.0, "tpot_p95": 0.05}
    found = plan("samples", "qwen3.5-27b", "h200", policies=QUICK_POLICIES, slo=slo, store=store, replications=3)
    return store.folder(found["run"])


def measured(trajectories: int, repeats: int) -> list[dict[str, Any]]:
    """A row per page: the median of the first and of the next visits, in seconds."""
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        small, large = Path(folder, "small"), Path(folder, "large")
        os.environ["KVMILL_STORE"] = str(small)
        runs = fill(Store.open(small), SMALL, nights=3)
        note("a plan")
        folder_of_plan = planned(Store.open(small))
        for page, address in visits(runs):
            opened(page, address)
        note(f"drawing a store of {trajectories:,} trajectories")
        runs = fill(Store.open(large), trajectories)
        shutil.copytree(folder_of_plan, large / "runs" / folder_of_plan.name)
        for page, address in visits(runs):
            name = f"{page}: {address['view'].lower()}" if "view" in address else page
            note(name)
            taken = zip(*(opened_anew(large, page, address) for _ in range(repeats)), strict=True)
            first_s, again_s, first_cpu_s = map(median, taken)
            rows.append({"page": name, "first_s": first_s, "again_s": again_s, "first_cpu_s": first_cpu_s})
    return rows


def opened_anew(store: Path, page: str, address: dict[str, str]) -> tuple[float, float, float]:
    """`opened` on a store of which nothing is remembered: what is, goes by the store's place, so it gets a new one."""
    place = store.with_name(secrets.token_hex(4))
    place.symlink_to(store)
    os.environ["KVMILL_STORE"] = str(place)
    statistics._drawn.cache_clear()
    return opened(page, address)


def figures(rows: Sequence[dict[str, Any]], trajectories: int) -> dict[str, Any]:
    """The rows with what they were measured on, and whether every page met the target."""
    peak = peak_rss_bytes()
    from kvmill.benchmarks.machine import other_cores, processor  # loads torch, which is not the dashboard's memory

    return {
        "machine": {"processor": processor(), "cores": os.cpu_count(), "python": platform.python_version()},
        "versions": {name: version(name) for name in PACKAGES},
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "other_cores": other_cores(),
        "trajectories": trajectories,
        "target_s": TARGET_S,
        "met": all(row["first_s"] <= TARGET_S for row in rows),
        "peak_rss_bytes": peak,
        "rows": list(rows),
    }


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="kvmill bench dashboard", description=__doc__)
    parser.add_argument("--trajectories", type=int, default=1000, help="in the store; 200 turn rows each")
    parser.add_argument("--repeats", type=int, default=3, help="visits of each kind; the median counts")
    parser.add_argument("--write", action="store_true", help="renew benchmarks/results")
    parser.add_argument("--json", action="store_true", help="the figures as one JSON object")
    asked = parser.parse_args()
    found = figures(measured(asked.trajectories, asked.repeats), asked.trajectories)
    if asked.write:
        FIGURES.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")
    if asked.json:
        print(json.dumps(found, ensure_ascii=False))
        return
    heads = {"page": "page", "first_s": "first answer s", "first_cpu_s": "its CPU s", "again_s": "next answer s"}
    heads |= {"met": f"within {TARGET_S:g} s"}
    print(table([row | {"met": "yes" if row["first_s"] <= TARGET_S else "NO"} for row in found["rows"]], heads))


if __name__ == "__main__":
    main()
