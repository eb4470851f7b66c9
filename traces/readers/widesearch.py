"""WideSearch responses: `MODEL_INSTANCE_TRIAL_response.jsonl`; the scores stand beside it in `…_eval_result.json`.

A message of the assistant is often a step: its content an object with the text, the calls and their results. The
answer is a table, judged in part by a model: scores are no labels. Described by ByteDance-Seed/WideSearch,
src/agent/{run,schema,memory}.py and scripts/run_infer_and_eval_batching.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from ..items import each
from ..reading import Bad, Format, Item, Record, Reject, Source
from ..trajectory import Trajectory
from .chat import trajectory_of
from .counts import finite, inside

NAME = "widesearch"
_ENDING = "_response.jsonl"


def sniff(record: Any) -> bool:
    """Whether the record is a response to one instance."""
    return (
        isinstance(record, Mapping)
        and {"instance_id", "messages"} <= set(record)
        and ("trial_idx" in record or "response" in record)
        and "resolved" not in record
    )


def gather(records: Iterator[Record | Bad], source: Source) -> Iterator[Item]:
    """The responses, with the scores of the file beside."""
    return each(partial(_run, scores=_scores(source), name=source.name), records)


def _scores(source: Source) -> dict[str, float]:
    if not source.name.endswith(_ENDING):
        return {}
    stem = source.name.removesuffix(_ENDING) + "_eval_result"
    source.text(f"{stem}.csv")  # the same judgement cell by cell: it belongs to this response, and is no run
    found = source.records(f"{stem}.json")
    result = next((inside(each.value) for each in found if isinstance(each, Record)), {})
    return {name: value for name, each in result.items() if (value := finite(each)) is not None}


def _run(record: Any, scores: Mapping[str, float], name: str) -> Trajectory:
    if not isinstance(record, Mapping) or not isinstance(record.get("messages"), list):
        raise Reject("no messages")
    losses: set[str] = set()
    said = [part for message in record["messages"] for part in _said(message, losses)]
    if not any(inside(message).get("role") == "system" for message in said):
        losses.add("no_system_prompt")
    if "_multi_agent" in name:
        losses.add("missing_calls")  # what the sub-agents said stands in no file
    meta = {key: record[key] for key in ("instance_id", "trial_idx") if isinstance(record.get(key), (int, str))}
    return trajectory_of(NAME, NAME, said, losses=losses, meta=meta | ({"scores": dict(scores)} if scores else {}))


def _said(message: Any, losses: set[str]) -> Iterator[Any]:
    step = inside(message, "content")
    if inside(message).get("role") != "assistant" or "content" not in step:
        yield message
        return
    if step.get("error_marker") and not step.get("content"):
        losses.add("missing_calls")  # a call that failed and was made again
        return
    calls = step.get("tool_calls")
    yield {
        "role": "assistant",
        "content": step.get("content"),
        "reasoning_content": step.get("reasoning_content"),
        "tool_calls": list(map(_call, calls)) if isinstance(calls, list) else calls,
    }
    results = step.get("tool_call_results")
    for result in results if isinstance(results, list) else []:
        errors = (inside(result, marker).get("message") for marker in ("error_marker", "system_error_marker"))
        content = inside(result).get("content")
        content = next((error for error in errors if error), None) if content is None else content
        yield {"role": "tool", "tool_call_id": inside(result).get("tool_call_id"), "content": content}


def _call(call: Any) -> Any:
    if not isinstance(call, Mapping):
        return call
    return {
        "id": call.get("tool_call_id"),
        "function": {"name": call.get("tool_name"), "arguments": call.get("arguments")},
    }


FORMAT = Format(
    NAME,
    "WideSearch responses: one JSON a line, scores in the _eval_result.json beside it",
    "trajectories",
    sniff,
    gather=gather,
)
