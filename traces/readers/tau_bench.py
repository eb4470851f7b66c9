"""tau-bench results: one run per element, with reward and gold actions. The user, a model too, speaks between turns."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from ..reading import Format, Reject
from ..record import tool_call
from ..trajectory import Label, ToolCall, Trajectory
from .chat import is_messages, trajectory_of
from .counts import finite, inside

NAME = "tau-bench"
_DOMAIN = re.compile(r"#\s*(\w+)\s+agent\s+policy", re.IGNORECASE)


def sniff(record: Any) -> bool:
    """Whether the record is one run of a results file."""
    if not isinstance(record, Mapping) or not {"task_id", "reward"} <= set(record):
        return False
    return record.get("traj") == [] or is_messages(record.get("traj"))


def read(record: Any) -> Trajectory:
    """One run. The family is the domain that the policy in the system message names."""
    if not isinstance(record, Mapping) or not isinstance(record.get("traj"), list):
        raise Reject("no traj list")
    if not record["traj"]:
        failed = inside(record, "info").get("error")
        raise Reject("nothing was said" + (": the run ended in an error" if failed else ""))
    losses: set[str] = set()
    reward = finite(record.get("reward"))
    if reward is None:
        losses.add("no_reward")
    return trajectory_of(
        NAME,
        _family(record["traj"]),
        record["traj"],
        losses=losses,
        label=None if reward is None else Label("reward", reward, _gold(record)),
        meta={key: record[key] for key in ("task_id", "trial") if isinstance(record.get(key), (int, str))},
    )


def _family(traj: list[Any]) -> str:
    first = traj[0] if traj and isinstance(traj[0], Mapping) else {}
    named = _DOMAIN.search(str(first.get("content")))
    return named.group(1).lower() if named else NAME


def _gold(record: Mapping[str, Any]) -> tuple[ToolCall, ...]:
    actions = inside(record, "info", "task").get("actions")
    return tuple(
        tool_call(f"gold_{n}", action["name"], json.dumps(action.get("kwargs", {}), ensure_ascii=False))
        for n, action in enumerate(actions if isinstance(actions, list) else [])
        if isinstance(action, Mapping) and isinstance(action.get("name"), str)
    )


FORMAT = Format(
    NAME,
    "tau-bench results: a JSON list of runs with traj, reward and gold actions",
    "trajectories",
    sniff,
    read,
    verified=True,
)
