"""ATIF, Harbor's Agent Trajectory Interchange Format, 1.0 to 1.7 and later 1.x (RFC 0001 of harbor-framework/harbor).

A step of the agent merges its call and what the tools answered. Steps copied from another run are context, not calls
of this one; sub-agents are runs of their own. `prompt_tokens` include cached ones. Documents that `writers/atif.py`
wrote carry under `extra.kvmill` what ATIF has no field for, and are read back as they were.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from ..reading import Format, Reject
from ..trajectory import Trajectory
from .atif_extra import TIMES, original, ours
from .atif_metrics import Recorded
from .atif_steps import Said
from .chat import Told, message_of, tools_of, trajectory_of, turns_of, with_told
from .clock import when
from .counts import count, finite, inside

NAME = "atif"


def sniff(record: Any) -> bool:
    """Whether the record is a trajectory that says it is ATIF."""
    if not isinstance(record, Mapping) or not isinstance(record.get("steps"), list):
        return False
    version = record.get("schema_version")
    return isinstance(version, str) and version.startswith("ATIF-v1")


def read(record: Any) -> Iterator[Trajectory]:
    """The run and its embedded sub-agents, each as a run; the first refusal comes last."""
    if not isinstance(record, Mapping):
        raise Reject("not an object")
    failed: Reject | None = None
    for document, parent in _documents(record, None):
        try:
            yield _run(document, parent)
        except Reject as error:
            failed = failed or error
    if failed is not None:
        raise failed


def _documents(document: Any, parent: Any) -> Iterator[tuple[Any, Any]]:
    yield document, parent
    if isinstance(document, Mapping) and isinstance(document.get("subagent_trajectories"), list):
        name = document.get("trajectory_id") or document.get("session_id")
        for child in document["subagent_trajectories"]:
            yield from _documents(child, name)


def _run(document: Any, parent: Any) -> Trajectory:
    if not isinstance(document, Mapping) or not isinstance(document.get("steps"), list):
        raise Reject("no list of steps")
    losses: set[str] = set()
    before = original(document)
    said = Said(document["steps"], losses, exact=before is not None)
    agent = inside(document, "agent")
    tools = tools_of(agent.get("tool_definitions"))
    if before is not None:
        return _as_it_was(before, said, tools, document)
    if (said.delegated and not document.get("subagent_trajectories")) or _uncounted(document, said.told):
        losses.add("missing_calls")
    if document.get("continued_trajectory_ref") or "copied_context" in losses:
        losses.add("already_compacted")
    name, model = agent.get("name"), agent.get("model_name")
    run = trajectory_of(
        NAME,
        name.lower() if isinstance(name, str) and name else NAME,
        said.raw,
        tools=tools,
        losses=losses,
        told=said.told,
        shown=said.shown,
        model=model if isinstance(model, str) else None,
        already_compacted="already_compacted" in losses,
        meta=_meta(document, parent),
    )
    return _with_ids(run, said.metrics)


def _with_ids(run: Trajectory, metrics: list[Mapping[str, Any]]) -> Trajectory:
    """The run with the recorded token ids of its turns; the calls before its first turn are context."""
    recorded = Recorded()
    ids = [recorded.take(each) for each in metrics[len(metrics) - len(run.turns) :]]
    turns = tuple(replace(turn, ids=known) for turn, known in zip(run.turns, ids, strict=True))
    lost = {"ids_not_append_only"} if recorded.broken else set()
    return replace(run, turns=turns, losses=tuple(sorted({*run.losses, *lost})))


def _as_it_was(
    before: Trajectory, said: Said, tools: tuple[Mapping[str, Any], ...], document: Mapping[str, Any]
) -> Trajectory:
    """The trajectory that was written: its prefix ends where it did, and its times are the ones it had."""
    messages = [message_of(item, place, said.losses) for place, item in enumerate(said.raw)]
    split = count(ours(document).get("prefix_messages")) or 0
    if not messages[:split]:
        raise Reject("extra.kvmill.prefix_messages says that there is no prefix")
    turns = turns_of(messages[split:], said.losses)
    turns = with_told(turns, said.told[len(said.told) - len(turns) :])
    steps = [step for step in document["steps"] if step.get("source") == "agent"]
    timed = [
        replace(turn, **{name: finite(ours(step).get(name)) for name in TIMES})
        for turn, step in zip(turns, steps[len(steps) - len(turns) :], strict=True)
    ]
    run = replace(before, prefix=tuple(messages[:split]), turns=tuple(timed), tools=tools)
    return _with_ids(run, said.metrics)


def _uncounted(document: Mapping[str, Any], told: list[Told]) -> bool:
    """Whether the run's totals count calls that no step shows."""
    total = count(inside(document, "final_metrics").get("total_prompt_tokens"))
    usages = [call.usage for call in told if call.usage is not None]
    shown = sum((u.fresh_input_tokens or 0) + (u.cache_read_tokens or 0) + (u.cache_write_tokens or 0) for u in usages)
    return total is not None and bool(usages) and total > shown


def _meta(document: Mapping[str, Any], parent: Any) -> dict[str, Any]:
    names = ("session_id", "trajectory_id", "continued_trajectory_ref")
    meta = {name: document[name] for name in names if isinstance(document.get(name), str)}
    if isinstance(parent, str):
        meta["parent"] = parent
    times = (step.get("timestamp") for step in document["steps"] if step.get("source") == "agent")
    if (begin := next((time for time in times if when(time) is not None), None)) is not None:
        meta["started_at"] = begin
    return meta


FORMAT = Format(
    NAME,
    "ATIF 1.x, Harbor's trajectory format: steps of system, user and agent with their metrics",
    "trajectories",
    sniff,
    read,
    verified=True,
)
