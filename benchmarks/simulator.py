"""How fast the simulator is, and in how much memory: turns of agents, single requests, a whole plan.

`kvmill bench simulator` simulates 16 replicas that serve agents of 25 turns, until 10,000, 100,000 and 1,000,000 turns
have ended, each in a process of its own: CPU time per turn of one core, and the most memory the process had. Then
single-turn requests on one replica, and a plan with three policies as the command line makes it. `--write` renews
the figures, with those of the paper's method, and the last section of docs/simulator.md; on two idle cores in less than
five minutes.
"""

from __future__ import annotations

import argparse
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

import numpy as np

from kvmill.benchmarks.memory import peak_rss_bytes
from kvmill.benchmarks.pages.simulator import page
from kvmill.console import note, plain, table
from kvmill.simulator.deployment import Deployment
from kvmill.simulator.fleet import Fleet
from kvmill.simulator.hardware import find_gpu
from kvmill.simulator.models import find_geometry
from kvmill.simulator.run import WARM_UP, Scenario, run_fleet
from kvmill.simulator.session import SessionSpec
from kvmill.simulator.slo import parse_slo
from kvmill.simulator.workload import Z90, Workload, assemble, lognormal, long_agents, whole

ROOT = Path(__file__).resolve().parents[1]
FIGURES, PAGE = ROOT / "benchmarks" / "results" / "simulator.json", ROOT / "docs" / "simulator.md"
PACKAGES = ("numpy", "simpy")
SIZES = (10_000, 100_000, 1_000_000)
TE = "te(proxy=assistant,delay=1,keep=0.2)"
REPLICAS, AGENTS_EACH, SESSIONS, TURNS = 16, 30, 400, 25
WALKS = (("qwen3.5-27b", "h200", "bf16"), ("gemma-4-31b", "h100", "fp8"))
PLANNED = ("full", "te(proxy=boundary,keep=0.2)", TE)
TARGET_MS, TARGET_MILLION_S, TARGET_PLAN_S, TARGET_GROWTH = 0.1, 120.0, 60.0, 1.25


def agents() -> Workload:
    """Sessions of exactly 25 turns; tokens, waits and prefix after the laws of `long-agents`."""
    rng = np.random.default_rng(25)
    specs = []
    for _ in range(SESSIONS):
        tools = whole(lognormal(rng, 700, 3500, Z90, TURNS))
        said = whole(lognormal(rng, 150, 800, Z90, TURNS))
        waits = lognormal(rng, 3.8, 28.9, Z90, TURNS)
        specs.append(SessionSpec(assemble(8192, said, tools[:-1]), tuple(waits.tolist()), shared=6144))
    return Workload("agents of 25 turns", tuple(specs), agents=REPLICAS * AGENTS_EACH)


def requests() -> Workload:
    """Single requests of 512 tokens in and 128 out, ten a second."""
    return Workload("single requests", (SessionSpec(assemble(512, [128], []), (0.0,)),), rate=10.0)


def scenario(what: str, policy: str, turns: int) -> tuple[Scenario, int]:
    """(what is simulated so that about `turns` turns end, warm-up included; on how many replicas)."""
    measured = round(turns / (1 + WARM_UP))
    if what == "requests":
        place = Deployment(find_geometry("llama-3.1-8b"), find_gpu("a100-80"))
        return Scenario(requests(), policy, place, turns=measured), 1
    place = Deployment(find_geometry("qwen3.5-27b"), find_gpu("h200"))
    return Scenario(agents(), policy, place, turns=measured), REPLICAS


