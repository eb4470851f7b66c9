"""Trajectories as ATIF 1.7 documents (RFC 0001 of harbor-framework/harbor): one JSON object a run.

What the format has no field for stands under `extra.kvmill`, where its rules allow it: other programs pass over it,
and `readers/atif.py` gives back the trajectory that was written. The models of nvidia-nat-atif 1.9.0, which derive from
Harbor's, accept what is written here.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from typing import Any

from .. import record
from ..readers.atif_extra import KEY, TIMES
from ..readers.atif_metrics import usage_of
from ..readers.clock import when
from ..trajectory import Message, RecordedIds, ToolCall, Trajectory, Turn, Usage

VERSION = "ATIF-v1.7"
LOSES = ("prompt_ids",)
# A prompt is written whole at every call. Beyond so many ids in one document they are left out.
_MOST_PROMPT_IDS = 4_000_000


def document(trajectory: Trajectory) -> dict[str, Any]:
    """The trajectory as an ATIF document."""
    steps = [*_steps(trajectory.prefix), *_turn_steps(trajectory)]
    rest = replace(trajectory, prefix=(), turns=(), tools=())
    agent: dict[str, Any] = {"name": trajectory.family or trajectory.source, "version": "unknown"}
    if trajectory.model is not None:
        agent["model_name"] = trajectory.model
    if trajectory.tools:
        agent["tool_definitions"] = list(trajectory.tools)
    noted = {"prefix_messages": len(trajectory.prefix), "trajectory": json.loads(record.dump(rest))}
    return {
        "schema_version": VERSION,
        "session_id": trajectory.id,
        "trajectory_id": trajectory.id,
        "agent": agent,
        "steps": [{"step_id": n, **step} for n, step in enumerate(steps, 1)],
        "final_metrics": _totals(trajectory.turns, len(steps)),
        "extra": {KEY: noted},
    }


def _steps(messages: Sequence[Message]) -> Iterator[dict[str, Any]]:
    """Steps of messages outside of turns."""
    for message in messages:
        if message.role == "assistant":
            yield _agent(message)
        elif message.role == "tool":
            results = {"results": [_result(message, ())]}
            yield {"source": "system", "message": "", "observation": results, **_extra(role="tool")}
        else:
            source = "user" if message.role == "user" else "system"
            role = None if message.role == source else message.role
            yield {"source": source, "message": message.content, **_extra(role=role, name=message.name)}


def _turn_steps(trajectory: Trajectory) -> Iterator[dict[str, Any]]:
    begin = when(trajectory.meta.get("started_at"))
    prompts = _prompts(trajectory.turns)
    for turn, prompt in zip(trajectory.turns, prompts, strict=True):
        yield from _steps(turn.user)
        step = _agent(turn.assistant)
        if begin is not None and turn.started_s is not None:
            step = {"timestamp": datetime.fromtimestamp(begin + turn.started_s, UTC).isoformat(), **step}
        if turn.tools:
            ids = [call.id for call in turn.assistant.tool_calls]
            step["observation"] = {"results": [_result(message, ids) for message in turn.tools]}
        if metrics := _metrics(turn.usage, turn.ids, prompt):
            step["metrics"] = metrics
        yield {**step, **_extra(**{name: getattr(turn, name) for name in TIMES})}


def _agent(message: Message) -> dict[str, Any]:
    step: dict[str, Any] = {"source": "agent", "message": message.content}
    if message.reasoning is not None:
        step["reasoning_content"] = message.reasoning
    if message.tool_calls:
        step["tool_calls"] = list(map(_call, message.tool_calls))
    return step


def _call(call: ToolCall) -> dict[str, Any]:
    """A call; ATIF keeps arguments as objects, so the recorded spelling is noted where it would be another."""
    arguments = dict(call.parsed or {})
    same = json.dumps(arguments, ensure_ascii=False) == call.arguments
    noted = None if same else call.arguments
    return {"tool_call_id": call.id, "function_name": call.name, "arguments": arguments, **_extra(arguments=noted)}


def _result(message: Message, ids: Sequence[str]) -> dict[str, Any]:
    """A result; its id may only be one of the step's calls."""
    known = message.tool_call_id in ids
    source = {"source_call_id": message.tool_call_id} if known else {}
    noted = None if known else message.tool_call_id
    return {**source, "content": message.content, **_extra(tool_call_id=noted, name=message.name)}


def _extra(**noted: Any) -> dict[str, Any]:
    kept = {name: value for name, value in noted.items() if value is not None}
    return {"extra": {KEY: kept}} if kept else {}


def _metrics(usage: Usage | None, ids: RecordedIds | None, prompt: Sequence[int] | None) -> dict[str, Any]:
    metrics: dict[str, Any] = {}
    if usage is not None:
        metrics = _counts(usage)
        if usage_of(metrics) != usage:
            metrics["extra"] = {**metrics.get("extra", {}), KEY: {"usage": asdict(usage)}}
    if prompt is not None:
        metrics["prompt_token_ids"] = list(prompt)
    if ids is not None and ids.output:
        metrics["completion_token_ids"] = list(ids.output)
    return metrics


def _counts(usage: Usage) -> dict[str, Any]:
    metrics: dict[str, Any] = {}
    fresh, read, write = usage.fresh_input_tokens, usage.cache_read_tokens, usage.cache_write_tokens
    if fresh is not None:
        metrics["prompt_tokens"] = fresh + (read or 0) + (write or 0)
    if usage.output_tokens is not None:
        metrics["completion_tokens"] = usage.output_tokens
    if read is not None:
        metrics["cached_tokens"] = read
    if write is not None:
        metrics["extra"] = {"cache_creation_input_tokens": write}
    return metrics


def _prompts(turns: Sequence[Turn]) -> Iterator[Sequence[int] | None]:
    """The whole prompt of every call, as long as the ids of all calls before it are known."""
    context: list[int] | None = []
    written = 0
    for turn in turns:
        if turn.ids is None and context == []:
            yield None
            continue
        if context is None or turn.ids is None or not turn.ids.output or not (context or turn.ids.prompt):
            context = None
        else:
            context += turn.ids.prompt
            written += len(context)
            if written > _MOST_PROMPT_IDS:
                context = None
        yield None if context is None else list(context)
        if context is not None and turn.ids is not None:
            context += turn.ids.output


def _totals(turns: Sequence[Turn], steps: int) -> Mapping[str, Any]:
    """Sums over all calls, where every call has them."""
    counts = [_counts(turn.usage or Usage()) for turn in turns]
    names = {"prompt_tokens": "total_prompt_tokens", "completion_tokens": "total_completion_tokens"}
    names["cached_tokens"] = "total_cached_tokens"
    sums = {
        total: sum(each[name] for each in counts)
        for name, total in names.items()
        if all(name in each for each in counts)
    }
    return {**sums, "total_steps": steps}
