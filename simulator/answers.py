"""What the commands and the Python functions share: names and flags in, stored rows and the printed object out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..replay.executors.choice import Executing
from ..replay.policies.registry import HEADLINE_POLICY, parse_policies, parse_policy
from ..replay.profile import PolicyProfile
from ..traces.store import Store
from .given import Given, given
from .measured import timed
from .outcome import SimResult
from .plan import plan, scenarios_of
from .report import averaged, described, promised, quality
from .run import Scenario, run_fleet
from .sentence import sentence
from .series import Watched
from .slo import Slo, parse_slo, several
from .stored import save_loads, save_plan, save_simulation

Tick = Callable[[str], None]
Slos = str | Sequence[str] | Mapping[str, float]
METHODS = ("queueing", "paper")
REPLICATIONS, MOST_GPUS = 10, 512  # of a plan, unless it is told otherwise


def _silent(_: str) -> None:
    pass


def profiles_of(store: Store, run: str | None) -> Mapping[str, PolicyProfile]:
    """Measured facts by policy text, from `run` or the newest complete replay; empty when there is none."""
    from ..replay.profiles import profiles

    return timed(store, profiles(store, run))


def profile_of(known: Mapping[str, PolicyProfile], text: str) -> PolicyProfile:
    """The profile of the policy that `text` means, however it was spelled when it was measured."""
    wanted = parse_policy(text)
    for name, profile in known.items():
        if parse_policy(name) == wanted:
            return profile
    return PolicyProfile(text)


def default_policies(store: Store, run: str | None) -> tuple[str, str]:
    """`full`, and the policy that the replay recommends; the headline policy where nothing is recommended (yet)."""
    from ..replay.closed.results import is_closed
    from ..replay.recommend import recommend

    recorded = [info.run_id for info in store.runs("replay", "complete") if not is_closed(info)]
    asked = run if run in recorded else next(iter(recorded), None)
    found = None if asked is None else recommend(store, asked)["policy"]
    return "full", found or HEADLINE_POLICY


def profiles_for(texts: Sequence[str], store: Store, run: str | None) -> dict[str, PolicyProfile]:
    """The profile of each policy and of `full`, `full` first, in the spelling that plans use. UserError on a policy."""
    policies = [str(policy) for policy in parse_policies(list(texts))]
    known = profiles_of(store, run)
    return {text: profile_of(known, text) for text in policies}


def plan_named(
    workload: str,
    model: str,
    gpu: str,
    *,
    slo: Slos,
    policies: str | Sequence[str] | None = None,
    run: str | None = None,
    method: str = "queueing",
    sweep: str | Sequence[str] = (),
    max_load: bool = False,
    gpus: int | None = None,
    seed: int = 0,
    store: Store | str | Path | None = None,
    save: bool = True,
    tick: Tick = _silent,
    replications: int = REPLICATIONS,
    max_gpus: int = MOST_GPUS,
    workers: int | None = None,
    executor: str = "local",
    ray_address: str | None = None,
    turns: int | None = None,
    sensitivity: bool = True,
    attribute: bool = False,
    **flags: Any,
) -> dict[str, Any]:
    """`kvmill plan` as a function: the printed object, with `answer` (the sentence) and `run`.

    `flags` are the other flags of the command: the load, the machine, the price. `sweep` plans every combination of
    some settings; `max_load` asks what load `gpus` GPUs carry instead; `method="paper"` counts as the paper does.
    `attribute` says what every policy's saving is made of, not only that of the sentence. `executor` ray spreads the
    simulations over the `workers` of a cluster (all its cores, unless told), local over so many processes (1). Rows go
    to the store unless `save` is False. UserError on names, values and combinations that cannot be.
    """
    executing = Executing(executor, workers if executor == "ray" else None, None, ray_address)
    store = store if isinstance(store, Store) else Store.open(store)
    slos, texts, sweep = parse_slo(slo), several(policies or default_policies(store, run)), several(sweep)
    _enough(2, replications, turns)
    _one_question(method, sweep, max_load, gpus, attribute)
    if method == "paper":
        _papers_own(attribute, replications, max_gpus, flags)
    options: dict[str, Any] = {"replications": replications, "seed": seed, "workers": workers or 1, "tick": tick}
    options |= {"executing": executing} | ({} if turns is None else {"turns": turns})
    with executing.session():
        if sweep:
            options |= {"max_gpus": max_gpus, "sensitivity": False}
            named = {"workload": workload, "model": model, "gpu": gpu, "store": store, "seed": seed} | flags
            return _swept(sweep, texts, slos, run, store if save else None, named, options)
        found = given(workload, model, gpu, store=store, seed=seed, **flags)
        known = profiles_for(texts, store, run)
        if method == "paper":
            from .paper import paper_plan

            return paper_plan(
                found.load, found.geometry, found.gpu, texts, slos,
                profiles=known, tp=found.tp, seed=seed, tick=tick, **found.replica,
            )  # fmt: skip
        if max_load:
            from .max_load import max_load as carried

            runs: list[tuple[Scenario, SimResult]] = []
            options["record"] = lambda scenario, result: runs.append((scenario, result))
            loads = carried(found, known, slos, gpus or 0, **options)
            return loads | ({"run": save_loads(store, loads, runs, seed)} if save else {})
        explained = list(known) if attribute else [headline_of(list(known))] if sensitivity else []
        options |= {"max_gpus": max_gpus, "sensitivity": sensitivity, "attribute": explained}
        return planned(found, known, slos, store if save else None, **options)


def planned(
    found: Given, known: Mapping[str, PolicyProfile], slos: tuple[Slo, ...], store: Store | None, **options: Any
) -> dict[str, Any]:
    """One plan with its sentence, stored unless `store` is None. `options` as in `plan`."""
    runs: list[tuple[Scenario, SimResult]] = []
    answer = plan(
        found.load,
        found.geometry,
        found.gpu,
        list(known),
        slos,
        profiles=known,
        tp=found.tp,
        fleet=found.fleet,
        record=lambda scenario, result: runs.append((scenario, result)),
        **options,
        **found.replica,
    )
    answer["answer"] = sentence(answer, spelled_headline(answer))
    if store is not None:
        answer["run"] = save_plan(store, answer, runs, options["seed"])
    return answer


def _swept(
    sweep: Sequence[str],
    texts: Sequence[str],
    slos: tuple[Slo, ...],
    run: str | None,
    store: Store | None,
    named: Mapping[str, Any],
    options: Mapping[str, Any],
) -> dict[str, Any]:
    """Every combination planned; each plan is a run of the store, that of the cheapest machine is the answer."""
    from .sweeps import parse_grid, swept

    grid = parse_grid(sweep, texts)
    known = profiles_for(grid.policies, named["store"], run)

    def one(machine: Mapping[str, Any]) -> dict[str, Any]:
        return planned(given(**(dict(named) | dict(machine))), known, slos, store, **options)

    return swept(grid, {"gpu": named["gpu"], "model": named["model"], "tp": named.get("tp")}, one)


def _enough(least: int, replications: int, turns: int | None) -> None:
    """UserError on replications that have no interval, and on a run of no turns."""
    if replications < least:
        raise UserError(f"--replications {replications}: {least} at least")
    if turns is not None and turns < 1:
        raise UserError(f"--turns {turns}: 1 at least")


def _one_question(method: str, sweep: Sequence[str], max_load: bool, gpus: int | None, attribute: bool) -> None:
    if method not in METHODS:
        raise UserError(f"--method {method!r}: one of {', '.join(METHODS)}")
    asked = [name for name, is_asked in (("--sweep", sweep), ("--max-load", max_load)) if is_asked]
    if method == "paper" and asked:
        raise UserError(f"--method paper has no {asked[0]}")
    if len(asked) > 1:
        raise UserError("--sweep and --max-load exclude each other")
    if asked and attribute:
        raise UserError(f"{asked[0]} has no --attribute: plan one setting to see what its saving is made of")
    if max_load and gpus is None:
        raise UserError("--max-load: say of how many GPUs, for instance --gpus 8")
    if gpus is not None and not max_load:
        raise UserError("--gpus: a plan finds it itself; with --max-load it is what carries the load")


def _papers_own(attribute: bool, replications: int, max_gpus: int, flags: Mapping[str, Any]) -> None:
    """UserError on what the paper's method would not heed: it looks at one replica, whose batch never changes."""
    unheeded = {
        "--attribute": attribute,
        "--router": flags.get("router", "affinity") != "affinity",
        "--fail": flags.get("fail") is not None,
        "--replications": replications != REPLICATIONS,
        "--max-gpus": max_gpus != MOST_GPUS,
    }
    for name, asked in unheeded.items():
        if asked:
            raise UserError(f"--method paper has no {name}; leave it out, or ask with --method queueing")


