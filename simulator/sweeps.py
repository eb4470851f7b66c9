"""`plan --sweep`: every combination of some settings planned, and which of them are worth their cost.

`--sweep keep=0.1,0.2,0.4` sets an option of the policies that have it; `--sweep gpu=h100,h200 --sweep tp=1,2` names
machines; `--sweep "te(delay=1|2,keep=0.1|0.2)"` is replay's form and stands for policies. Combinations share seeds.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..console import table
from ..errors import KvmillError, UserError, unknown
from ..replay.policies.options import split_spec
from ..replay.policies.registry import describe, parse_policy
from ..replay.sweep import parse_sweep
from .given import tp_of
from .pareto import pareto


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise UserError(f"--sweep: {text!r} is no number") from None


def _whole(text: str) -> int:
    if not text.isdecimal():
        raise UserError(f"--sweep: {text!r} is no whole number")
    return int(text)


MACHINES: dict[str, Callable[[str], Any]] = {
    "gpu": str,
    "model": str,
    "tp": tp_of,
    "dtype": str,
    "kv_dtype": str,
    "utilisation": _number,
    "max_model_len": _whole,
    "token_budget": _whole,
    "max_sequences": _whole,
    "retention": str,
    "preemption": str,
    "compaction": str,
    "router": str,
    "agents": _whole,
    "rate": _number,
    "scale_load": _number,
}
MOST = 64  # combinations of machines times policies


@dataclass(frozen=True, slots=True)
class Grid:
    """`policies` to plan on each of `machines`, settings by the names of `MACHINES`; `axes` what was swept."""

    policies: tuple[str, ...]
    machines: tuple[Mapping[str, Any], ...]
    axes: Mapping[str, tuple[str, ...]]


def parse_grid(sweeps: Sequence[str], policies: Sequence[str]) -> Grid:
    """The combinations of `--sweep` over the planned `policies`. UserError on an axis or value that is not known."""
    options = {name for policy in describe() for name in policy["options"]}
    axes: dict[str, tuple[str, ...]] = {}
    chosen = list(policies)
    for text in sweeps:
        if "(" in text:
            chosen += parse_sweep(text).policies()
            continue
        name, _, values = text.partition("=")
        axis = name.strip().replace("-", "_")
        found = tuple(value.strip() for value in values.split(",") if value.strip())
        if axis not in MACHINES and axis not in options:
            raise unknown("axis", name.strip(), [*MACHINES, *options], "--sweep")
        if not found:
            raise UserError(f"--sweep {text}: give values, as keep=0.1,0.2 or gpu=h100,h200")
        if axis in axes:
            raise UserError(f"--sweep {name.strip()} is given twice")
        axes[axis] = tuple(dict.fromkeys(found))
    for axis, values in axes.items():
        if axis not in MACHINES:
            chosen = _with_option(chosen, axis, values)
    chosen = list(dict.fromkeys(str(parse_policy(text)) for text in chosen))
    names = [axis for axis in axes if axis in MACHINES]
    machines = tuple(
        dict(zip(names, (MACHINES[n](v) for n, v in zip(names, values, strict=True)), strict=True))
        for values in itertools.product(*(axes[n] for n in names))
    )
    if len(machines) * len(chosen) > MOST:
        raise UserError(f"--sweep: {len(machines)} × {len(chosen)} plans; at most {MOST} in one sweep")
    return Grid(tuple(chosen), machines, axes)


def _with_option(policies: Sequence[str], option: str, values: Sequence[str]) -> list[str]:
    """Every policy that has the option once per value, the others as they are. UserError when none has it."""
    have = {entry["name"] for entry in describe() if option in entry["options"]}
    out: list[str] = []
    for text in policies:
        name, pairs = split_spec(text)
        if name not in have:
            out.append(text)
            continue
        for value in values:
            given = ",".join(f"{key}={chosen}" for key, chosen in (pairs | {option: value}).items())
            out.append(f"{name}({given})")
    if len(out) == len(policies) and not any(split_spec(text)[0] in have for text in policies):
        raise UserError(f"--sweep {option}: none of {', '.join(policies)} has this option")
    return out


KEPT = (
    "policy", "feasible", "infeasible_because", "gpus", "gpus_low", "gpus_high", "gpus_saved", "gpus_saved_low",
    "gpus_saved_high", "cost_per_month", "quality_model", "answer_accuracy", "difference", "difference_low",
    "difference_high", "binding_constraint",
)  # fmt: skip


def swept(
    grid: Grid, base: Mapping[str, Any], planned: Callable[[Mapping[str, Any]], dict[str, Any]]
) -> dict[str, Any]:
    """All combinations: the plan of the cheapest one, with `sweep` (a row per setting) and `pareto` beside it.

    `planned` makes the plan of one machine; `base` says gpu, model and tp where they are not swept. A machine that
    cannot be (too few GPUs for the weights, a dtype that it lacks) is a row that is not feasible and says why.
    UserError when none can be.
    """
    plans: list[dict[str, Any]] = []
    rows: list[dict[str, Any]] = []
    refused: list[KvmillError] = []
    for machine in grid.machines:
        try:
            found = planned(machine)
        except UserError as error:
            refused.append(error)
            empty = dict.fromkeys(KEPT) | {"feasible": False, "infeasible_because": str(error)}
            rows += [empty | {"policy": policy} | dict(base) | dict(machine) for policy in grid.policies]
            continue
        plans.append(found)
        place = dict(machine) | {"gpu": found["gpu"], "model": found["model"], "tp": found["tp"]}
        rows += [{key: row[key] for key in KEPT} | place for row in found["plans"]]
    if not plans:
        raise UserError(f"--sweep: no combination can be planned; the first one: {refused[0]}")
    best = min(plans, key=lambda found: min(map(_price, found["plans"])))
    shown = pareto(rows)
    unknown_loss = sum(row["feasible"] and row["accuracy_loss"] is None for row in rows)
    return best | {
        "axes": {axis: list(values) for axis, values in grid.axes.items()},
        "sweep": rows,
        "pareto": [
            {key: row[key] for key in ("policy", "gpu", "model", "tp", *_swept(grid))} | _ends(row) for row in shown
        ],
        "pareto_note": f"{unknown_loss} settings are on no front: their accuracy was not measured"
        if unknown_loss
        else None,
        "sweep_answer": _cheapest(rows),
    }


def _swept(grid: Grid) -> list[str]:
    return [axis for axis in grid.axes if axis in MACHINES and axis not in ("gpu", "model", "tp")]


def _ends(row: Mapping[str, Any]) -> dict[str, Any]:
    return {key: row[key] for key in ("gpus", "cost_per_month", "accuracy_loss")}


def _price(row: Mapping[str, Any]) -> float:
    if not row["feasible"]:
        return float("inf")
    return row["gpus"] if row["cost_per_month"] is None else row["cost_per_month"]


def _cheapest(rows: Sequence[Mapping[str, Any]]) -> str:
    best = min(rows, key=_price)
    if not best["feasible"]:
        return f"None of the {len(rows)} settings keeps the promises."
    month = "" if best["cost_per_month"] is None else f", {best['cost_per_month']:,.0f} USD a month"
    return (
        f"Cheapest of {len(rows)} settings: `{best['policy']}` on {best['gpus']} × {str(best['gpu']).upper()} "
        f"(TP {best['tp']}{month}); quality is beside it where it was measured."
    )


def sweep_text(found: Mapping[str, Any]) -> str:
    """All settings, the cheapest, the front, and the plan of the cheapest machine."""
    from .texts import plan_text

    axes = [axis for axis in found["axes"] if axis in MACHINES and axis not in ("gpu", "model", "tp")]
    rows = [row | {"on": {True: "yes", False: None, None: "unknown"}[row["on_front"]]} for row in found["sweep"]]
    columns = {"policy": "policy", "gpu": "GPU", "tp": "TP"} | {axis: axis for axis in axes}
    columns = {"model": "model"} | columns if "model" in found["axes"] else columns
    columns |= {"gpus": "GPUs", "gpus_low": "low", "gpus_high": "high", "cost_per_month": "USD/month"}
    columns |= {"accuracy_loss": "accuracy lost", "on": "on the front", "infeasible_because": "why not"}
    note = f"\n{found['pareto_note']}." if found["pareto_note"] else ""
    body = f"{table(rows, columns)}\nThe front: settings that no other beats in cost and accuracy.{note}"
    return f"{found['sweep_answer']}\n\n{body}\n\n{plan_text(found)}"
