"""One recorded message, in any of the ways that SDKs and instrumentations write it, as chat messages.

Shared by the formats that record what an SDK was given: OpenAI (Chat and Responses), Anthropic, Gemini, LangChain, the
Vercel AI SDK and OpenTelemetry's parts. A chat message is a dict as in OpenAI's Chat API; what is no text stays a part
of its content, so that `chat` counts it as lost. Raw argument strings are kept wherever one is recorded.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

ROLES = {
    "human": "user",
    "HumanMessage": "user",
    "HumanMessageChunk": "user",
    "ai": "assistant",
    "AIMessage": "assistant",
    "AIMessageChunk": "assistant",
    "model": "assistant",
    "SystemMessage": "system",
    "SystemMessageChunk": "system",
    "ToolMessage": "tool",
    "ToolMessageChunk": "tool",
    "FunctionMessage": "tool",
    "function": "tool",
    **{role: role for role in ("system", "developer", "user", "assistant", "tool")},
}
CALLS = ("tool_call", "tool-call", "tool_use", "function_call", "functionCall")
RESULTS = ("tool_call_response", "tool-result", "tool_result", "function_response", "functionResponse")
ITEMS = ("function_call", "function_call_output", "custom_tool_call", "custom_tool_call_output", "reasoning")
_IDS = ("tool_call_id", "toolCallId", "tool_use_id", "call_id", "id")
_ITEM = "of_a_response"


def is_message(value: Any) -> bool:
    """Whether a value looks like one message or one item of a Responses history."""
    if not isinstance(value, Mapping):
        return False
    if isinstance(value.get("role"), str):
        return True
    kind = kind_of(value)
    if kind == "constructor":
        return isinstance(value.get("kwargs"), Mapping)
    schema_or_call = kind == "function" and isinstance(value.get("function"), Mapping)
    return not schema_or_call and (kind in ROLES or kind in ITEMS)


def kind_of(raw: Mapping[str, Any]) -> str:
    """The `type` of a message, an item or a part; empty if it says none."""
    kind = raw.get("type")
    return kind if isinstance(kind, str) else ""


def chat_messages(raw: Mapping[str, Any], losses: set[str]) -> list[dict[str, Any]]:
    """The chat messages of one recorded message: its words and calls in one, each tool result in one of its own."""
    if raw.get("type") == "constructor" and isinstance(raw.get("kwargs"), Mapping):  # LangChain's serialised form
        path = raw.get("id")
        name = path[-1] if isinstance(path, list) and path else None
        raw = {"type": name, **raw["kwargs"]} if isinstance(name, str) else raw["kwargs"]
    kind = kind_of(raw)
    role = raw.get("role") if isinstance(raw.get("role"), str) else kind
    if role == kind and kind not in ROLES:
        return _item(raw, losses)
    content = raw.get("content")
    if not isinstance(content, list) and isinstance(raw.get("parts"), list):
        content = raw["parts"]
    made = _spread(ROLES.get(str(role), role), content, losses)
    said = next((message for message in made if message["role"] != "tool" or len(made) == 1), None)
    if said is None:
        return made
    if said["role"] == "assistant":
        said["tool_calls"] = [*said.get("tool_calls", []), *_recorded_calls(raw)]
        for key in ("reasoning_content", "reasoning", "refusal"):
            if raw.get(key) and not said.get(key):
                said[key] = raw[key]
    elif said["role"] == "tool":
        said["tool_call_id"] = said.get("tool_call_id") or first(raw, _IDS[:-1])
    if isinstance(raw.get("name"), str):
        said["name"] = raw["name"]
    if kind == "message":
        said[_ITEM] = True
    return made


def joined(messages: Sequence[dict[str, Any] | None]) -> list[dict[str, Any] | None]:
    """The messages with neighbouring items of one response, which are one turn of the model, put together."""
    out: list[dict[str, Any] | None] = []
    for message in messages:
        last = out[-1] if out else None
        if (
            message
            and last
            and message.get(_ITEM)
            and last.get(_ITEM)
            and last["role"] == message["role"] == "assistant"
        ):
            out[-1] = merged(last, message)
        else:
            out.append(message)
    return [message and {key: value for key, value in message.items() if key != _ITEM} for message in out]


def merged(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Two assistant messages that are one turn of the model."""
    said = [*_as_parts(one.get("content")), *_as_parts(other.get("content"))]
    thoughts = [m["reasoning_content"] for m in (one, other) if isinstance(m.get("reasoning_content"), str)]
    return {
        **one,
        "content": said[0] if len(said) == 1 else said,
        "tool_calls": [*one.get("tool_calls", []), *other.get("tool_calls", [])],
        **({"reasoning_content": "\n".join(thoughts)} if thoughts else {}),
    }


def first(raw: Mapping[str, Any], keys: Sequence[str]) -> Any:
    """The value of the first of these keys that is there and not null."""
    return next((raw[key] for key in keys if raw.get(key) is not None), None)


