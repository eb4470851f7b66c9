"""`--method paper`: how arXiv:2608.00902 counts throughput, beside what continuous batching says of the same sessions.

The main path: one deployment for all → per policy, the largest KV of any turn → the static batch that always fits,
rounded down to a power of two → decodes replayed at a time per step → sessions per hour of one replica, and the ratio
against `full`. Then `paper_walk` says what becomes of the ratio when one thing after another is counted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..replay.policies.registry import parse_policies
from ..replay.profile import PolicyProfile
from .geometry import Geometry
from .hardware import Gpu
from .measured import pace
from .paper_static import Decodes, Static, StepTable, static
from .paper_table import HOUR_S, table_checks, table_findings
from .paper_walk import Means, carried, kept_batch, means_of, rate, walk
from .paper_words import NOT_CHARGED, explained, paper_answer, paper_text
from .plan import HOURS_PER_MONTH, deploy
from .report import described, quality, with_assumptions
from .run import Scenario
from .slo import Slo
from .workload import Workload

__all__ = ["paper_plan", "paper_text", "table_checks", "table_findings"]


def paper_plan(
    workload: Workload,
    geometry: Geometry,
    gpu: Gpu,
    policies: Sequence[str],
    slo: tuple[Slo, ...] = (),
    *,
    profiles: Mapping[str, PolicyProfile] | None = None,
    tp: int | None = None,
    pool_tokens: int | None = None,
    most_batch: int | None = None,
    step_times: Mapping[int, StepTable] | None = None,
    simulated: bool = True,
    seed: int = 0,
    tick: Callable[[str], None] = lambda _: None,
    **deployment_fields: Any,
) -> dict[str, Any]:
    """The frame of a plan and one row per policy in `plans`, `full` first; `gpus` by the paper's method, no interval.

    `pool_tokens` stands for the deployment's own pool (nothing is simulated then), `most_batch` for the largest batch
    worth running, `step_times` (`read_step_times`) for the cost model's: with measured times the fastest power of two
    that fits is used, without them the largest. `simulated` False leaves continuous batching out. A policy whose
    largest session does not fit is a row that is not feasible. UserError as `plan`.
    """
    texts = [str(policy) for policy in parse_policies(list(policies))]
    deployment = deploy(workload, geometry, gpu, tp, **deployment_fields)
    pool = pool_tokens or deployment.tokens()
    simulated = simulated and pool_tokens is None
    scenarios: list[Scenario] = []
    rows: list[dict[str, Any]] = []
    known = {text: (profiles or {}).get(text) or PolicyProfile(text) for text in texts}
    for text, profile in known.items():
        measured = {"keep_measured": profile.keep_measured, "pace": pace(profile, deployment)}
        scenario = Scenario(workload, text, deployment, slo, extra_turns=profile.extra_turns or 0.0, **measured)
        scenarios.append(scenario)
        row = counted(scenario, pool, step_times, most_batch, seed, tick if simulated else None)
        rows.append(row | quality(profile, geometry))
        tick(f"{text}, static batch")
    for row in rows:
        compare(row, rows[0])
    method = {
        "method": "static batch of the largest KV, decodes only; not charged: " + "; ".join(NOT_CHARGED),
        "step_times": f"{'given' if step_times else 'of the cost model (estimated)'}, linear between context lengths",
        "batch": "the power of two that fits and was measured to be fastest"
        if step_times
        else "the largest power of two that fits; whether a smaller one is faster only a measurement says",
    }
    frame = described(scenarios, known, 1, seed)
    found = {
        "method": "paper",
        "slo": {s.key: s.limit_s for s in slo},
        "workload": workload.name,
        **frame,
        "assumptions": frame["assumptions"] | method,
        "pool_tokens": pool,
        "plans": with_assumptions(rows, scenarios, known, method),
    }
    return found | {"answer": paper_answer(found)}


def counted(
    scenario: Scenario,
    pool: int,
    step_times: Mapping[int, StepTable] | None = None,
    most_batch: int | None = None,
    seed: int = 0,
    tick: Callable[[str], None] | None = None,
) -> dict[str, Any]:
    """One policy: the paper's figures, the lines of the walk and, with a `tick`, those of the simulation."""
    deployment, cost = scenario.deployment, scenario.cost
    plans = [scenario.plan_of(i) for i in scenario.positions.usable]
    decodes = Decodes.of(plans)
    found = static(decodes, pool, cost, step_times, most_batch)
    row = {"policy": scenario.policy, **_static(found, decodes, scenario), **_fleet(found, scenario)}
    if not found.batch:
        return row | {"binding_constraint": "KV blocks: the largest session does not fit (raise --tp)", "walk": []}
    cap = deployment.max_sequences
    means = means_of(plans, decodes, cost, deployment.state_blocks(), min(cap, found.batch))
    row |= {"walk": walk(means, decodes, cost, found, cap, pool), **_means(means)}
    if tick is None:
        return row
    best, keeping = carried(scenario, _present(means, scenario, pool), seed, tick)
    row["walk"].append(best.line("batching", "continuous batching, the most it does"))
    if keeping is not None:
        row["walk"].append(keeping.line("promises", "continuous batching within the promises"))
    shown = (keeping or best).results[0]
    kept = None if not scenario.slos else keeping is not None
    return row | {"keeps_promises": kept, "binding_constraint": shown.binding_constraint}


