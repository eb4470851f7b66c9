"""One sample of an Inspect log as a run: its messages, what is told of its calls, and its target as label."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..reading import Reject
from ..trajectory import Label, Trajectory
from .chat import Told, tools_of, trajectory_of
from .counts import finite, inside
from .inspect_events import Attachments, answer_of, calls_of, input_of, spelled, told_of

NAME = "inspect-ai"
# By which of our scorers an answer can be judged again; model-graded ones cannot.
_SCORERS = {"includes": "contains", "match": "contains", "exact": "exact", "answer": "exact", "choice": "choice"}


def run_of(sample: Any, log: Mapping[str, Any]) -> Trajectory:
    """The run of a sample; `log` is the log or the header of the archive that it stands in."""
    if not isinstance(sample, Mapping):
        raise Reject("a sample that is no object")
    losses: set[str] = set()
    calls = calls_of(sample)
    messages = sample.get("messages")
    if not isinstance(messages, list) or not messages:
        messages = [*input_of(calls[-1], sample), answer_of(calls[-1])] if calls else []
    if not messages:
        raise Reject("a sample without messages" + (": it ended in an error" if sample.get("error") else ""))
    attachments = Attachments(sample, losses)
    raw_arguments = spelled(calls)
    said = [_message(attachments.put_back(m), raw_arguments, attachments, losses) for m in messages]
    if sample.get("error") or (log.get("status") in ("cancelled", "error") and not sample.get("scores")):
        losses.add("interrupted")
    if _has(sample, "compaction"):
        losses.add("already_compacted")
    told = _told(messages, calls, losses)
    if sample.get("error_retries"):
        losses.add("missing_calls")
    tools = next((call["tools"] for call in calls if call.get("tools")), None)
    task, model = inside(log, "eval").get("task"), inside(log, "eval").get("model")
    return trajectory_of(
        NAME,
        task.rpartition("/")[2].lower() if isinstance(task, str) and task else NAME,
        said,
        tools=tools_of(attachments.put_back(tools)),
        losses=losses,
        told=told,
        label=_label(sample, log),
        model=model if isinstance(model, str) else None,
        already_compacted="already_compacted" in losses,
        meta=_meta(sample),
    )


def _has(sample: Mapping[str, Any], event: str) -> bool:
    events = sample.get("events")
    return isinstance(events, list) and any(inside(e).get("event") == event for e in events)


def _message(raw: Any, spelled: Mapping[str, str], attachments: Attachments, losses: set[str]) -> Any:
    """A message in the chat form: thinking apart, and calls with the arguments as they were sent, where known."""
    if not isinstance(raw, Mapping):
        return raw
    content, error = raw.get("content"), inside(raw, "error").get("message")
    parts = content if isinstance(content, list) else []
    thoughts = [part for part in parts if inside(part).get("type") == "reasoning"]
    if any(part.get("redacted") for part in thoughts):
        losses.add("reasoning_encrypted")
    thinking = [part.get("summary") if part.get("redacted") else part.get("reasoning") for part in thoughts]
    if thoughts:
        content = [part for part in parts if inside(part).get("type") != "reasoning"]
    calls = raw.get("tool_calls") or []
    return {
        "role": raw.get("role"),
        "content": [part for part in parts if inside(part).get("type") != "reasoning"]
        if thoughts
        else (content or error),
        "reasoning_content": "\n".join(text for text in thinking if isinstance(text, str)) or None,
        "tool_calls": [_call(call, spelled, attachments) for call in calls] if isinstance(calls, list) else calls,
        "tool_call_id": raw.get("tool_call_id"),
        "name": raw.get("function"),
    }


def _call(call: Any, spelled: Mapping[str, str], attachments: Attachments) -> Any:
    if not isinstance(call, Mapping):
        return call
    id = call.get("id")
    known = spelled.get(id) if isinstance(id, str) else None
    arguments = call.get("arguments") if known is None else attachments.put_back(known)
    return {"id": id, "function": {"name": call.get("function"), "arguments": arguments}}


def _told(messages: list[Any], calls: list[Mapping[str, Any]], losses: set[str]) -> list[Told | None]:
    """What is told of each assistant message: by its id, or in order where there are as many calls as messages."""
    said = [inside(m) for m in messages if inside(m).get("role") == "assistant"]
    by_id = {answer_of(call).get("id"): call for call in calls if isinstance(answer_of(call).get("id"), str)}
    ids = [message.get("id") for message in said]
    found = [by_id.get(id) if isinstance(id, str) else None for id in ids]
    if not any(found) and len(calls) == len(said):
        found = list(calls)
    if len(calls) > len(said):
        losses.add("missing_calls")  # a grader's, a sub-agent's, or of messages that the agent dropped
    return [None if call is None else told_of(call) for call in found]


def _label(sample: Mapping[str, Any], log: Mapping[str, Any]) -> Label | None:
    """The target, if one of the scorers can be applied again."""
    target = sample.get("target")
    given = [target] if isinstance(target, str) else target if isinstance(target, list) else []
    wanted = [text.strip() for text in given if isinstance(text, str) and text.strip()]
    listed = inside(log, "eval").get("scorers")
    named = [inside(each).get("name") for each in listed] if isinstance(listed, list) else []
    names = [name for name in (*inside(sample, "scores"), *named) if isinstance(name, str)]
    scorer = next((_SCORERS[name] for name in names if name in _SCORERS), None)
    if scorer is None or not wanted:
        return None
    return Label(scorer, wanted[0] if len(wanted) == 1 else wanted)


def _meta(sample: Mapping[str, Any]) -> dict[str, Any]:
    meta = {f"sample_{key}": sample[key] for key in ("id", "epoch") if isinstance(sample.get(key), (int, str))}
    scores = {name: inside(score).get("value") for name, score in inside(sample, "scores").items()}
    plain = {name: value for name, value in scores.items() if isinstance(value, str) or finite(value) is not None}
    if plain:
        meta["scores"] = plain
    if isinstance(kind := inside(sample, "limit").get("type"), str):
        meta["limit"] = kind
    return meta