def call_of(raw: Mapping[str, Any]) -> dict[str, Any]:
    """One call as in OpenAI's Chat API; arguments as they were recorded."""
    inner = first(raw, ("function", "tool_call", *CALLS[3:]))
    body = inner if isinstance(inner, Mapping) else raw
    if isinstance(body.get("function"), Mapping):
        body = body["function"]
    return {
        "id": first(raw, _IDS) or first(body, _IDS),
        "function": {
            "name": first(body, ("name", "toolName")),
            "arguments": first(body, ("arguments", "args", "input")),
        },
    }


def result_of(raw: Mapping[str, Any], losses: set[str]) -> dict[str, Any]:
    """One tool result as a message."""
    inner = first(raw, RESULTS[3:])
    body = inner if isinstance(inner, Mapping) else raw
    value = first(body, ("response", "result", "output", "content"))
    return {
        "role": "tool",
        "content": shown(value, losses),
        "tool_call_id": first(raw, _IDS) or first(body, _IDS),
        "name": first(body, ("name", "toolName")),
    }


def shown(value: Any, losses: set[str]) -> Any:
    """A recorded result as content: text and parts as they are, other values as JSON, which is noted."""
    if isinstance(value, Mapping) and set(value) == {"type", "value"} and value["type"] in ("text", "json"):
        value = value["value"]  # the Vercel AI SDK says which it is
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, list) and value and all(isinstance(p, Mapping) and "type" in p for p in value):
        return [{"type": "text", "text": p["text"]} if isinstance(p.get("text"), str) else p for p in value]
    losses.add("results_were_objects")
    return json.dumps(value, ensure_ascii=False)


def _recorded_calls(raw: Mapping[str, Any]) -> list[dict[str, Any]]:
    calls = first(raw, ("tool_calls", "toolCalls"))
    calls = calls if isinstance(calls, list) else []
    extra = raw.get("additional_kwargs")
    if (
        isinstance(extra, Mapping)
        and isinstance(extra.get("tool_calls"), list)
        and len(extra["tool_calls"]) >= len(calls)
    ):
        calls = extra["tool_calls"]  # LangChain keeps the model's own strings here, parsed ones beside them
    if not calls and isinstance(raw.get("function_call"), Mapping):
        calls = [raw["function_call"]]
    return [call_of(call) for call in calls if isinstance(call, Mapping)]


def _spread(role: Any, content: Any, losses: set[str]) -> list[dict[str, Any]]:
    """Messages of one speaker. Results come first: they answer the turn before, the words follow them."""
    said: list[Any] = []
    thoughts: list[str] = []
    calls: list[dict[str, Any]] = []
    results: list[dict[str, Any]] = []
    for part in content if isinstance(content, list) else [content]:
        kind = kind_of(part) if isinstance(part, Mapping) else ""
        if not isinstance(part, Mapping):
            said.append(part)
        elif kind in CALLS or any(isinstance(part.get(key), Mapping) for key in CALLS[3:]):
            calls.append(call_of(part))
        elif kind in RESULTS or any(isinstance(part.get(key), Mapping) for key in RESULTS[3:]):
            results.append(result_of(part, losses))
        elif kind == "redacted_thinking":
            losses.add("reasoning_encrypted")
        elif kind in ("reasoning", "thinking") or part.get("thought") is True:
            thoughts += _thought(part, losses)
        elif isinstance(part.get("text"), str):
            said.append({"type": "text", "text": part["text"]})
        elif kind == "text" and isinstance(part.get("content"), str):
            said.append({"type": "text", "text": part["content"]})
        else:
            said.append(part)
    text: Any = said
    if all(part is None for part in said):
        text = None
    elif len(said) == 1 and isinstance(said[0], str):
        text = said[0]
    message: dict[str, Any] = {"role": role, "content": text}
    if calls:
        message["tool_calls"] = calls
    if thoughts:
        message["reasoning_content"] = "\n".join(thoughts)
    speaks = text is not None or calls or thoughts or not results
    return [*results, *([message] if speaks else [])]


def _item(raw: Mapping[str, Any], losses: set[str]) -> list[dict[str, Any]]:
    """An item of OpenAI's Responses API that is no message; joined on call_id."""
    kind = kind_of(raw)
    if kind in ("function_call", "custom_tool_call"):
        return [
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [call_of({**raw, "id": raw.get("call_id")})],
                _ITEM: True,
            }
        ]
    if kind in ("function_call_output", "custom_tool_call_output"):
        return [result_of({**raw, "id": raw.get("call_id")}, losses)]
    if kind == "reasoning":
        thoughts = _thought(raw, losses)
        return [{"role": "assistant", "content": None, "reasoning_content": "\n".join(thoughts), _ITEM: True}]
    losses.add("hosted_tools" if kind.endswith("_call") else "unknown_items")
    return []


def _thought(part: Mapping[str, Any], losses: set[str]) -> list[str]:
    texts = []
    for value in (first(part, ("thinking", "content", "text", "reasoning")), part.get("summary")):
        for each in value if isinstance(value, list) else [value]:
            text = each.get("text") if isinstance(each, Mapping) else each
            if isinstance(text, str) and text:
                texts.append(text)
    if not texts and first(part, ("encrypted_content", "data", "signature")) is not None:
        losses.add("reasoning_encrypted")
    return texts


def _as_parts(content: Any) -> list[Any]:
    return content if isinstance(content, list) else [] if content is None else [content]
