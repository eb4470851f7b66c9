"""`kvmill simulate | plan | validate`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..console import Progress, answer, guarded
from ..errors import NoAnswer
from ..options import JsonOption, StoreOption
from ..replay.executors.shares import cores
from .flags import load_flags, machine_flags, sharing

if TYPE_CHECKING:
    from ..traces.store import Store

Workload = Annotated[
    str,
    typer.Option(
        help="long-agents, samples, last, all, requests, an ingest's id, a path, source=…,family=…, or a TOML."
    ),
]
Model = Annotated[str, typer.Option(help="Model geometry: a catalogue name or a config.json.")]
GpuName = Annotated[str, typer.Option("--gpu", help="GPU type: a catalogue name or a TOML file.")]
From = Annotated[str | None, typer.Option("--from", help="Replay run for quality and extra turns (newest complete).")]
Slos = Annotated[
    list[str] | None,
    typer.Option("--slo", help="A promise in seconds, as ttft_p95=2 or tpot_p95=0.05; repeat for several."),
]
Price = Annotated[float | None, typer.Option(help="USD per GPU-hour, instead of the listed price.")]
Seed = Annotated[int, typer.Option(help="Seed of workload and replications.")]

RUNS_AROUND = 45  # simulations per policy for the pilot, the slower and faster machines, the break-even


def register(app: typer.Typer) -> None:
    """Add the simulator's verbs."""
    app.command("simulate")(simulate_command)
    app.command("plan")(plan_command)
    app.command("validate")(validate_command)


@guarded
@sharing(load_flags, machine_flags)
def simulate_command(
    workload: Workload,
    model: Model,
    gpu: GpuName,
    gpus: Annotated[int, typer.Option(help="GPUs in the fleet, a multiple of the tensor-parallel size.")],
    policy: Annotated[str | None, typer.Option(help="Compaction policy (full).")] = None,
    keep: Annotated[
        float | None, typer.Option(help="Instead of --policy: te(proxy=assistant,delay=1,keep=KEEP).")
    ] = None,
    run: From = None,
    slo: Slos = None,
    replications: Annotated[int, typer.Option(help="Independent runs, averaged.", min=1)] = 1,
    turns: Annotated[
        int | None, typer.Option(help="Turns measured in each replication (5000, or more if the load is large).", min=1)
    ] = None,
    series: Annotated[
        bool, typer.Option("--series", help="Also how it went over time; every turn to the store.")
    ] = False,
    seed: Seed = 0,
    as_json: JsonOption = False,
    store: StoreOption = None,
    **shared: Any,
) -> None:
    """Simulate one fleet under one policy. Latencies, throughput, memory, what binds."""
    from .answers import simulate
    from .texts import simulate_text

    found = simulate(
        workload, model, gpu, gpus, policy=policy, keep=keep, run=run, slo=slo or ["ttft_p95=2", "tpot_p95=0.05"],
        replications=replications, turns=turns, series=series, seed=seed, store=_store(store),
        tick=steps("simulate", "runs", replications), **_sized(shared),
    )  # fmt: skip
    answer(found, as_json, lambda: simulate_text(found))


