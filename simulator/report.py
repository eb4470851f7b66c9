"""Rows of the answer that are neither search nor arithmetic: averages over replications, quality, what was assumed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..replay.profile import PolicyProfile
from ..replay.scored import name_of
from .assumptions import assumed_together, assumptions
from .geometry import Geometry
from .models import same_model
from .outcome import SimResult
from .run import Scenario
from .search import levels, verdict
from .slo import PERCENTILES, Slo, geometric_mean, needed
from .workload import contexts

ENOUGH_REPLICATIONS = 10  # fewer are a first look, and flagged
MEANS = (
    "batch_mean",
    "throughput_requests_per_s",
    "throughput_tokens_per_s",
    "goodput_requests_per_s",
    "kv_used_share",
    "kv_active_share",
    "preemptions",
    "miss_share",
    "busy_share",
    "unserved_share",
    "queue_growth",
    "waiting_mean",
)


def averaged(results: Sequence[SimResult]) -> dict[str, Any]:
    """The keys of `simulate`, averaged over replications: latencies as geometric means, `batch_max` the largest.

    `saturated` says whether most replications were; `turns_short` how many more turns each percentile needs that could
    not be told (at the measured turns of the shortest replication).
    """
    first, count = results[0], len(results)
    row: dict[str, Any] = {"gpus": first.gpus, "replicas": first.replicas, "tp": first.tp}
    row |= {name: sum(getattr(r, name) for r in results) / count for name in MEANS}
    row["preemptions"] = round(row["preemptions"])
    row["batch_max"] = max(r.batch_max for r in results)
    row["requests"] = sum(r.requests for r in results)
    for metric in ("ttft_s", "tpot_s", "e2e_s"):
        row[metric] = {q: _mean([getattr(r, metric)[q] for r in results]) for q in ("p50", "p95", "p99")}
    row["shares"] = {name: sum(r.shares[name] for r in results) / count for name in first.shares}
    row["saturated"] = saturated(results)
    least = min(r.requests for r in results)
    row["turns_short"] = {f"p{q}": needed(q) - least for q in PERCENTILES if needed(q) > least}
    row["binding_constraint"] = binds(results)
    return row


def saturated(results: Sequence[SimResult]) -> bool:
    """Whether the queue grew, or the agents waited for busy machines, in more than half of the replications."""
    return 2 * sum(r.saturated for r in results) > len(results)


def size_row(results: Sequence[SimResult], slos: Sequence[Slo]) -> dict[str, Any]:
    """One fleet size: its verdict, and mean and interval of every promised latency as `{slo}_s`."""
    found = {f"{key}_s": [level.mean, level.low, level.high] for key, level in levels(results, slos).items()}
    return {
        "gpus": results[0].gpus,
        "verdict": verdict(results, slos),
        "saturated": saturated(results),
        "binding_constraint": binds(results),
        **found,
    }


def promised(results: Sequence[SimResult], slos: Sequence[Slo]) -> dict[str, dict[str, float | None]]:
    """By promise, its latency over the replications: mean and 95 % interval in seconds, no interval of one."""
    alone = len(results) < 2
    return {
        key: {"mean": level.mean, "low": None if alone else level.low, "high": None if alone else level.high}
        for key, level in levels(results, slos).items()
    }


def binds(results: Sequence[SimResult]) -> str:
    """The binding constraint of most replications, in the words of the first that has it."""
    causes = [result.binding_constraint.partition(":")[0] for result in results]
    return results[causes.index(max(causes, key=causes.count))].binding_constraint


def _mean(values: list[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return geometric_mean(known) if len(known) == len(values) else None


def quality(profile: PolicyProfile, geometry: Geometry) -> dict[str, Any]:
    """What replay measured of the policy, null where it did not; the model it was measured with travels along."""
    return {
        "quality_model": profile.model,
        "quality_n": profile.n or None,
        "quality_run": profile.run,
        "quality_until_decided": None if profile.model is None else profile.until_decided,
        "quality_is_planned_model": None if profile.model is None else same_model(profile.model, geometry),
        "quality_of": None if profile.answer_accuracy is None else name_of(profile.label_scorers),
        "answer_accuracy": profile.answer_accuracy,
        "answer_accuracy_low": profile.answer_accuracy_low,
        "answer_accuracy_high": profile.answer_accuracy_high,
        "full_accuracy": profile.full_accuracy,
        "difference": profile.difference,
        "difference_low": profile.difference_low,
        "difference_high": profile.difference_high,
        "extra_turns": profile.extra_turns,
        "extra_turns_source": profile.extra_turns_source,
        "keep_measured": profile.keep_measured,
    }


def with_assumptions(
    rows: Sequence[dict[str, Any]],
    scenarios: Sequence[Scenario],
    known: Mapping[str, PolicyProfile],
    more: dict[str, Any],
) -> list[dict[str, Any]]:
    """Every policy's row with what its own figures rest on, and `more` that is alike for all."""
    return [
        row | {"assumptions": assumptions(scenario, known[scenario.policy]) | more}
        for row, scenario in zip(rows, scenarios, strict=True)
    ]


def described(
    scenarios: Sequence[Scenario], known: Mapping[str, PolicyProfile], replications: int, seed: int
) -> dict[str, Any]:
    """The frame of an answer about scenarios that differ in their policies: model, machine, memory, contexts, price,
    seeds, assumptions.

    `compactable_share`: of a session's memory at the median context, what compaction can touch at all.
    """
    scenario = scenarios[0]
    deployment = scenario.deployment
    geometry, gpu = deployment.geometry, deployment.gpu
    lengths = contexts(scenario.workload, geometry.max_positions)
    return {
        "model": geometry.name,
        "gpu": gpu.name,
        "tp": deployment.tp,
        "dtype": deployment.dtype,
        "kv_dtype": deployment.kv_dtype,
        "utilisation": deployment.utilisation,
        "max_model_len": geometry.max_positions,
        "token_budget": deployment.token_budget,
        "max_sequences": deployment.max_sequences,
        "retention": deployment.retention,
        "preemption": deployment.preemption,
        "compaction": deployment.compaction,
        "coarse_tokens": deployment.coarse_tokens,
        "router": scenario.router,
        "agents": scenario.workload.agents,
        "rate": scenario.workload.rate,
        "contexts": lengths,
        "compactable_share": geometry.compactable_share(lengths["p50"], deployment.kv_dtype) if lengths else None,
        "pool_tokens": deployment.tokens(),
        "weights_gib": deployment.weights_gib(),
        "price_per_hour": gpu.price_per_hour,
        "price_source": gpu.price_source,
        "replications": replications,
        "seed": seed,
        "statistic": "geometric mean over replications, 95 % interval of Student's t on logarithms, "
        f"{replications - 1} degrees of freedom",
        "few_replications": replications < ENOUGH_REPLICATIONS,
        "model_error": scenario.cost.error,
        "model_error_source": scenario.cost.error_source,
        "assumptions": assumed_together(scenarios, known),
    }
