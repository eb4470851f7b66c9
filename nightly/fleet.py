"""The fleet planned anew: what `[plan]` says is made sure of before a night is spent, and planned after it."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, get_type_hints

from ..errors import UserError
from ..replay.executors.choice import Executing
from ..traces.store import Store
from .values import known, of_hint

NEEDED = ("workload", "model", "gpu", "slo")
_NOT_PLANNED = {"run", "store", "save", "tick", "flags", "method", "sweep", "max_load", "gpus"}
_LEAST = {"replications": 2, "max_gpus": 1, "turns": 1, "workers": 1}


def checked(raw: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    """The table `[plan]`, empty where it is left out. UserError on unknown keys and on values of another type."""
    if not raw:
        return {}
    if missing := [key for key in NEEDED if key not in raw]:
        raise UserError(f"{where}: {', '.join(missing)} missing; [plan] needs {', '.join(NEEDED)}")
    from ..simulator.answers import plan_named
    from ..simulator.deployment import Deployment
    from ..simulator.given import FILL, REPLICA, given
    from ..simulator.slo import parse_slo
    from ..simulator.sources import Fill

    hints: dict[str, Any] = {}
    for of in (Deployment, Fill, given, plan_named):
        hints |= get_type_hints(of)
    named = {name for function in (plan_named, given) for name in inspect.signature(function).parameters}
    known(raw, {*named, *FILL, *REPLICA} - _NOT_PLANNED, where)
    for key in raw:
        of_hint(raw, key, hints[key], where)
    for key, least in _LEAST.items():
        if raw.get(key, least) < least:
            raise UserError(f"{where}: {key} = {raw[key]}: give {least} or more")
    Executing(raw.get("executor", "local"))
    parse_slo(raw["slo"])
    return raw


def require_possible(store: Store, flags: Mapping[str, Any]) -> None:
    """UserError where the workload, model, GPU or policies are none, or do not go together."""
    from ..replay.policies.registry import parse_policies
    from ..simulator.answers import plan_named
    from ..simulator.given import given
    from ..simulator.slo import several

    own = inspect.signature(plan_named).parameters.keys() - {"workload", "model", "gpu", "seed"}
    given(**{key: value for key, value in flags.items() if key not in own}, store=store).deployment()
    parse_policies(several(flags.get("policies", ())))


def planned(
    store: Store, flags: Mapping[str, Any], replay: str, before: Mapping[str, int | None] | None
) -> dict[str, Any]:
    """The fleet that the replay run asks for, and what it was `before`: GPUs by policy."""
    from ..simulator.answers import plan_named

    named = {"policies": store.info(replay).config["policies"], **flags}
    found = plan_named(**named, run=replay, store=store)
    rows = []
    for row in found["plans"]:
        now, was = row["gpus"], (before or {}).get(row["policy"])
        change = None if now is None or was is None else now - was
        rows.append({"policy": row["policy"], "gpus": now, "gpus_before": was, "gpus_change": change})
    return {"run": found.get("run"), "answer": found["answer"], "rows": rows}
