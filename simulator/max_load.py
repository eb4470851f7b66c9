"""The reverse question: what load do N GPUs carry, per policy, before a promise breaks?"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..console import table
from ..replay.executors.choice import Executing
from ..replay.profile import PolicyProfile
from .bench import LOCAL, Bench, Variant
from .bounds import demand, resident_blocks
from .given import Given
from .outcome import SimResult
from .plan import scenarios_of
from .reach import hopeless, out_of_reach
from .report import averaged, binds, described, quality, size_row, with_assumptions
from .run import Scenario
from .search import PILOT_SEEDS, mean_meets, neighbours, settled, smallest
from .slo import Slo, parse_slo, words

STEP = 1.02  # loads are tried in steps of two percent
LARGEST = 1000.0  # times the workload's own load; the least is a thousandth
MOST_STEPS = 350


def load_of(step: int) -> float:
    """The load of a step as a factor on the workload's own. Steps count downward, so that more steps are easier."""
    return STEP**-step


def step_of(load: float) -> int:
    """The hardest step whose load is not above `load`."""
    return math.ceil(-math.log(load) / math.log(STEP) - 1e-9)


def max_load(
    found: Given,
    known: Mapping[str, PolicyProfile],
    slos: tuple[Slo, ...],
    gpus: int,
    *,
    replications: int = 10,
    seed: int = 0,
    workers: int = 1,
    executing: Executing = LOCAL,
    turns: int | None = None,
    tick: Callable[[str], None] = lambda _: None,
    record: Callable[[Scenario, SimResult], None] = lambda scenario, result: None,
) -> dict[str, Any]:
    """The largest load that `gpus` GPUs carry within the promises, per policy: the frame, and a row each in `plans`.

    `max_load` is the largest whose mean meets, `max_load_low` the largest that meets, `max_load_high` the largest below
    all that fail, in agents or in sessions per second (`load_unit`); to 2 %. `load_gained`: how many times the load
    of `full`. `record` is given the simulations of the loads looked at. UserError when `gpus` is no multiple of the
    tensor-parallel size.
    """
    deployment = found.deployment()
    replicas = deployment.replicas(gpus)
    scenarios = [one.compiled() for one in scenarios_of(found.load, deployment, slos, known, turns, found.fleet)]
    seeds = [seed * 1000 + r for r in range(replications)]
    with Bench(scenarios, workers, tick, executing) as bench:
        rows = [_row(bench, i, replicas, seeds, known, record) for i in range(len(scenarios))]
    for row in rows:
        both = row["max_load"] and rows[0]["max_load"]
        row["load_gained"] = row["max_load"] / rows[0]["max_load"] if both else None
    frame = described(scenarios, known, replications, seed)
    answer = {
        "slo": {s.key: s.limit_s for s in slos},
        "workload": found.load.name,
        "gpus": gpus,
        "load_unit": _unit(found),
        **frame,
        "plans": with_assumptions(rows, scenarios, known, {}),
    }
    return answer | {"answer": max_load_answer(answer)}


def _row(
    bench: Bench,
    index: int,
    replicas: int,
    seeds: Sequence[int],
    known: Mapping[str, PolicyProfile],
    record: Callable[[Scenario, SimResult], None],
) -> dict[str, Any]:
    scenario = bench.scenarios[index]
    slos, never = scenario.slos, hopeless(scenario)

    def run(step: int, some: Sequence[int]) -> list[SimResult]:
        return bench.run(Variant(index, load=load_of(step)), replicas, some)

    few = seeds[:PILOT_SEEDS]
    fits = replicas * scenario.deployment.blocks() / max(1.0, resident_blocks(scenario))
    hardest = step_of(min(replicas / demand(scenario), LARGEST) if demand(scenario) else LARGEST)
    start = max(hardest, step_of(min(fits, LARGEST)))
    first = None
    if never is None:
        first = smallest(lambda k: mean_meets(run(k, few), slos), hardest, MOST_STEPS, start, stride=8)
    if first is None:
        shown, low, count, high = {start: run(start, few)}, None, None, None
    else:
        shown = neighbours(lambda k: run(k, seeds), first, hardest, MOST_STEPS, slos)
        low, count, high = settled(shown, slos)
    for step, results in shown.items():
        for result in results:
            record(bench.shelf.get(Variant(index, load=load_of(step))), result)
    at = start if first is None else count if count is not None else max(shown)
    beyond = shown.get(at - 1)
    carried = {
        "policy": scenario.policy,
        "feasible": count is not None,
        "infeasible_because": never if never or count is not None else out_of_reach(scenario),
        "max_load": _load(scenario, count),
        "max_load_low": _load(scenario, high),
        "max_load_high": _load(scenario, low),
        "loads": [{"load": _load(scenario, k)} | size_row(shown[k], slos) for k in sorted(shown, reverse=True)],
    }
    happened = averaged(shown[at])
    if beyond is not None:
        happened["binding_constraint"] = binds([r for r in beyond if not r.meets(slos)] or beyond)
    return carried | happened | quality(known[scenario.policy], scenario.deployment.geometry)


def _load(scenario: Scenario, step: int | None) -> float | None:
    """A step as agents, or sessions per second."""
    if step is None:
        return None
    load = scenario.workload.at_load(load_of(step))
    return load.agents if load.agents else load.sessions_per_s


def _unit(found: Given) -> str:
    return "agents" if found.load.agents else "sessions per second"


def max_load_answer(found: Mapping[str, Any]) -> str:
    """The answer in one sentence, a policy at a time."""
    parts = []
    for row in found["plans"]:
        if row["max_load"] is None:
            why = f" ({row['infeasible_because']})" if row["infeasible_because"] else ""
            parts.append(f"none of it with `{row['policy']}`{why}")
            continue
        low, high = (_shown(row[f"max_load_{end}"]) for end in ("low", "high"))
        gained = row["load_gained"]
        times = f", {gained:.2g} × as many" if gained is not None and row is not found["plans"][0] else ""
        parts.append(f"{_shown(row['max_load'])} with `{row['policy']}` (95 % interval {low}–{high}{times})")
    terms, fleet = words(parse_slo(found["slo"])), f"{found['gpus']} × {str(found['gpu']).upper()}"
    binding = dict.fromkeys(row["binding_constraint"].partition(":")[0] for row in found["plans"])
    return (
        f"{fleet} carry, in {found['load_unit']} of {found['workload']} at {terms}: {'; '.join(parts)}. "
        f"What binds beyond: {' → '.join(binding)}."
    )


def _shown(load: float | None) -> str:
    return "?" if load is None else f"{load:,.0f}" if load >= 100 or float(load).is_integer() else f"{load:.3g}"


def max_load_text(found: Mapping[str, Any]) -> str:
    """The sentence and the loads looked at."""
    from .texts import assumed_text
    from .words import level_words

    rows = [
        {"policy": row["policy"], "load": _shown(at["load"]), "verdict": at["verdict"]}
        | {key: level_words(at[f"{key}_s"]) for key in found["slo"]}
        for row in found["plans"]
        for at in row["loads"]
    ]
    columns = {"policy": "policy", "load": found["load_unit"], "verdict": "verdict"} | {
        key: f"{key} s" for key in found["slo"]
    }
    looked = f"Loads looked at ({found['statistic']}):\n{table(rows, columns)}"
    return f"{found['answer']}\n\n{looked}\n\n{assumed_text(found)}"