def spelled_headline(found: Mapping[str, Any]) -> str:
    """The policy that the sentence speaks of: the headline policy if it was planned, else the last one."""
    return headline_of([row["policy"] for row in found["plans"]])


def headline_of(names: Sequence[str]) -> str:
    """The same of a list of policies."""
    return HEADLINE_POLICY if HEADLINE_POLICY in names else names[-1]


def simulate(
    workload: str,
    model: str,
    gpu: str,
    gpus: int,
    *,
    policy: str | None = None,
    keep: float | None = None,
    run: str | None = None,
    slo: Slos = ("ttft_p95=2", "tpot_p95=0.05"),
    replications: int = 1,
    turns: int | None = None,
    series: bool = False,
    seed: int = 0,
    store: Store | str | Path | None = None,
    save: bool = True,
    tick: Tick = _silent,
    **flags: Any,
) -> dict[str, Any]:
    """`kvmill simulate` as a function: one fleet of `gpus` GPUs under one policy, averaged over replications.

    `keep` stands for `te(proxy=assistant,delay=1,keep=KEEP)` with no quality claimed. `turns`: about how many are
    measured in each replication. `series` adds how it went over time, and keeps every turn in the store. `flags` are
    the other flags of the command. UserError when both `keep` and a policy are given, or when `gpus` is no multiple of
    the tensor-parallel size.
    """
    store = store if isinstance(store, Store) else Store.open(store)
    if keep is not None and policy is not None:
        raise UserError("--policy and --keep exclude each other")
    _enough(1, replications, turns)
    asked = f"te(proxy=assistant,delay=1,keep={keep})" if keep is not None else policy or "full"
    text = str(parse_policies([asked])[-1])
    slos: tuple[Slo, ...] = parse_slo(slo)
    setting = given(workload, model, gpu, store=store, seed=seed, **flags)
    deployment = setting.deployment()
    replicas = deployment.replicas(gpus)
    profile = PolicyProfile(text) if keep is not None else profile_of(profiles_of(store, run), text)
    (scenario,) = scenarios_of(setting.load, deployment, slos, {text: profile}, fleet=setting.fleet)
    scenario = scenario if turns is None else replace(scenario, turns=turns)
    runs, watched = [], Watched(series)
    for r in range(replications):
        runs.append((scenario, run_fleet(scenario, replicas, seed * 1000 + r, watch=watched.look)))
        watched.keep(runs[-1][1].seed)
        tick(f"{gpus} GPUs, {text}")
    results = [result for _, result in runs]
    found = {
        "workload": setting.load.name,
        "policy": text,
        "slo": {s.key: s.limit_s for s in slos},
        "meets": all(result.meets(slos) for result in results),
        "promises": promised(results, slos),
        **described([scenario], {text: profile}, replications, seed),
        **averaged(results),
        **quality(profile, deployment.geometry),
    }
    if series:
        found["series"] = [row for row in watched.rows if row["seed"] == results[0].seed]
    if save:
        found["run"] = save_simulation(store, found, runs, seed, watched.rows, watched.turns)
    return found
