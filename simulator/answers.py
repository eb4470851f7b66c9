"""What the commands and the Python functions share: names and flags in, stored rows and the printed object out."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..console import plain, table
from ..errors import UserError
from ..replay.policies.registry import HEADLINE_POLICY, parse_policies, parse_policy
from ..replay.profile import PolicyProfile
from ..traces.store import Store
from .hardware import find_gpu
from .models import find_geometry
from .outcome import SimResult
from .plan import deploy, plan
from .report import averaged, described, quality
from .run import Scenario, run_fleet
from .sentence import COLUMNS, sentence, table_rows
from .slo import Slo, parse_slo
from .sources import Fill, find_workload

Tick = Callable[[str], None]
FLAT = ("ttft_s", "tpot_s", "e2e_s")


def _silent(_: str) -> None:
    pass


def profiles_of(store: Store, run: str | None) -> Mapping[str, PolicyProfile]:
    """Measured facts by policy text, from `run` or the newest complete replay; empty when there is none."""
    from ..replay.results import profiles

    return profiles(store, run)


def _profile(known: Mapping[str, PolicyProfile], text: str) -> PolicyProfile:
    """The profile of the policy that `text` means, however it was spelled when it was measured."""
    wanted = parse_policy(text)
    for name, profile in known.items():
        if parse_policy(name) == wanted:
            return profile
    return PolicyProfile(text)


def plan_named(
    workload: str,
    model: str,
    gpu: str,
    *,
    slo: Sequence[str] | Mapping[str, float],
    policies: Sequence[str] | None = None,
    run: str | None = None,
    price: float | None = None,
    agents: int | None = None,
    rate: float | None = None,
    tool_wait: str | None = None,
    scale_tokens: float | None = None,
    prefix_tokens: int | None = None,
    seed: int = 0,
    store: Store | str | Path | None = None,
    save: bool = True,
    tick: Tick = _silent,
    **options: Any,
) -> dict[str, Any]:
    """`kvmill plan` as a function: the printed object, with `answer` (the sentence) and `run`. `options` as in `plan`.

    Rows go to the store's `plans` and `simulations` tables unless `save` is False.
    """
    store = store if isinstance(store, Store) else Store.open(store)
    slos, geometry, machine = parse_slo(slo), find_geometry(model), find_gpu(gpu).priced(price)
    texts = list(policies or ("full", HEADLINE_POLICY))
    for text in texts:
        parse_policy(text)
    fill = Fill(agents, rate, tool_wait, scale_tokens, prefix_tokens)
    load = find_workload(workload, fill, store=store, seed=seed)
    known = profiles_of(store, run)
    runs: list[tuple[Scenario, SimResult]] = []
    spelled = [str(parse_policy(text)) for text in texts]
    found = plan(
        load,
        geometry,
        machine,
        texts,
        slos,
        profiles={text: _profile(known, text) for text in {"full", *spelled}},
        seed=seed,
        tick=tick,
        record=lambda scenario, result: runs.append((scenario, result)),
        **options,
    )
    found["answer"] = sentence(found, spelled_headline(found))
    if save:
        found["run"] = save_plan(store, found, runs, seed)
    return found


def spelled_headline(found: Mapping[str, Any]) -> str:
    """The policy that the sentence speaks of: the headline policy if it was planned, else the last one."""
    names = [row["policy"] for row in found["plans"]]
    return HEADLINE_POLICY if HEADLINE_POLICY in names else names[-1]


def save_plan(store: Store, found: Mapping[str, Any], runs: Sequence[tuple[Scenario, SimResult]], seed: int) -> str:
    """Store a plan: one row per policy, one per simulation of its brackets. Returns the run's id."""
    config = {key: found[key] for key in ("workload", "model", "gpu", "tp", "slo", "replications", "assumptions")}
    run = store.begin("plan", config | {"policies": [row["policy"] for row in found["plans"]]}, seed=seed)
    rows = [
        {key: row[key] for key in _PLAN_COLUMNS}
        | {"workload": found["workload"], "model": found["model"], "gpu": found["gpu"]}
        | {"detail": json.dumps(plain(row))}
        for row in found["plans"]
    ]
    run.add({"plans": rows, "simulations": [simulation_row(*pair) for pair in runs]}, key="plan")
    run.finish()
    return run.id


