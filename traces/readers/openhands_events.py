"""Events of OpenHands as chat messages: version 0 (`action`/`observation`) and the V1 SDK (`kind`).

Described in OpenHands 0.58 (openhands/events) and software-agent-sdk (openhands-sdk/openhands/sdk/event). Calls of one
model answer share its id and become one assistant message; where version 0 kept the answer itself, its own argument
strings are taken. A result is joined to its call by the call's id.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..trajectory import Usage
from .chat import listed
from .clock import when
from .content import text_of, thinking_of
from .openai_chat import usage_of
from .response_items import thought_of

_UNSEEN_ACTIONS = ("recall", "change_agent_state", "null", "condensation_request", "pause", "resume", "start_hook")
_UNSEEN_OBSERVATIONS = ("recall", "agent_state_changed", "null", "success")


@dataclass(frozen=True, slots=True)
class Said:
    """What one event says to or by the model. `answer`: the id of the model answer it is a piece of."""

    event: str
    message: Mapping[str, Any]
    answer: str | None = None


def is_event(value: Any) -> bool:
    """Whether a value is an event of either version."""
    if not isinstance(value, Mapping) or not isinstance(value.get("source"), str) or "id" not in value:
        return False
    return isinstance(value.get("kind"), str) or any(isinstance(value.get(k), str) for k in ("action", "observation"))


def said_by(event: Mapping[str, Any], losses: set[str]) -> Said | None:
    """What an event says; None for one that the model never sees."""
    found = _new(event, losses) if isinstance(event.get("kind"), str) else _old(event, losses)
    if found is None:
        return None
    message, answer = found
    return Said(str(event.get("id")), message | {"at": when(event.get("timestamp"))}, answer)


def _old(event: Mapping[str, Any], losses: set[str]) -> tuple[dict[str, Any], str | None] | None:
    args = event.get("args")
    args = args if isinstance(args, Mapping) else {}
    action, observation = event.get("action"), event.get("observation")
    called = event.get("tool_call_metadata")
    called = called if isinstance(called, Mapping) else {}
    if isinstance(observation, str):
        if observation in _UNSEEN_OBSERVATIONS:
            if observation == "recall":
                losses.add("prompt_not_exact")
            return None
        losses.add("prompt_not_exact")
        id = called.get("tool_call_id") or f"event_{event.get('cause')}"
        name = called.get("function_name") or observation
        return {"role": "tool", "content": event.get("content"), "tool_call_id": id, "name": name}, None
    if action == "system":
        return {"role": "system", "content": args.get("content")}, None
    if action in _UNSEEN_ACTIONS:
        return None
    if event.get("source") == "user":
        if args.get("image_urls"):
            losses.add("non_text_content")
        return {"role": "user", "content": args.get("content")}, None
    response = called.get("model_response")
    if isinstance(response, Mapping):
        answer = response.get("id")
        return _answered(response, called.get("tool_call_id")), answer if isinstance(answer, str) else None
    if action == "message":
        return {"role": "assistant", "content": args.get("content")}, None
    thought = args.get("thought")
    arguments = {key: value for key, value in args.items() if key != "thought"}
    call = {"id": f"event_{event.get('id')}", "function": {"name": action, "arguments": arguments}}
    return {"role": "assistant", "content": thought, "tool_calls": [call]}, None


def _answered(response: Mapping[str, Any], id: Any) -> dict[str, Any]:
    choices = listed(response.get("choices"))
    message = choices[0].get("message") if choices and isinstance(choices[0], Mapping) else None
    message = message if isinstance(message, Mapping) else {}
    own = [call for call in listed(message.get("tool_calls")) if isinstance(call, Mapping) and call.get("id") == id]
    return {
        "role": "assistant",
        "content": message.get("content"),
        "reasoning_content": message.get("reasoning_content"),
        "tool_calls": own,
        "usage": usage_of(response.get("usage")),
    }


def _new(event: Mapping[str, Any], losses: set[str]) -> tuple[dict[str, Any], str | None] | None:
    kind, answer = event["kind"], event.get("llm_response_id")
    result = {"role": "tool", "tool_call_id": event.get("tool_call_id"), "name": event.get("tool_name")}
    extra = listed(event.get("extended_content"))
    if kind == "SystemPromptEvent":
        parts = [event.get("system_prompt"), event.get("dynamic_context")]
        return {"role": "system", "content": [part for part in parts if part]}, None
    if kind == "MessageEvent" and isinstance(event.get("llm_message"), Mapping):
        said = event["llm_message"]
        content = [*_parts(said.get("content")), *extra]
        return {**_thought(said, losses), "role": said.get("role"), "content": content}, str(answer) if answer else None
    if kind == "ActionEvent":
        call = event.get("tool_call")
        message = {"role": "assistant", "content": event.get("thought"), "tool_calls": [_call(call, event)]}
        return message | _thought(event, losses), str(answer) if answer else None
    if kind == "ObservationEvent":
        losses.add("prompt_not_exact")
        return result | {"content": [*_parts(_seen(event.get("observation"))), *extra]}, None
    if kind == "UserRejectObservation":
        return result | {"content": f"Action rejected: {event.get('rejection_reason')}"}, None
    if kind == "AgentErrorEvent":
        return result | {"content": event.get("error")}, None
    if kind == "CondensationSummaryEvent":
        return {"role": "user", "content": event.get("summary")}, None
    return None


def _parts(content: Any) -> list[Any]:
    return content if isinstance(content, list) else [] if content is None else [content]


def _call(call: Any, event: Mapping[str, Any]) -> dict[str, Any]:
    call = call if isinstance(call, Mapping) else {}
    inner = call.get("function")
    inner = inner if isinstance(inner, Mapping) else call
    name = inner.get("name") or event.get("tool_name")
    return {"id": call.get("id") or event.get("tool_call_id"), "function": {**inner, "name": name}}


def _thought(said: Mapping[str, Any], losses: set[str]) -> dict[str, Any]:
    thought = said.get("reasoning_content") or thinking_of(said.get("thinking_blocks"), losses)
    item = said.get("responses_reasoning_item")
    if not thought and isinstance(item, Mapping):
        thought = thought_of(item, losses)
    return {"reasoning_content": thought}


def _seen(observation: Any) -> Any:
    """What a result shows: `content` (parts or text), or `output` in the first releases."""
    if not isinstance(observation, Mapping):
        return observation
    return observation["content"] if observation.get("content") is not None else observation.get("output")


def schemas(event: Mapping[str, Any], losses: set[str]) -> list[dict[str, Any]]:
    """Tool schemas of an event that shows the system prompt. Later releases name classes in place of parameters, but
    for MCP tools.
    """
    args = event.get("args") if event.get("action") == "system" else event
    made: list[dict[str, Any]] = []
    for tool in listed(args.get("tools")) if isinstance(args, Mapping) else []:
        if not isinstance(tool, Mapping):
            continue
        if isinstance(tool.get("function"), Mapping):
            made.append(dict(tool))
            continue
        mcp = tool.get("mcp_tool")
        named = mcp if isinstance(mcp, Mapping) else tool
        parameters = named.get("input_schema", named.get("inputSchema", tool.get("parameters")))
        if not isinstance(parameters, Mapping):
            parameters = {"type": "object"}
            losses.add("parameters_untold")
        function = {"name": named.get("name") or tool.get("title"), "description": tool.get("description")}
        made.append({"type": "function", "function": function | {"parameters": parameters}})
    return made


def branch(events: Sequence[Any], leaf: Any) -> tuple[list[Any], int]:
    """The events on the way to a leaf, by default the last one, and how many other branches there are.

    All of them where the events do not all name their parents (only V1 does, and only later releases).
    """
    parents = {
        event["id"]: event.get("parent_id") for event in events if is_event(event) and isinstance(event["id"], str)
    }
    linked = [parent for parent in parents.values() if isinstance(parent, str)]
    if len(linked) != len(events) - 1 or not all(parent in parents for parent in linked):
        return list(events), 0
    at = leaf if isinstance(leaf, str) and leaf in parents else events[-1]["id"]
    taken: set[Any] = set()
    while isinstance(at, str) and at not in taken:
        taken.add(at)
        at = parents[at]
    left = [event for event in events if event["id"] not in taken and event.get("parent_id") in taken]
    return [event for event in events if event["id"] in taken], len(left)


def chat_of(said: Sequence[Said], usage: Mapping[str, Usage], losses: set[str]) -> list[dict[str, Any]]:
    """The messages of events, one per model answer: calls of an answer that ran in turn are put together again.

    `usage`: by answer, where it is recorded apart from the events.
    """
    messages: list[dict[str, Any]] = []
    answers: dict[str, dict[str, Any]] = {}
    texts: dict[str, dict[str, None]] = {}  # of each answer: every piece may repeat its words
    for piece in said:
        if piece.answer is None or piece.message["role"] != "assistant":
            messages.append(dict(piece.message))
            continue
        text = text_of(piece.message.get("content"), losses)
        calls = piece.message.get("tool_calls", [])
        if piece.answer in answers:
            answers[piece.answer]["tool_calls"] += calls
        else:
            known = piece.message.get("usage") or usage.get(piece.answer)
            answers[piece.answer] = {**piece.message, "tool_calls": list(calls), "usage": known}
            messages.append(answers[piece.answer])
        texts.setdefault(piece.answer, {}).update({text: None} if text else {})
    for id, answer in answers.items():
        answer["content"] = "\n".join(texts[id])
    return messages


def is_condensation(event: Mapping[str, Any]) -> bool:
    """Whether an event forgets others."""
    if event.get("action") == "condensation":
        return isinstance(event.get("args"), Mapping)
    return event.get("kind") == "Condensation"


def condensed(view: Sequence[Said], event: Mapping[str, Any]) -> list[Said]:
    """What the model sees after a condensation: what is not forgotten, and the summary at its place."""
    args = event["args"] if event.get("action") == "condensation" else event
    forgotten = {str(id) for id in listed(args.get("forgotten_event_ids"))}
    first, last = args.get("forgotten_events_start_id"), args.get("forgotten_events_end_id")
    kept = [s for s in view if s.event not in forgotten and not _between(s.event, first, last)]
    summary, offset = args.get("summary"), args.get("summary_offset")
    if isinstance(summary, str) and summary:
        place = offset if type(offset) is int and 0 <= offset <= len(kept) else 1
        kept.insert(place, Said(f"summary_{event.get('id')}", {"role": "user", "content": summary}))
    return kept


def _between(event: str, first: Any, last: Any) -> bool:
    return (
        type(first) is int and type(last) is int and event.isdigit() and len(event) < 20 and first <= int(event) <= last
    )
