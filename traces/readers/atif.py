"""ATIF, Harbor's Agent Trajectory Interchange Format, 1.0 to 1.7 and later 1.x (RFC 0001 of harbor-framework/harbor).

A step of the agent merges its call and what the tools answered. Steps copied from another run are context, not calls
of this one; sub-agents are runs of their own. `prompt_tokens` include cached ones. Documents that `writers/atif.py`
wrote carry under `extra.kvmill` what ATIF has no field for, and are read back as they were.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from ..reading import Format, Reject
from ..trajectory import Trajectory
from .atif_extra import TIMES, original, ours
from .atif_metrics import Recorded, usage_of
from .chat import Told, message_of, text_of, tools_of, trajectory_of, turns_of, with_told
from .clock import when
from .counts import count, finite, inside

NAME = "atif"
_SUMMARY = re.compile(r"summar|compact|condens", re.IGNORECASE)
_ROLES = {"system": "system", "user": "user"}
_NOTED_ROLES = ("developer", "tool")


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


class _Said:
    """The messages of a document's steps, and what is told of each of the agent's calls."""

    def __init__(self, steps: list[Any], losses: set[str], exact: bool) -> None:
        self.raw: list[dict[str, Any]] = []
        self.told: list[Told] = []
        self.metrics: list[Mapping[str, Any]] = []
        self.shown = 0
        self.losses = losses
        self.exact = exact
        self.delegated = False
        self._own = False
        for n, step in enumerate(steps, 1):
            if not isinstance(step, Mapping):
                raise Reject(f"step {n} is not an object")
            self._take(n, step)

    def _take(self, n: int, step: Mapping[str, Any]) -> None:
        copied = step.get("is_copied_context") is True
        if copied and self._own:
            self.losses.add("copied_context_dropped")
            return
        if step.get("source") == "agent":
            self._agent(step, copied)
        elif role := _ROLES.get(str(step.get("source"))):
            noted = ours(step).get("role")
            role = noted if noted in _NOTED_ROLES else role
            if role != "tool":
                self.raw.append({"role": role, "content": step.get("message"), "name": ours(step).get("name")})
            self._results(step)
        else:
            raise Reject(f"step {n} has the unknown source {str(step.get('source'))[:50]!r}")
        if copied:
            self.shown = len(self.raw)
            self.losses.add("copied_context")

    def _agent(self, step: Mapping[str, Any], copied: bool) -> None:
        calls = step.get("tool_calls") or []
        if not isinstance(calls, list):
            raise Reject("tool_calls is not a list")
        self.raw.append(
            {
                "role": "assistant",
                "content": step.get("message"),
                "reasoning_content": step.get("reasoning_content"),
                "reasoning": "" if self.exact else None,  # an empty one: the content begins with no thinking of its own
                "tool_calls": list(map(_call, calls)),
            }
        )
        made = step.get("llm_call_count")
        if count(made) is not None and made != 1:
            self.losses.add("missing_calls" if made else "steps_without_call")
        self._own = self._own or not copied
        self.metrics.append(inside(step, "metrics"))
        self.told.append(Told(usage_of(self.metrics[-1]), when(step.get("timestamp"))))
        self._results(step)

    def _results(self, step: Mapping[str, Any]) -> None:
        results = inside(step, "observation").get("results")
        for result in results if isinstance(results, list) else []:
            if not isinstance(result, Mapping):
                raise Reject("a result is not an object")
            if result.get("subagent_trajectory_ref"):
                self.delegated = True
                told = text_of(step.get("message"), set()) + str(result["subagent_trajectory_ref"])
                if step.get("source") == "system" and _SUMMARY.search(told):
                    self.losses.add("already_compacted")
                if result.get("content") is None:
                    continue
            known = ours(result)
            self.raw.append(
                {
                    "role": "tool",
                    "content": result.get("content"),
                    "tool_call_id": result.get("source_call_id") or known.get("tool_call_id"),
                    "name": known.get("name"),
                }
            )


def _call(call: Any) -> Any:
    if not isinstance(call, Mapping):
        return call
    raw = ours(call).get("arguments")
    arguments = raw if isinstance(raw, str) else call.get("arguments")
    return {"id": call.get("tool_call_id"), "function": {"name": call.get("function_name"), "arguments": arguments}}


def _run(document: Any, parent: Any) -> Trajectory:
    if not isinstance(document, Mapping) or not isinstance(document.get("steps"), list):
        raise Reject("no list of steps")
    losses: set[str] = set()
    before = original(document)
    said = _Said(document["steps"], losses, exact=before is not None)
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
    before: Trajectory, said: _Said, tools: tuple[Mapping[str, Any], ...], document: Mapping[str, Any]
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