_PLAN_COLUMNS = (
    "policy",
    "feasible",
    "gpus",
    "gpus_low",
    "gpus_high",
    "gpus_saved",
    "gpus_saved_low",
    "gpus_saved_high",
    "binding_constraint",
    "cost_per_month",
)


def simulation_row(scenario: Scenario, result: SimResult) -> dict[str, Any]:
    """One simulation as a row of the `simulations` table."""
    row: dict[str, Any] = {
        "workload": scenario.workload.name,
        "model": scenario.deployment.geometry.name,
        "gpu": scenario.deployment.gpu.name,
        "policy": scenario.policy,
        "replication": result.seed % 1000,
        "meets": result.meets(scenario.slos),
    }
    for name in FLAT:
        levels = getattr(result, name)
        row |= {f"{name[:-2]}_{q}_s": levels[q] for q in levels}
    same = ("gpus", "replicas", "tp", "seed", "batch_mean", "batch_max", "throughput_requests_per_s", "requests")
    more = ("throughput_tokens_per_s", "goodput_requests_per_s", "kv_used_share", "preemptions", "simulated_s")
    return row | {name: getattr(result, name) for name in (*same, *more, "binding_constraint")}


def simulate(
    workload: str,
    model: str,
    gpu: str,
    gpus: int,
    *,
    policy: str | None = None,
    keep: float | None = None,
    run: str | None = None,
    slo: Sequence[str] | Mapping[str, float] = ("ttft_p95=2", "tpot_p95=0.05"),
    agents: int | None = None,
    rate: float | None = None,
    tool_wait: str | None = None,
    scale_tokens: float | None = None,
    prefix_tokens: int | None = None,
    tp: int | None = None,
    replications: int = 1,
    seed: int = 0,
    store: Store | str | Path | None = None,
    save: bool = True,
    tick: Tick = _silent,
    **fields: Any,
) -> dict[str, Any]:
    """`kvmill simulate` as a function: one fleet of `gpus` GPUs under one policy, averaged over replications.

    `keep` stands for `te(proxy=assistant,delay=1,keep=KEEP)` with no quality claimed. UserError when both it and a
    policy are given, or when `gpus` is no multiple of the tensor-parallel size.
    """
    store = store if isinstance(store, Store) else Store.open(store)
    if keep is not None and policy is not None:
        raise UserError("--policy and --keep exclude each other")
    asked = f"te(proxy=assistant,delay=1,keep={keep})" if keep is not None else policy or "full"
    text = str(parse_policies([asked])[-1])
    slos: tuple[Slo, ...] = parse_slo(slo)
    load = find_workload(workload, Fill(agents, rate, tool_wait, scale_tokens, prefix_tokens), store=store, seed=seed)
    deployment = deploy(load, find_geometry(model), find_gpu(gpu), tp, **fields)
    if gpus < 1 or gpus % deployment.tp:
        raise UserError(f"--gpus {gpus}: must be a multiple of the tensor-parallel size {deployment.tp}")
    profile = PolicyProfile(text) if keep is not None else _profile(profiles_of(store, run), text)
    scenario = Scenario(
        load,
        text,
        deployment,
        slos,
        extra_turns=profile.extra_turns or 0.0,
        keep_measured=profile.keep_measured,
    )
    results: list[SimResult] = []
    for r in range(replications):
        results.append(run_fleet(scenario, gpus // deployment.tp, seed * 1000 + r))
        tick(f"{gpus} GPUs, {text}")
    found = {
        "workload": load.name,
        "policy": text,
        "slo": {s.key: s.limit_s for s in slos},
        "meets": all(result.meets(slos) for result in results),
        **described(scenario, replications, seed),
        **averaged(results),
        **quality(profile, deployment.geometry),
    }
    if save:
        stored = store.begin(
            "simulate", {k: found[k] for k in ("workload", "model", "gpu", "policy", "slo")}, seed=seed
        )
        stored.add({"simulations": [simulation_row(scenario, r) for r in results]}, key="simulate")
        stored.finish()
        found["run"] = stored.id
    return found


def simulate_text(found: Mapping[str, Any]) -> str:
    """One screen about one fleet."""
    kept = "keeps" if found["meets"] else "does not keep"
    promises = ", ".join(f"{key} ≤ {limit:g} s" for key, limit in found["slo"].items())
    head = (
        f"{found['gpus']} × {found['gpu'].upper()} ({found['replicas']} replicas of {found['model']}) serving "
        f"{found['workload']} under {found['policy']} {kept} {promises}.\nBinding: {found['binding_constraint']}."
    )
    levels = [{"metric": name[:-2].upper(), **found[name]} for name in FLAT]
    body = table(levels, {"metric": "seconds", "p50": "p50", "p95": "p95", "p99": "p99"})
    rates = (
        f"{found['throughput_requests_per_s']:.2f} requests/s, {found['throughput_tokens_per_s']:,.0f} tokens/s, "
        f"{found['goodput_requests_per_s']:.2f} requests/s within the promises\n"
        f"batch {found['batch_mean']:.1f} (at most {found['batch_max']}), KV blocks {found['kv_used_share']:.0%} used, "
        f"{found['preemptions']} preemptions, {found['miss_share']:.1%} of turns found their cache gone"
    )
    return f"{head}\n\n{body}\n\n{rates}\n\n{assumed_text(found)}"


def plan_text(found: Mapping[str, Any]) -> str:
    """The sentence, the table, the sizes around the answer, what was assumed."""
    rows = [
        {"policy": row["policy"], "gpus": size["gpus"], "verdict": size["verdict"]}
        | {key: _interval(size[f"{key}_s"]) for key in found["slo"]}
        for row in found["plans"]
        for size in row["sizes"]
    ]
    sizes = table(
        rows, {"policy": "policy", "gpus": "GPUs", "verdict": "verdict"} | {k: f"{k} s" for k in found["slo"]}
    )
    body = table(table_rows(found["plans"]), COLUMNS)
    shapes = f"\n\nGPUs if the workload were shaped otherwise:\n{shapes_text(found)}" if found["other_shapes"] else ""
    looked = f"Fleet sizes looked at (geometric mean over replications, 95 % interval):\n{sizes}"
    return f"{found['answer']}\n\n{body}{shapes}\n\n{looked}\n\n{assumed_text(found)}"


def shapes_text(found: Mapping[str, Any]) -> str:
    """The answer for other shapes of the workload, one line each."""
    policies = {name: name for row in found["other_shapes"] for name in row if name != "what"}
    return table(found["other_shapes"], {"what": "if"} | policies)


def _interval(level: Sequence[float]) -> str:
    mean, low, high = level
    return f"{mean:.3g} ({low:.3g}–{high:.3g})"


def assumed_text(found: Mapping[str, Any]) -> str:
    """What was assumed, line by line."""
    lines = []
    if found.get("contexts"):
        lines.append("contexts: " + ", ".join(f"{q} {tokens:,} tokens" for q, tokens in found["contexts"].items()))
        lines.append(f"compactable: {found['compactable_share']:.0%} of a session's memory at the median context")
    for name, value in found["assumptions"].items():
        lines += [f"{name}: {item}" for item in (value if isinstance(value, list) else [value])]
    lines.append(f"price {found['price_per_hour']:g} USD per GPU-hour ({found['price_source']})")
    return "Assumed:\n" + "\n".join(f"  {line}" for line in lines)
