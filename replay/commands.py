"""Commands of replay: policies, models, replay, results, recommend, inspect."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..console import answer, guarded, table
from ..errors import Incomplete, InputError, NoAnswer
from ..options import JsonOption, StoreOption
from . import commands_store

if TYPE_CHECKING:
    from ..traces.store import Store

RunArgument = Annotated[
    str | None, typer.Argument(metavar="RUN", help="A replay run; the newest complete one if not given.")
]


def register(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    app.command()(policies)
    app.command()(replay)
    app.command()(results)
    app.command()(recommend)
    app.command("inspect")(inspect_kept)
    models = typer.Typer(help="Models for replay: list the short names, fetch one.", no_args_is_help=True)
    models.command("list")(models_list)
    models.command("pull")(models_pull)
    app.add_typer(models, name="models")
    commands_store.register(app)


@guarded
def policies(as_json: JsonOption = False) -> None:
    """List the compaction policies, with their options. And formula, source and kind of footprint."""
    from .policies.registry import describe

    found = describe()
    answer({"policies": found}, as_json, lambda: "\n\n".join(map(_policy_text, found)))


@guarded
def models_list(as_json: JsonOption = False) -> None:
    """List the models that have a short name."""
    from .doctor import models

    found = models()
    rows = [{**m, "here": "yes" if m["present"] or m["converted"] else "no"} for m in found]
    more = "Any Hugging Face directory or id and any GGUF file works too."
    columns = {"name": "name", "here": "here", "about": "what"}
    answer({"models": found}, as_json, lambda: f"{table(rows, columns)}\n\n{more}")


@guarded
def models_pull(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A short name of `kvmill models list`.")],
    as_json: JsonOption = False,
) -> None:
    """Fetch a model into the cache (KVMILL_CACHE), checked by its SHA-256."""
    from .weights import pull

    found = pull(name)
    where = str(found.gguf or found.reference)
    answer({"name": name, "path": where, "sha256": found.sha256}, as_json, lambda: f"{name} is at {where}")


@guarded
def replay(
    traces: Annotated[
        str | None,
        typer.Option(
            help="samples, samples-more, stress (long runs, for memory and latency), last (default), all, an id, "
            "a path or glob, or source=…,family=…."
        ),
    ] = None,
    model: Annotated[str | None, typer.Option(help="Short name, directory, hub id or GGUF (smollm2-135m).")] = None,
    policy: Annotated[
        list[str] | None,
        typer.Option(
            help="A policy; repeat for several (default: the demo's; closed: the quick demo's). full always runs."
        ),
    ] = None,
    sweep: Annotated[
        list[str] | None,
        typer.Option(help="A policy with choices, as te(delay=1|2,keep=0.1|0.2): all are run, and their plateau said."),
    ] = None,
    mode: Annotated[
        str | None,
        typer.Option(
            help="teacher (default): recorded tokens are fed turn by turn. stepwise: every policy also generates the "
            "next action at each recorded turn, compared with the recorded one and with full's. closed: the model acts "
            "by itself after --seed-turns; recorded results answer its calls."
        ),
    ] = None,
    measure: Annotated[
        str | None,
        typer.Option(help="quality (default), latency, or both (latency then on one trajectory per family)."),
    ] = None,
    device: Annotated[str | None, typer.Option(help="auto (default), cpu, cuda or cuda:N.")] = None,
    dtype: Annotated[str | None, typer.Option(help="auto (default), float32, bfloat16 or float16.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="At most N trajectories, families in turn.")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of every random choice (0).")] = None,
    resume: Annotated[str | None, typer.Option(help="Go on with this run; its settings are taken over.")] = None,
    equal_size: Annotated[
        str | None, typer.Option(help="Hold every policy to the KV rows of this one: solves their keep ratios.")
    ] = None,
    equal_by: Annotated[
        str | None, typer.Option(help="peak (default), mean or final: which rows --equal-size compares.")
    ] = None,
    probes: Annotated[
        str | None,
        typer.Option(help="auto (default): recorded ones, else made recall probes; recorded or none."),
    ] = None,
    temperature: Annotated[
        float | None, typer.Option(min=0, help="Of generated actions: 0 (default) is greedy, else drawn with the seed.")
    ] = None,
    max_action_tokens: Annotated[
        int | None,
        typer.Option(min=1, help="Longest generated action, in tokens (twice the longest recorded one, 32 to 128)."),
    ] = None,
    actions: Annotated[
        str | None,
        typer.Option(help="Grammar of actions: hermes, qwen-xml, gemma, samples, fenced or fallback (chosen)."),
    ] = None,
    seed_turns: Annotated[
        int | None, typer.Option(min=0, help="Of closed mode: recorded turns before the model acts by itself (2).")
    ] = None,
    max_turns: Annotated[
        int | None, typer.Option(min=1, help="Of closed mode: most turns in all (twice the recorded ones and 4).")
    ] = None,
    long: Annotated[
        str | None,
        typer.Option(help="What exceeds the model's window: skip (default), or cut its last turns. Both are said."),
    ] = None,
    include_compacted: Annotated[
        bool | None,
        typer.Option("--include-compacted", help="Also replay runs that were compacted when they were recorded."),
    ] = None,
    explain: Annotated[
        bool | None,
        typer.Option("--explain", help="Also store the attention each token gets in the full run, for kvmill inspect."),
    ] = None,
    until_decided: Annotated[
        bool | None,
        typer.Option(
            "--until-decided",
            help="Draw trajectories at random until the recommendation is decided: each batch is looked at, with tests "
            "that allow for it. Exit code 4 if it is not by the end.",
        ),
    ] = None,
    max_loss: Annotated[
        float | None, typer.Option(help="Of --until-decided: largest relative loss of full's accuracy (0.05).")
    ] = None,
    confidence: Annotated[
        float | None, typer.Option(help="Of --until-decided: of all that is decided together (0.95).")
    ] = None,
    batch: Annotated[
        int | None, typer.Option(min=1, help="Of --until-decided: trajectories between two looks (8).")
    ] = None,
    max_trajectories: Annotated[
        int | None, typer.Option(min=1, help="Of --until-decided: stop after N, decided or not; --resume goes on.")
    ] = None,
    threads: Annotated[
        int | None, typer.Option(min=1, help="Torch threads, of each worker (the physical cores).")
    ] = None,
    executor: Annotated[
        str | None, typer.Option(help="local (default): one model in this process; ray: the workers of a Ray cluster.")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Of --executor ray: worker processes (one per GPU, or per machine).")
    ] = None,
    gpus_per_worker: Annotated[
        int | None, typer.Option(min=1, help="Of --executor ray: more than 1 spreads the model's layers over them (1).")
    ] = None,
    ray_address: Annotated[
        str | None, typer.Option(help="Of --executor ray: a running cluster (RAY_ADDRESS, else this machine alone).")
    ] = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Replay recorded trajectories under compaction policies. Through a real model; prints the results."""
    from ..traces.store import Store
    from .start import replay_named

    opened = Store.open(store)
    run_id = replay_named(
        opened, traces=traces, model=model, policies=policy, mode=mode, measure=measure, limit=limit, seed=seed,
        dtype=dtype, device=device, threads=threads, resume=resume, equal_size=equal_size, equal_by=equal_by,
        probes=probes, temperature=temperature, max_action_tokens=max_action_tokens, actions=actions, long=long,
        include_compacted=include_compacted, sweep=sweep, explain=explain, seed_turns=seed_turns, max_turns=max_turns,
        executor=executor, workers=workers, gpus_per_worker=gpus_per_worker, ray_address=ray_address,
        until_decided=until_decided, max_loss=max_loss, confidence=confidence, batch=batch,
        max_trajectories=max_trajectories,
    )  # fmt: skip
    _finished(opened, run_id, as_json)