def _static(found: Static, decodes: Decodes, scenario: Scenario) -> dict[str, Any]:
    turns = scenario.positions.mean_turns
    return {
        "feasible": found.batch > 0,
        "turns": turns,
        "peak_kv_tokens": found.peak,
        "mean_kv_tokens": decodes.mean_rows,
        "batch_admissible": found.admissible,
        "batch": found.batch,
        "decode_s_per_session": found.session_s or None,
        "sessions_per_hour": found.per_hour or None,
        "turns_per_hour": found.per_hour * turns or None,
        "binding_constraint": "KV blocks: the largest session sets the batch of all",
        "keeps_promises": None,
    }


def _means(means: Means) -> dict[str, Any]:
    return {
        "prefill_s_per_session": means.prefill_s,
        "compaction_s_per_session": means.compaction_s,
        "tool_wait_s_per_session": means.wait_s,
        "captured_kv_tokens": means.beside,
    }


def _fleet(found: Static, scenario: Scenario) -> dict[str, Any]:
    """GPUs that serve the workload's sessions per hour, as a plan has them; what the method cannot say is null."""
    load, positions, deployment = scenario.load, scenario.positions, scenario.deployment
    per_s = load.agents / positions.mean_session_s if load.agents else load.sessions_per_s
    replicas = math.ceil(per_s * HOUR_S / found.per_hour) if found.batch else 0
    gpus = replicas * deployment.tp or None
    price = deployment.gpu.price_per_hour
    none = ("gpus_low", "gpus_high", "gpus_saved_low", "gpus_saved_high", "gpus_if_slower", "gpus_if_faster")
    return {
        "gpus": gpus,
        "replicas": replicas or None,
        "tp": deployment.tp,
        "sessions_per_hour_wanted": per_s * HOUR_S,
        "cost_per_month": gpus * price * HOURS_PER_MONTH if gpus and price is not None else None,
        "turns_break_even": None,
        **dict.fromkeys(none),
    }


def _present(means: Means, scenario: Scenario, pool: int) -> float:
    """Agents at work on one replica when their caches fill its pool: where the simulation begins to look."""
    kept = kept_batch(means, scenario.cost, scenario.deployment.max_sequences, pool)
    stopped = means.prefill_s + means.compaction_s
    return kept + rate(means, scenario.cost, kept, stopped) / HOUR_S * means.wait_s


def compare(row: dict[str, Any], full: dict[str, Any]) -> None:
    """Add the ratios against `full` and GPUs saved to a row and to the lines of its walk, and say them in words."""
    both = row["feasible"] and full["feasible"]
    row["ratio"] = row["sessions_per_hour"] / full["sessions_per_hour"] if both else None
    row["gpus_saved"] = full["gpus"] - row["gpus"] if both else None
    rates = {line["key"]: line["sessions_per_hour"] for line in full["walk"]}
    for line in row["walk"]:
        line["ratio"] = line["sessions_per_hour"] / rates[line["key"]] if rates.get(line["key"]) else None
    row["explained"] = explained(row, full)
