"""`kvmill simulate | plan | validate`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..console import Progress, answer, guarded
from ..errors import NoAnswer, UserError

if TYPE_CHECKING:
    from ..traces.store import Store

Workload = Annotated[str, typer.Option(help="long-agents, samples, requests, an ingest's id, or a trace selection")]
Model = Annotated[str, typer.Option(help="model geometry: a catalogue name or a config.json")]
GpuName = Annotated[str, typer.Option("--gpu", help="GPU type")]
From = Annotated[str | None, typer.Option("--from", help="replay run for quality and extra turns [newest complete]")]
Slos = Annotated[list[str] | None, typer.Option("--slo", help="ttft_p95=2, tpot_p95=0.05, … (repeatable)")]
Agents = Annotated[int | None, typer.Option(help="closed workload: agents at work all the time")]
Rate = Annotated[float | None, typer.Option(help="open workload: sessions per second")]
ToolWait = Annotated[str | None, typer.Option(help="recorded, or lognormal:P50,P90 in seconds")]
Scale = Annotated[float | None, typer.Option(help="factor on all segments but the prefix")]
PrefixTokens = Annotated[int | None, typer.Option(help="request logs: how much of the first input is the prefix")]
Tp = Annotated[str, typer.Option(help="tensor-parallel size, or auto: the smallest that fits")]
Dtype = Annotated[str, typer.Option(help="weights and matrix products: bf16 or fp8")]
KvDtype = Annotated[str, typer.Option(help="KV cache: bf16 or fp8")]
Utilisation = Annotated[float, typer.Option(help="share of usable memory")]
Price = Annotated[float | None, typer.Option(help="USD per GPU-hour, instead of the listed price")]
Seed = Annotated[int, typer.Option(help="seed of workload and replications")]
Json = Annotated[bool, typer.Option("--json", help="one JSON object on stdout")]
StorePath = Annotated[Path | None, typer.Option("--store", help="store folder [env KVMILL_STORE, else ./kvmill-store]")]

RUNS_AROUND = 45  # simulations per policy for the pilot, the slower and faster machines, the break-even


def register(app: typer.Typer) -> None:
    """Add the simulator's verbs."""
    app.command("simulate")(simulate_command)
    app.command("plan")(plan_command)
    app.command("validate")(validate_command)


@guarded
def simulate_command(
    workload: Workload,
    model: Model,
    gpu: GpuName,
    gpus: Annotated[int, typer.Option(help="GPUs in the fleet, a multiple of the tensor-parallel size")],
    policy: Annotated[str | None, typer.Option(help="compaction policy [full]")] = None,
    keep: Annotated[
        float | None, typer.Option(help="instead of --policy: te(proxy=assistant,delay=1,keep=KEEP)")
    ] = None,
    run: From = None,
    slo: Slos = None,
    agents: Agents = None,
    rate: Rate = None,
    tool_wait: ToolWait = None,
    scale_tokens: Scale = None,
    prefix_tokens: PrefixTokens = None,
    tp: Tp = "auto",
    dtype: Dtype = "bf16",
    kv_dtype: KvDtype = "bf16",
    utilisation: Utilisation = 0.9,
    replications: Annotated[int, typer.Option(help="independent runs, averaged", min=1)] = 1,
    seed: Seed = 0,
    as_json: Json = False,
    store: StorePath = None,
) -> None:
    """Simulate one fleet under one policy: latencies, throughput, memory, what binds."""
    from .answers import simulate, simulate_text

    found = simulate(
        workload, model, gpu, gpus, policy=policy, keep=keep, run=run, slo=slo or ["ttft_p95=2", "tpot_p95=0.05"],
        agents=agents, rate=rate, tool_wait=tool_wait, scale_tokens=scale_tokens, prefix_tokens=prefix_tokens,
        tp=tp_of(tp), dtype=dtype, kv_dtype=kv_dtype, utilisation=utilisation, replications=replications, seed=seed,
        store=_store(store), tick=steps("simulate", "runs", replications),
    )  # fmt: skip
    answer(found, as_json, lambda: simulate_text(found))


@guarded
def plan_command(
    workload: Workload,
    model: Model,
    gpu: GpuName,
    slo: Slos = None,
    policy: Annotated[list[str] | None, typer.Option(help="repeatable; `full` is always planned")] = None,
    run: From = None,
    price: Price = None,
    agents: Agents = None,
    rate: Rate = None,
    tool_wait: ToolWait = None,
    scale_tokens: Scale = None,
    prefix_tokens: PrefixTokens = None,
    tp: Tp = "auto",
    dtype: Dtype = "bf16",
    kv_dtype: KvDtype = "bf16",
    utilisation: Utilisation = 0.9,
    replications: Annotated[
        int, typer.Option(help="replications per fleet size; fewer than 10 are flagged", min=2)
    ] = 10,
    max_gpus: Annotated[int, typer.Option(help="no fleet beyond this many GPUs is looked at", min=1)] = 512,
    seed: Seed = 0,
    as_json: Json = False,
    store: StorePath = None,
) -> None:
    """The fewest GPUs that keep the promises, per policy, with intervals and what is saved against `full`."""
    from .answers import plan_named, plan_text

    tick = steps("plan", "simulations", max(2, len(policy or [])) * (4 * replications + RUNS_AROUND))
    found = plan_named(
        workload, model, gpu, policies=policy, run=run, slo=slo or [], price=price, agents=agents, rate=rate,
        tool_wait=tool_wait, scale_tokens=scale_tokens, prefix_tokens=prefix_tokens, tp=tp_of(tp), dtype=dtype,
        kv_dtype=kv_dtype, utilisation=utilisation, replications=replications, max_gpus=max_gpus, seed=seed,
        store=_store(store), workers=2, tick=tick,
    )  # fmt: skip
    answer(found, as_json, lambda: plan_text(found))
    lost = [row for row in found["plans"] if not row["feasible"]]
    if len(lost) == len(found["plans"]):
        raise NoAnswer(
            f"no fleet of up to {max_gpus} GPUs keeps the promises under any policy", lost[0]["binding_constraint"]
        )


@guarded
def validate_command(
    as_json: Json = False,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="as a page of the documentation")] = False,
) -> None:
    """Check the simulator against closed forms and identities."""
    from .validate import markdown, text, validate

    found: dict[str, Any] = validate(tick=steps("validate", "checks", 20))
    answer(found, as_json, lambda: markdown(found) if as_markdown else text(found))
    if not found["passed"]:
        names = ", ".join(check["name"] for check in found["checks"] if not check["passed"])
        raise NoAnswer(f"failed: {names}", "the simulator itself")


def tp_of(text: str) -> int | None:
    """`auto` → None; UserError on anything that is not a number."""
    if text == "auto":
        return None
    if not text.isdigit():
        raise UserError(f"--tp {text!r}: auto, or a number of GPUs")
    return int(text)


def _store(path: Path | None) -> Store:
    from ..traces.store import Store

    return Store.open(path)


def steps(label: str, unit: str, expected: int) -> Callable[[str], None]:
    """Progress where the number of steps is only expected: it grows rather than being passed."""
    progress = Progress(label, expected, unit)

    def tick(detail: str) -> None:
        progress.total = max(progress.total, progress.done + 2)
        progress.step(detail=detail)

    return tick