@guarded
@sharing(load_flags, machine_flags)
def plan_command(
    workload: Workload,
    model: Model,
    gpu: GpuName,
    slo: Slos = None,
    policy: Annotated[
        list[str] | None, typer.Option(help="A policy; repeat for several. full is always planned.")
    ] = None,
    run: From = None,
    price: Price = None,
    method: Annotated[str, typer.Option(help="queueing, or paper: static batches, decodes only.")] = "queueing",
    sweep: Annotated[
        list[str] | None,
        typer.Option(help="Plan every choice of keep=0.1,0.2 or gpu=h100,h200 or tp=1,2 …; repeat for several."),
    ] = None,
    max_load: Annotated[bool, typer.Option("--max-load", help="Instead: which load --gpus GPUs carry.")] = False,
    gpus: Annotated[int | None, typer.Option(help="With --max-load: the GPUs that carry it.", min=1)] = None,
    attribute: Annotated[
        bool, typer.Option("--attribute", help="What the saving is made of, for every policy and not one only.")
    ] = False,
    replications: Annotated[
        int, typer.Option(help="Replications per fleet size; fewer than 10 are flagged.", min=2)
    ] = 10,
    max_gpus: Annotated[
        int, typer.Option(help="No fleet beyond this many GPUs is looked at.", min=1, max=16_384)
    ] = 512,
    seed: Seed = 0,
    executor: Annotated[str, typer.Option(help="local: processes of this machine; ray: those of a cluster.")] = "local",
    workers: Annotated[int | None, typer.Option(help="Processes that simulate (all cores).", min=1)] = None,
    ray_address: Annotated[str | None, typer.Option(help="A running Ray cluster (RAY_ADDRESS).")] = None,
    as_json: JsonOption = False,
    store: StoreOption = None,
    **shared: Any,
) -> None:
    """Find the fewest GPUs that keep the promises, per policy. With intervals, and what is saved against `full`.

    Exit code 4 if no fleet keeps them under any policy.
    """
    from .answers import plan_named

    tick = steps("plan", "simulations", max(2, len(policy or [])) * (4 * replications + RUNS_AROUND))
    found = plan_named(
        workload, model, gpu, policies=policy, run=run, slo=slo or [], price=price, method=method, sweep=sweep or [],
        max_load=max_load, gpus=gpus, attribute=attribute, replications=replications, max_gpus=max_gpus, seed=seed,
        store=_store(store), workers=workers or (cores() if executor == "local" else None), executor=executor,
        ray_address=ray_address, tick=tick, **_sized(shared),
    )  # fmt: skip
    answer(found, as_json, lambda: _text_of(found))
    rows = found.get("sweep") or found["plans"]
    lost = [row for row in rows if not row["feasible"]]
    if len(lost) == len(rows):
        asked = f"{gpus} GPUs carry no load" if max_load else f"no fleet of up to {max_gpus} GPUs keeps the promises"
        raise NoAnswer(f"{asked} under any policy", lost[0]["binding_constraint"])


def _text_of(found: dict[str, Any]) -> str:
    """The answer as text, whichever question was asked."""
    if "sweep" in found:
        from .sweeps import sweep_text

        return sweep_text(found)
    if "load_unit" in found:
        from .max_load import max_load_text

        return max_load_text(found)
    if found.get("method") == "paper":
        from .paper import paper_text

        return paper_text(found)
    from .texts import plan_text

    return plan_text(found)


@guarded
def validate_command(
    only: Annotated[str | None, typer.Option(help="One kind of check: exact, interval or reality.")] = None,
    data: Annotated[Path | None, typer.Option(help="Folder of recorded runs (KVMILL_SHARED_DATA).")] = None,
    as_json: JsonOption = False,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Print a page of the documentation.")] = False,
) -> None:
    """Check the simulator against closed forms and recorded runs. Exit code 4 if a check fails."""
    from .validate import validate
    from .validation_text import markdown, text

    found: dict[str, Any] = validate(steps("validate", "checks", 110), only=only, data=data, workers=2)
    answer(found, as_json, lambda: markdown(found) if as_markdown else text(found))
    if not found["passed"]:
        names = ", ".join(check["name"] for check in found["checks"] if not check["passed"])
        raise NoAnswer(f"failed: {names}", "the simulator itself")


def _sized(shared: dict[str, Any]) -> dict[str, Any]:
    """The shared flags, the tensor-parallel size as a number or None."""
    from .given import tp_of

    return shared | {"tp": tp_of(shared["tp"])}


def _store(where: str | None) -> Store:
    from ..traces.store import Store

    return Store.open(where)


def steps(label: str, unit: str, expected: int) -> Callable[[str], None]:
    """Progress where the number of steps is only expected: it grows rather than being passed."""
    progress = Progress(label, expected, unit)

    def tick(detail: str) -> None:
        if progress.done >= expected and progress.done + 1 >= progress.total:
            progress.total = progress.done + 2  # the end, which is told at once, is never reached again
        progress.step(detail=detail)

    return tick