@guarded
def results(
    run: RunArgument = None,
    by: Annotated[str, typer.Option(help="policy, turn, age, kind or family.")] = "policy",
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print what a replay found: quality, memory, latency."""
    from ..traces.store import Store

    _show(Store.open(store), run, by, as_json)


@guarded
def recommend(
    run: RunArgument = None,
    max_loss: Annotated[
        float | None, typer.Option(help="Largest relative loss of full's accuracy (that of --until-decided, or 0.05).")
    ] = None,
    max_latency: Annotated[float, typer.Option(help="Largest relative growth of the median turn, as 0.10.")] = 0.10,
    confidence: Annotated[
        float | None,
        typer.Option(help="Of the statement about all policies together (that of --until-decided, or 0.95)."),
    ] = None,
    max_family_loss: Annotated[
        float | None, typer.Option(help="Largest loss of any one family; the largest loss + 0.10 if not given.")
    ] = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Name the smallest policy within the limits, or say why none is. Smallest by peak KV; exit code 4 if none."""
    from ..traces.store import Store
    from .recommend import recommend as decide
    from .report import recommendation_text

    found = decide(
        Store.open(store),
        run,
        max_loss=max_loss,
        max_latency=max_latency,
        confidence=confidence,
        max_family_loss=max_family_loss,
    )
    answer(found, as_json, lambda: recommendation_text(found))
    if found["policy"] is None:
        raise NoAnswer(found["reason"], "trajectories" if found["more_trajectories"] else "accuracy or latency")


@guarded
def inspect_kept(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A replay run, or `last` for the newest complete one.")],
    trajectory: Annotated[str, typer.Argument(metavar="TRAJECTORY", help="A trajectory of that run.")],
    turn: Annotated[int | None, typer.Option(help="Show the tokens of this turn, counted from 0.")] = None,
    policy: Annotated[str | None, typer.Option(help="Only this policy.")] = None,
    at_least: Annotated[float, typer.Option(min=0, max=1, help="Show tokens kept by this share as text.")] = 0.5,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show which tokens each policy kept. By turn or as text, and where and why it departs from the full cache."""
    from ..traces.store import Store
    from .inspect import inspect, inspect_text
    from .policies.registry import parse_policy

    spelled = str(parse_policy(policy)) if policy else None
    found = inspect(Store.open(store), None if run == "last" else run, trajectory, turn, spelled)
    answer(found, as_json, lambda: inspect_text(found, at_least))


def _finished(store: Store, run: str, as_json: bool) -> None:
    """Print what a replay found; exit code 4 if it was to be decided and is not."""
    from .report import decided_text, summary_text
    from .until_decided import outcome, require_decided

    found = outcome(store, run)
    answer(found, as_json, lambda: decided_text(found) + summary_text(found))
    _require_cells(found)
    require_decided(found)


def _show(store: Store, run: str | None, by: str, as_json: bool) -> None:
    """Print results."""
    from .report import summary_text
    from .results import summary

    found = summary(store, run, by)
    answer(found, as_json, lambda: summary_text(found))
    _require_cells(found)


def _require_cells(found: dict[str, Any]) -> None:
    """Exit code 6 if some cells failed, 3 if all were skipped."""
    ok, failed, skipped = (
        sum(entry["status"][name] for entry in found["policies"]) for name in ("ok", "failed", "skipped")
    )
    if failed:
        raise Incomplete(f"{failed} of {ok + failed + skipped} cells of run {found['run']} failed")
    if skipped and not ok:
        raise InputError(f"all {skipped} cells of run {found['run']} were skipped: {found['skipped'][0]['reason']}")


def _policy_text(policy: dict[str, Any]) -> str:
    options = [
        f"  {name}={o['default'] if o['default'] is not None else '–'} ({o['type']}): {o['doc']}"
        for name, o in policy["options"].items()
    ]
    return "\n".join(
        [
            f"{policy['name']}: {policy['summary']}",
            *options,
            f"  formula: {policy['formula']}",
            f"  source: {policy['source']}; footprint {policy['footprint']}",
        ]
    )
