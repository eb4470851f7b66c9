"""Rows of software-engineering data sets: one run a row, its messages and tools as lists or as JSON strings.

The shape of nebius/SWE-rebench-openhands-trajectories (`trajectory`, `tools`, `resolved`), SWE-smith (`messages` as a
string) and nebius/SWE-agent-trajectories (role `ai`, `text`, `target`), as JSON lines or Parquet. Columns that a
message has no use for are null there. Described by the cards of those data sets.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .. import values
from ..reading import Format, Reject
from ..trajectory import Label, Trajectory
from .chat import tools_of, trajectory_of
from .counts import inside

NAME = "swe-rebench"
_SAID = ("trajectory", "messages")
_JUDGED = ("resolved", "target")
_OF_A_RUN = (*_JUDGED, "model_patch", "generated_patch", "exit_status")
_KEPT = ("instance_id", "trajectory_id", "traj_id", "repo", "exit_status")


def sniff(record: Any) -> bool:
    """Whether the record is a run with what became of it. SWE-agent's own files have a `history` instead."""
    if not isinstance(record, Mapping) or "history" in record or "info" in record:
        return False
    return (
        any(name in record for name in _SAID)
        and any(name in record for name in _OF_A_RUN)
        and ("instance_id" in record or "resolved" in record)
    )


def read(record: Any) -> Trajectory:
    """One run. The reward is whether its patch resolved the issue, where that was tested."""
    if not isinstance(record, Mapping):
        raise Reject("not an object")
    name = next((name for name in _SAID if record.get(name)), None)
    if name is None:
        raise Reject("no messages and no trajectory")
    said = record[name]
    if isinstance(said, str):
        try:
            said = values.load(said).value
        except ValueError as error:
            raise Reject(f"{name} is a string without a list: {error}") from None
    if not isinstance(said, list) or not said:
        raise Reject(f"{name} is not a list of messages")
    losses: set[str] = set()
    solved = next((record[name] for name in _JUDGED if isinstance(record.get(name), (bool, int, float))), None)
    if solved not in (0, 1):
        losses.add("no_reward")
        solved = None
    model = record.get("model") or record.get("model_name")
    return trajectory_of(
        NAME,
        NAME,
        list(map(_message, said)),
        tools=tools_of(_tools(record.get("tools"))),
        losses=losses,
        label=None if solved is None else Label("reward", float(solved)),
        model=model if isinstance(model, str) else None,
        meta={key: record[key] for key in _KEPT if isinstance(record.get(key), (int, str))},
    )


def _tools(listed: Any) -> Any:
    """Tool schemas without the nulls of a typed table, which gives every tool the parameters of all of them."""
    schemas = listed if isinstance(listed, list) else []
    filled = any(None in inside(one, "function", "parameters", "properties").values() for one in schemas)
    return _without_nulls(listed) if filled else listed


def _without_nulls(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, list) else value


def _message(raw: Any) -> Any:
    """A message in the chat form: the older rows name the model's side `ai` and keep words in `text`."""
    if not isinstance(raw, Mapping) or "text" not in raw:
        return raw
    role = "assistant" if raw.get("role") == "ai" else raw.get("role")
    return {"role": role, "content": raw["text"] if raw["text"] else raw.get("system_prompt")}


FORMAT = Format(
    NAME,
    "SWE-rebench style rows: a run's messages and tools as lists or JSON strings, with resolved",
    "trajectories",
    sniff,
    read,
)
