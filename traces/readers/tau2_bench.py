"""tau2-bench results: one file, or `results.json` with its runs in `simulations/`; with rewards and gold actions.

The user is a model that calls tools of its own: what it called and got back never reached the agent and is left out.
Voice runs are recorded as ticks of speech and refused. Described in sierra-research/tau2-bench, src/tau2/data_model.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from ..items import items_of, passed_on, refused
from ..reading import Bad, Format, Item, Record, Reject, Source
from ..record import tool_call
from ..trajectory import Label, ToolCall, Trajectory
from .chat import trajectory_of
from .counts import finite, inside
from .tau2_messages import agents_side

NAME = "tau2-bench"
_BROKEN_OFF = ("infrastructure_error", "unexpected_error", "timeout", "user_error", "context_window_exceeded")
_UNJUDGED = ("infrastructure_error", "context_window_exceeded")  # upstream leaves them out of its metrics, too


def sniff(record: Any) -> bool:
    """Whether the record is a results file, or one simulation of one."""
    if not isinstance(record, Mapping):
        return False
    results = "tasks" in record and "info" in record and ("simulations" in record or "simulation_index" in record)
    return results or ("termination_reason" in record and "task_id" in record and _has_words(record))


def gather(records: Iterator[Record | Bad], source: Source) -> Iterator[Item]:
    """The runs of each results file; of one without runs, those in its folder `simulations`, one file at a time."""
    for found in records:
        if isinstance(found, Bad):
            yield passed_on(found)
        elif isinstance(found.value, Mapping) and "tasks" in found.value:
            yield from _results(found, source)
        else:
            yield from items_of(lambda value: _read(value, {}), found)


def _results(found: Record, source: Source) -> Iterator[Item]:
    results = found.value
    simulations = results.get("simulations") or []
    if not isinstance(simulations, list):
        yield refused(found, "simulations is not a list")
        return
    for simulation in simulations:
        yield from items_of(lambda value: _read(value, results), Record(found.place, simulation, found.repaired))
    names = [] if simulations else source.names("simulations/*.json")
    for name in names:
        for beside in source.records(name):
            if isinstance(beside, Bad):
                yield Item(found.place, None, f"{name}: {beside.reason}", beside.raw)
            else:
                here = Record(found.place, beside.value, beside.repaired)
                yield from items_of(lambda value: _read(value, results), here)
    if not simulations and not names:
        yield refused(found, "results without simulations, and none beside it in a folder `simulations`")


def _has_words(record: Mapping[str, Any]) -> bool:
    return isinstance(record.get("messages") or record.get("ticks"), list)


def _read(record: Any, results: Mapping[str, Any]) -> Trajectory:
    if not isinstance(record, Mapping):
        raise Reject("a simulation that is no object")
    if not record.get("messages") and record.get("ticks"):
        raise Reject("a voice run, recorded as ticks of speech; only runs with messages can be read")
    if not isinstance(record.get("messages"), list) or not record["messages"]:
        raise Reject("a simulation without messages")
    losses: set[str] = set()
    said, told = agents_side(record["messages"], losses)
    environment = inside(results, "info", "environment_info")
    policy = record.get("policy") or environment.get("policy")
    if isinstance(policy, str):
        # The agent's own instructions around the policy are not recorded.
        said.insert(0, {"role": "system", "content": policy})
        losses.add("partial_system_prompt")
    else:
        losses.add("no_system_prompt")
    reason = record.get("termination_reason")
    if reason in _BROKEN_OFF:
        losses.add("interrupted")
    domain, model = environment.get("domain_name"), inside(results, "info", "agent_info").get("llm")
    return trajectory_of(
        NAME,
        domain.lower() if isinstance(domain, str) and domain else NAME,
        said,
        tools=_tools(environment.get("tool_defs")),
        losses=losses,
        told=told,
        label=_label(record, results, losses),
        model=model if isinstance(model, str) else None,
        already_compacted="already_compacted" in losses,
        meta=_meta(record),
    )


def _meta(record: Mapping[str, Any]) -> dict[str, Any]:
    kept = {k: record[k] for k in ("task_id", "trial", "termination_reason") if isinstance(record.get(k), (int, str))}
    basis = inside(record, "reward_info").get("reward_basis")
    if isinstance(basis, list) and all(isinstance(name, str) for name in basis):
        kept["reward_basis"] = basis  # what the reward does not look at, a run may get wrong and still be rewarded
    return kept


def _tools(definitions: Any) -> tuple[Mapping[str, Any], ...]:
    """Tool schemas from `{name: {name, doc, params}}`."""
    if not isinstance(definitions, Mapping):
        return ()
    return tuple(
        {
            "type": "function",
            "function": {"name": name, "description": one.get("doc") or "", "parameters": one.get("params") or {}},
        }
        for name, one in definitions.items()
        if isinstance(one, Mapping)
    )


def _label(record: Mapping[str, Any], results: Mapping[str, Any], losses: set[str]) -> Label | None:
    reward = finite(inside(record, "reward_info").get("reward"))
    if reward is None or record.get("termination_reason") in _UNJUDGED:
        losses.add("no_reward")
        return None
    return Label("reward", reward, _gold(record.get("task_id"), results.get("tasks")))


def _gold(task_id: Any, tasks: Any) -> tuple[ToolCall, ...]:
    for task in tasks if isinstance(tasks, list) else []:
        if isinstance(task, Mapping) and task.get("id") == task_id:
            actions = inside(task, "evaluation_criteria").get("actions")
            return tuple(
                tool_call(f"gold_{n}", action["name"], json.dumps(action.get("arguments") or {}, ensure_ascii=False))
                for n, action in enumerate(actions if isinstance(actions, list) else [])
                if isinstance(action, Mapping)
                and isinstance(action.get("name"), str)
                and action.get("requestor") != "user"
            )
    return ()


FORMAT = Format(
    NAME,
    "tau2-bench results: one JSON with its simulations, or results.json beside a folder of them",
    "trajectories",
    sniff,
    gather=gather,
)