def one(what: str, policy: str, turns: int) -> dict[str, Any]:
    """One simulation in this process. Start and imports do not count; what is made once per plan counts apart."""
    asked, replicas = scenario(what, policy, turns)
    made = time.process_time()
    for index in asked.positions.usable:
        asked.plan_of(index)
    made, fleets = time.process_time() - made, list[Fleet]()
    cpu, wall = time.process_time(), time.perf_counter()
    result = run_fleet(asked, replicas, 0, watch=lambda fleet, *_: fleets.append(fleet))
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    ended = len(fleets[0].turns)
    peak = peak_rss_bytes()
    return {
        "turns": ended,
        "replicas": replicas,
        "cpu_s": cpu,
        "wall_s": wall,
        "ms_per_turn": cpu / ended * 1e3,
        "turns_per_s": ended / cpu,
        "sessions_s": made,
        "peak_rss_bytes": peak,
        "simulated_s": result.simulated_s,
        "batch_mean": result.batch_mean,
        "miss_share": result.miss_share,
    }


def in_new_process(what: str, policy: str, turns: int) -> dict[str, Any]:
    """The same in a process of its own, so that its memory is its own."""
    command = [sys.executable, "-m", "kvmill.benchmarks.simulator", "--one", what, policy, str(turns)]
    quiet = os.environ | {"KVMILL_QUIET": "1", "OMP_NUM_THREADS": "1"}
    child = subprocess.run(command, env=quiet, stdout=subprocess.PIPE, text=True, check=True)
    return {"what": what, "policy": policy} | json.loads(child.stdout)


def planned(replications: int) -> dict[str, Any]:
    """Seconds of a plan of the bundled workload under three policies, from an empty store, as a user waits for it."""
    with tempfile.TemporaryDirectory() as store:
        command = [sys.executable, "-m", "kvmill", "plan", "--workload", "long-agents", "--model", "qwen3.5-27b"]
        command += ["--gpu", "h200", "--slo", "ttft_p95=2", "--slo", "tpot_p95=0.05", "--store", store, "--json"]
        command += ["--replications", str(replications), *(part for name in PLANNED for part in ("--policy", name))]
        wall = time.perf_counter()
        quiet = os.environ | {"KVMILL_QUIET": "1", "OMP_NUM_THREADS": "1"}
        child = subprocess.run(command, env=quiet, stdout=subprocess.PIPE, text=True, check=True)
        wall = time.perf_counter() - wall
    rows = json.loads(child.stdout)["plans"]
    gpus = {row["policy"]: row["gpus"] for row in rows}
    return {"what": "plan", "policy": ", ".join(PLANNED), "replications": replications, "wall_s": wall, "gpus": gpus}


def walked(model: str, gpu: str, dtype: str) -> dict[str, Any]:
    """What the paper's method says of `long-agents`, and what becomes of it when one thing after another is counted."""
    from kvmill.simulator.paper import paper_plan

    slos = parse_slo(["ttft_p95=2", "tpot_p95=0.05"])
    found = paper_plan(long_agents(0), find_geometry(model), find_gpu(gpu), [TE], slos, dtype=dtype, kv_dtype=dtype)
    full, te = found["plans"]
    before = {line["key"]: line for line in full["walk"]}
    lines = [
        {
            "key": line["key"],
            "what": line["what"].partition(", ")[0] if line["label"] == "simulated" else line["what"],
            "label": line["label"],
            "batch": [before[line["key"]]["batch"], line["batch"]],
            "sessions_per_hour": [before[line["key"]]["sessions_per_hour"], line["sessions_per_hour"]],
            "ratio": line["ratio"],
        }
        for line in te["walk"]
        if line["key"] in before
    ]
    same = {"workload": "long-agents", "model": model, "gpu": gpu, "dtype": dtype, "tp": found["tp"]}
    return {"what": "walk", "policy": TE, **same, "gpus": [full["gpus"], te["gpus"]], "lines": lines}


