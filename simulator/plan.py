"""`plan`: the fewest GPUs that keep the promises, for every policy, with an interval, and what is saved against `full`.

The main path, top to bottom: one deployment for all → one scenario per policy → a bracket of fleet sizes per
policy (same seeds for all) → rows: the answer, its interval, the paired saving, how it moves if machines are slower
or faster than modelled, how much more load it carries, what the saving is made of, and how many more turns would eat
it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import UserError
from ..replay.executors.choice import Executing
from ..replay.policies.registry import parse_policies
from ..replay.profile import PolicyProfile
from .attribution import attribution
from .bench import LOCAL, Bench, Variant
from .deployment import Deployment
from .geometry import Geometry
from .given import deploy
from .gpu import Gpu
from .headroom import headroom
from .measured import pace
from .outcome import SimResult
from .report import ENOUGH_REPLICATIONS, averaged, binds, described, quality, size_row, with_assumptions
from .run import Scenario
from .search import Side, bracket, verdict
from .sensitivity import assumed, moved, other_shapes
from .slo import Slo
from .words import gpus_words
from .workload import Workload

__all__ = ["HOURS_PER_MONTH", "answer", "deploy", "plan", "scenarios_of"]

HOURS_PER_MONTH = 730


def plan(
    workload: Workload,
    geometry: Geometry,
    gpu: Gpu,
    policies: Sequence[str],
    slo: tuple[Slo, ...],
    *,
    profiles: Mapping[str, PolicyProfile] | None = None,
    replications: int = 10,
    seed: int = 0,
    tp: int | None = None,
    max_gpus: int = 512,
    workers: int = 1,
    executing: Executing = LOCAL,
    turns: int | None = None,
    sensitivity: bool = True,
    attribute: Sequence[str] = (),
    fleet: Mapping[str, Any] | None = None,
    tick: Callable[[str], None] = lambda _: None,
    record: Callable[[Scenario, SimResult], None] | None = None,
    **deployment_fields: Any,
) -> dict[str, Any]:
    """The plan as `kvmill plan --json` prints it: the frame, and one row per policy in `plans`, `full` first.

    `tp` None chooses the smallest size that holds the longest session. `profiles` are measured facts by policy text;
    extra turns come only from there. `fleet` are fields of `Scenario` beside them (router). `sensitivity` asks how the
    answer moves; `attribute` names policies of which to say what their saving is made of. `record` is given every
    simulation of the brackets. UserError on a policy or deployment that cannot be; infeasible is a row.
    """
    texts = [str(policy) for policy in parse_policies(list(policies))]
    deployment = deploy(workload, geometry, gpu, tp, **deployment_fields)
    known = {text: (profiles or {}).get(text) or PolicyProfile(text) for text in texts}
    scenarios = [one.compiled() for one in scenarios_of(workload, deployment, slo, known, turns, fleet)]
    if max_gpus < deployment.tp:
        raise UserError(f"--max-gpus {max_gpus}: one replica of {geometry.name} takes {deployment.tp} (--tp)")
    most = max_gpus // deployment.tp
    seeds = [seed * 1000 + r for r in range(replications)]
    with Bench(scenarios, workers, tick, executing) as bench:
        sides = [bracket(bench, Variant(i), seeds, most) for i in range(len(scenarios))]
        rows = []
        for scenario, side in zip(scenarios, sides, strict=True):
            row = answer(side, sides[0], scenario, known[scenario.policy], seeds)
            if sensitivity:
                row |= moved(bench, side, sides[0], seeds, most) | headroom(bench, side, seeds)
            if scenario.policy in attribute and side is not sides[0]:
                row |= attribution(bench, side, sides[0], seeds, most)
            rows.append(row)
        whole = sensitivity and workload.declared and replications >= ENOUGH_REPLICATIONS
        shapes = other_shapes(bench, sides, seeds, most) if whole else []
    if record is not None:
        for side, scenario in zip(sides, scenarios, strict=True):
            for result in (found for results in side.results.values() for found in results):
                record(scenario, result)
    frame = described(scenarios, known, replications, seed)
    more = {"sensitivity": assumed(replications)} if sensitivity else {}
    return {
        "slo": {s.key: s.limit_s for s in slo},
        "workload": workload.name,
        **frame,
        "assumptions": frame["assumptions"] | more,
        "other_shapes": shapes,
        "plans": with_assumptions(rows, scenarios, known, more),
    }


def scenarios_of(
    workload: Workload,
    deployment: Deployment,
    slo: tuple[Slo, ...],
    known: Mapping[str, PolicyProfile],
    turns: int | None = None,
    fleet: Mapping[str, Any] | None = None,
) -> list[Scenario]:
    """One scenario per policy of `known`, alike but for the policy and what was measured of it.

    UserError when a promise is about the time per output token, and no turn has more than one.
    """
    spoken = (part.tokens for session in workload.sessions for part in session.segments if part.kind == "assistant")
    if any(promise.metric == "tpot" for promise in slo) and all(tokens <= 1 for tokens in spoken):
        raise UserError(
            f"workload {workload.name}: every turn answers with one token, which has no time per output token; "
            "promise --slo ttft_p95=… or e2e_p95=… alone"
        )
    return [
        Scenario(
            workload,
            text,
            deployment,
            slo,
            extra_turns=profile.extra_turns or 0.0,
            keep_measured=profile.keep_measured,
            pace=pace(profile, deployment),
            turns=turns,
            **(fleet or {}),
        )
        for text, profile in known.items()
    ]


def answer(side: Side, full: Side, scenario: Scenario, profile: PolicyProfile, seeds: Sequence[int]) -> dict[str, Any]:
    """A policy's row: GPUs and GPUs saved with their intervals, what happened at that size, cost, quality.

    The saving's interval holds 95 % of the paired differences between replications, and the saving itself.
    """
    tp, price, slos = scenario.deployment.tp, scenario.deployment.gpu.price_per_hour, scenario.slos
    at = side.count or max(side.results)
    one_fewer = side.results.get(at - 1) if side.count else None
    saved = low = high = None
    if side.count and full.count:
        apart = [(full.smallest_in(r, slos) - side.smallest_in(r, slos)) * tp for r in range(len(seeds))]
        saved = (full.count - side.count) * tp
        low, high = min(saved, _quantile(apart, 0.025)), max(saved, _quantile(apart, 0.975))
    row: dict[str, Any] = {
        "policy": scenario.policy,
        "feasible": side.count is not None,
        "infeasible_because": side.never,
        "gpus": _gpus(side.count, tp),
        "gpus_low": _gpus(side.low, tp),
        "gpus_high": _gpus(side.high, tp),
        "gpus_bound": side.bound * tp,
        "gpus_searched": side.searched * tp,
        "gpus_saved": saved,
        "gpus_saved_low": low,
        "gpus_saved_high": high,
        "cost_per_month": side.count * tp * price * HOURS_PER_MONTH if side.count and price is not None else None,
        "verdict": verdict(side.results[at], slos),
        "one_fewer": None if one_fewer is None else size_row(one_fewer, slos),
        "sizes": [size_row(side.results[n], slos) for n in sorted(side.results)],
        "gpus_if_slower": None,
        "gpus_if_faster": None,
        "turns_break_even": None,
        "turns_break_even_note": None,
        "turns_break_even_cut_share": None,
        "headroom": None,
        "headroom_note": None,
        "attribution": None,
    }
    happened = averaged(side.results[at])
    short = [result for result in one_fewer or () if not result.meets(slos)]
    happened["binding_constraint"] = binds(short or side.results[at])
    if short:  # what binds shows where one replica is missing
        happened["binding_constraint"] += f" ({gpus_words((at - 1) * tp)}, one replica fewer)"
    elif side.count is None:
        happened["binding_constraint"] += f" ({gpus_words(at * tp)})"
    elif side.count == 1:
        happened["binding_constraint"] = "none: one replica keeps every promise"
    return row | {k: v for k, v in happened.items() if k != "gpus"} | quality(profile, scenario.deployment.geometry)


def _gpus(replicas: int | None, tp: int) -> int | None:
    return None if replicas is None else replicas * tp


def _quantile(values: Sequence[float], share: float) -> float:
    """The quantile; a whole number where it is one."""
    value = float(np.quantile(values, share))
    return int(value) if value.is_integer() else value
