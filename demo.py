"""The main job end to end on the bundled samples: replay, plan, answer. The sentence first, then the table.

The replay measures quality on some trajectories of each family and latency on one of each; the plan sizes two
workloads for a larger model, `long-agents` (which the answer is about) and the samples as they are.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .console import answer, guarded, note, table
from .errors import Incomplete, NoAnswer, UserError
from .options import JsonOption, StoreOption

if TYPE_CHECKING:
    from .traces.store import Store
    from .traces.trajectory import Trajectory

MODEL = "smollm2-135m"
PLANNED_MODEL, GPU = "qwen3.5-27b", "h200"
SLO = ("ttft_p95=2", "tpot_p95=0.05")
MAIN, BESIDE = "long-agents", "samples"
PLANNED = ("full", "te(proxy=boundary,keep=0.2)", "te(proxy=assistant,delay=1,keep=0.2)")


@dataclass(frozen=True, slots=True)
class Size:
    """How much is run: trajectories per family, timed repeats of a call, replications per fleet size."""

    per_family: int
    repeats: int
    timed_turns: int | None
    replications: int


WHOLE = Size(per_family=6, repeats=2, timed_turns=3, replications=10)
QUICK = Size(per_family=2, repeats=1, timed_turns=2, replications=3)


def choose(trajectories: Sequence[Trajectory], per_family: int) -> list[Trajectory]:
    """The first `per_family` of each family, families in turn, in the order given."""
    by_family: dict[str, list[Trajectory]] = {}
    for trajectory in trajectories:
        by_family.setdefault(trajectory.family, []).append(trajectory)
    return [family[i] for i in range(per_family) for family in by_family.values() if i < len(family)]


def run_demo(store: Store, *, quick: bool = False, progress: bool = True) -> dict[str, Any]:
    """Replay and plan; returns the object that `kvmill demo --json` prints. Rows go to the store."""
    from .replay.policies.registry import DEMO_POLICIES, QUICK_POLICIES
    from .replay.recommend import recommend
    from .replay.results import summary
    from .simulator.answers import plan_named
    from .simulator.commands import steps
    from .simulator.sentence import sentence
    from .traces.ingest import ingest_samples
    from .traces.samples import load

    try:
        from .replay.fanout import run_replay
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("kvmill"):
            raise
        raise UserError(f"the demo needs {error.name}: pip install 'kvmill[all]'") from None
    size = QUICK if quick else WHOLE
    ingest_samples(store)
    chosen = choose(load(), size.per_family)
    run = run_replay(
        store=store,
        trajectories=chosen,
        model=MODEL,
        policies=QUICK_POLICIES if quick else DEMO_POLICIES,
        measure="both",
        latency_trajectories=[trajectory.id for trajectory in choose(chosen, 1)],
        latency_repeats=size.repeats,
        latency_last_turns=size.timed_turns,
        config={"traces": "samples", "limit": len(chosen)},
        progress=progress,
    )
    advice = recommend(store, run)
    policies = [*PLANNED, *({advice["policy"]} - {None, *PLANNED})]
    plans = {}
    for workload in (BESIDE, MAIN):  # the answer's plan last: the newest plan is what others show first
        tick = steps(f"plan {workload}", "simulations", 40) if progress else _silent
        plans[workload] = plan_named(
            workload,
            PLANNED_MODEL,
            GPU,
            slo=SLO,
            policies=policies,
            run=run,
            replications=size.replications,
            workers=max(1, min(2, os.cpu_count() or 1)),
            store=store,
            tick=tick,
        )
    if advice["policy"]:
        for plan in plans.values():
            plan["answer"] = sentence(plan, advice["policy"])
    found = assemble(summary(store, run), plans[MAIN], plans[BESIDE], quick=quick)
    return found | {"recommendation": advice, "trajectories": [trajectory.id for trajectory in chosen]}


def _silent(detail: str) -> None:
    """No progress."""


def assemble(
    results: Mapping[str, Any], plan: Mapping[str, Any], beside: Mapping[str, Any], *, quick: bool
) -> dict[str, Any]:
    """The keys of `results` and `plan` in one object. `run` and `model` are the replay's; the plan's get a prefix."""
    clash = {"run": "plan_run", "model": "planned_model", "seed": "plan_seed", "dtype": "planned_dtype"}
    return {
        **{clash.get(key, key): value for key, value in plan.items()},
        **results,
        "answer": plan["answer"],
        "beside": dict(beside),
        "quick": quick,
    }


def demo_text(found: Mapping[str, Any], where: Path | str) -> str:
    """The sentence, the table, the samples beside it, and what to do next."""
    from .replay.report import demo_table

    beside, at = found["beside"], "" if _default(where) else f" --store {where}"
    advice = found["recommendation"]
    advised = f"Recommended: {advice['policy']}" if advice["policy"] else "No policy is recommended yet"
    lines = [found["answer"], ""]
    if found["quick"]:
        lines += ["Quick demo: few trajectories and replications, a first look only.", ""]
    lines += [
        demo_table(found, found["plans"]),
        f"GPUs: {found['gpu'].upper()} serving {found['planned_model']} to {found['workload']} (simulated, "
        f"{found['replications']} replications)",
        f"{advised} (at a loss of at most {advice['limits']['max_loss']:.0%}): {advice['reason']}",
        "",
        f"The same for the workload `{beside['workload']}`, the replayed trajectories as they are:",
        beside["answer"],
        "",
        table(
            [row | {"saved": row["gpus_saved"]} for row in beside["plans"]],
            {"policy": "policy", "gpus": "GPUs", "saved": "GPUs saved", "binding_constraint": "binding constraint"},
        ),
        "",
        f"See it in a browser:   kvmill dashboard{at}",
        f"Which tokens stayed:   kvmill inspect {found['run']} {found['trajectories'][0]}{at}",
    ]
    return "\n".join(lines)


def _default(where: Path | str) -> bool:
    from .traces.store import Store

    return str(where) == str(Store.open())


def register(app: typer.Typer) -> None:
    """Add `demo` to the command line."""

    @app.command()
    @guarded
    def demo(
        quick: Annotated[
            bool, typer.Option("--quick", help="A minute and a half instead of nine minutes: a first look.")
        ] = False,
        serve: Annotated[bool, typer.Option("--serve", help="Open the dashboard at the end.")] = False,
        store: StoreOption = None,
        as_json: JsonOption = False,
    ) -> None:
        """Replay the bundled samples, size two fleets, print the answer. How many GPUs are saved, and at what cost."""
        from .traces.store import Store

        opened = Store.open(store)
        found = run_demo(opened, quick=quick)
        answer(found, as_json, lambda: demo_text(found, str(opened)))
        if serve:
            note("opening the dashboard")
            os.execv(sys.executable, [sys.executable, "-m", "kvmill", "dashboard", "--store", opened.where])
        finish(found)


def finish(found: Mapping[str, Any]) -> None:
    """Raise what the exit code must say: cells that failed (6), or no policy with a feasible fleet (4)."""
    failed = sum(row["status"]["failed"] for row in found["policies"])
    if failed:
        raise Incomplete(f"{failed} cells of run {found['run']} failed")
    if not any(row["feasible"] for row in found["plans"]):
        raise NoAnswer("no fleet keeps the promises under any policy", found["plans"][0]["binding_constraint"])