def targets(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Every target that these rows can tell of, and whether it is met."""
    turns = [row for row in rows if row["what"] == "agents"]
    out: list[tuple[str, float, float]] = []
    for policy in dict.fromkeys(row["policy"] for row in turns):
        own = sorted((row for row in turns if row["policy"] == policy), key=lambda row: row["turns"])
        out.append((f"ms per turn, {policy}", max(row["ms_per_turn"] for row in own), TARGET_MS))
        if len(own) > 1:
            growth = own[-1]["ms_per_turn"] / own[0]["ms_per_turn"]
            out.append((f"ms per turn at the most turns over that at the fewest, {policy}", growth, TARGET_GROWTH))
        if own[-1]["turns"] > 0.9e6:
            out.append((f"seconds of a million turns, {policy}", 1e3 * own[-1]["ms_per_turn"], TARGET_MILLION_S))
    out += [("seconds of a plan of three policies", r["wall_s"], TARGET_PLAN_S) for r in rows if r["what"] == "plan"]
    return [{"what": w, "value": value, "at_most": most, "met": value <= most} for w, value, most in out]


def figures(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The rows with what they were measured on, and how many cores others used just after.

    `machine` loads torch: before the processes that are measured it would count as their memory, since a process begins
    with the peak of the one that it comes from.
    """
    from kvmill.benchmarks.machine import other_cores, processor
    from kvmill.simulator.paper import table_findings

    return {
        "machine": {"processor": processor(), "cores": os.cpu_count(), "python": platform.python_version()},
        "versions": {name: version(name) for name in PACKAGES},
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "other_cores": other_cores(),
        "findings": table_findings(),
        "targets": targets(rows),
        "rows": rows,
    }


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="kvmill bench simulator", description=__doc__)
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)), help="turns of the agents, with commas")
    parser.add_argument("--requests", type=int, default=100_000, help="single-turn requests; 0: none")
    parser.add_argument("--replications", type=int, default=10, help="of the plan; 0: neither it nor walks")
    parser.add_argument("--write", action="store_true", help="renew benchmarks/results")
    parser.add_argument("--json", action="store_true", help="the figures as one JSON object")
    parser.add_argument("--one", nargs=3, metavar=("WHAT", "POLICY", "TURNS"), help="one simulation, in this process")
    asked = parser.parse_args()
    if asked.one:
        print(json.dumps(plain(one(asked.one[0], asked.one[1], int(asked.one[2])))))
        return
    sizes = [int(size) for size in asked.sizes.split(",")]
    jobs = [("agents", "full", size) for size in sizes] + [("agents", TE, size) for size in sizes[:-1] or sizes]
    jobs += [("requests", "full", asked.requests)] if asked.requests else []
    rows = []
    for job in jobs:
        note(f"{job[2]:,} turns of {job[0]} under {job[1]}")
        rows.append(in_new_process(*job))
    if asked.replications:
        note("a plan of three policies")
        rows.append(planned(asked.replications))
        for case in WALKS:
            note(f"the paper's method, {' '.join(case)}")
            rows.append(walked(*case))
    found = figures(rows)
    if asked.write:
        FIGURES.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")
        PAGE.write_text(page(PAGE.read_text(), found))
    print(json.dumps(found, ensure_ascii=False) if asked.json else shown(found))


def shown(found: dict[str, Any]) -> str:
    """A line per target, then the rows."""
    met = [row | {"met": "yes" if row["met"] else "NO"} for row in found["targets"]]
    told = [
        row | {"rss": f"{row['peak_rss_bytes'] / 2**20:.0f}" if "peak_rss_bytes" in row else None}
        for row in found["rows"]
        if row["what"] != "walk"
    ]
    heads = {"what": "what", "policy": "policy", "turns": "turns", "cpu_s": "CPU s", "wall_s": "wall s"}
    heads |= {"ms_per_turn": "ms/turn", "turns_per_s": "turns/s", "sessions_s": "sessions made s", "rss": "peak MiB"}
    return "\n\n".join(
        [table(met, {name: name.replace("_", " ") for name in met[0]}) if met else "", table(told, heads)]
    )


if __name__ == "__main__":
    main()
