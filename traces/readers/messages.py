"""Lists of messages, in any of the ways that SDKs and instrumentations record what a model was given and what it said.

A span holds a request's body, a response's body, a bare list, LangChain's batches, Gemini's contents, or one text in
which every line that begins with a role is a message. Shared by the formats of spans.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..reading import Reject
from ..values import flaw, whole
from .parts import call_of, chat_messages, is_message, joined, merged

_JSON = re.compile(r"\s*[{\[]")
_ROLE_LINE = re.compile(r"^(system|developer|user|assistant|tool): ", re.MULTILINE)


@dataclass(slots=True)
class Said:
    """What was read: chat messages in order (None is one that the source dropped), tool schemas, losses."""

    messages: list[dict[str, Any] | None] = field(default_factory=list)
    tools: list[dict[str, Any]] = field(default_factory=list)
    losses: set[str] = field(default_factory=set)
    as_text: bool = False


def parsed(value: Any) -> Any:
    """The JSON in a text that looks like some and can be kept, else the value itself."""
    if not isinstance(value, str) or not _JSON.match(value):
        return value
    try:
        read = json.loads(value)
    except (ValueError, RecursionError):
        return value
    return value if flaw(read) is not None else whole(read, value)


def given(value: Any) -> Said:
    """What the model was given. An empty list of messages if there is nothing."""
    said = Said()
    _read(parsed(value), said)
    if isinstance(value, str) and "content_not_text" in said.losses:  # the user said some JSON
        return Said([{"role": "user", "content": value}])
    said.messages = joined(said.messages)
    return said


def instructions(value: Any) -> Said:
    """A system prompt that is recorded beside the messages: a text, parts, or messages of its own."""
    said = Said()
    _read_system(value, said)
    return said


def answered(value: Any) -> tuple[dict[str, Any] | None, set[str]]:
    """What the model said, as one assistant message, or None; and what was lost of it."""
    said = Said()
    read = parsed(value)
    if not isinstance(read, str):
        _read(read, said)
    if isinstance(value, str) and (read is value or "content_not_text" in said.losses):  # a text, or some JSON as one
        return ({"role": "assistant", "content": value} if value else None), set()
    answer: dict[str, Any] | None = None
    for message in joined(said.messages):
        if message is None or message["role"] in ("system", "developer", "tool"):
            continue
        message = {**message, "role": "assistant"}  # noqa: PLW2901
        answer = message if answer is None else merged(answer, message)
    return answer, said.losses


def schemas(value: Any) -> list[dict[str, Any]]:
    """Tool schemas as in OpenAI's Chat API, from any of the usual shapes; what is none is left out."""
    value = parsed(value)
    made: list[dict[str, Any]] = []
    for each in value if isinstance(value, list) else [value]:
        tool = parsed(each)
        if not isinstance(tool, Mapping):
            continue
        declared = tool.get("function_declarations") or tool.get("functionDeclarations")
        if isinstance(declared, list):
            made += schemas(declared)
        elif isinstance(tool.get("function"), Mapping):
            made.append({"type": "function", "function": tool["function"]})
        elif isinstance(tool.get("name"), str):
            made.append({"type": "function", "function": _schema(tool)})
    return made


def _schema(tool: Mapping[str, Any]) -> dict[str, Any]:
    names = {"parameters": "parameters", "input_schema": "parameters", "inputSchema": "parameters"}
    kept = {new: tool[old] for old, new in names.items() if tool.get(old) is not None}
    return {"name": tool["name"], **({"description": tool["description"]} if tool.get("description") else {}), **kept}


def _read(value: Any, said: Said) -> None:
    if isinstance(value, str):
        _read_text(value, said)
    elif isinstance(value, list):
        _read_list(value, said)
    elif isinstance(value, Mapping):
        _read_body(value, said)
    elif value is not None:
        said.losses.add("content_not_text")
        said.messages.append({"role": "user", "content": json.dumps(value)})


def _read_text(text: str, said: Said) -> None:
    """One text: a user's, unless its lines begin with roles. What a message itself says may then be cut wrongly."""
    starts = list(_ROLE_LINE.finditer(text))
    if not text:
        return
    if not starts or starts[0].start() > 0:
        said.messages.append({"role": "user", "content": text})
        return
    said.as_text = True
    said.losses.add("roles_from_text")
    for n, start in enumerate(starts):
        end = starts[n + 1].start() - 1 if n + 1 < len(starts) else len(text)
        said.messages.append({"role": start.group(1), "content": text[start.end() : end]})


def _read_list(value: list[Any], said: Said) -> None:
    if value and isinstance(value[0], list):  # LangChain: one list for each prompt of a batch, nearly always one
        if len(value) > 1:
            said.losses.add("branches_dropped")
        value = value[0]
    calls = [each for each in value if isinstance(each, Mapping) and _is_bare_call(each)]
    if calls and len(calls) == len(value):
        said.messages.append({"role": "assistant", "content": None, "tool_calls": [call_of(call) for call in calls]})
        return
    for each in value:
        if is_message(each):
            _read_message(each, said)
        else:
            _read(parsed(each), said)


def _is_bare_call(raw: Mapping[str, Any]) -> bool:
    return not is_message(raw) and ("toolName" in raw or (raw.get("type") == "function" and "function" in raw))


def _read_message(raw: Mapping[str, Any], said: Said) -> None:
    content = raw.get("content")
    if raw.get("role") == "tool" and isinstance(content, Mapping) and isinstance(content.get("function"), Mapping):
        said.tools += schemas(content)  # LangChain's handler for Langfuse lists schemas among the messages
        return
    said.messages += chat_messages(raw, said.losses)


def _read_body(raw: Mapping[str, Any], said: Said) -> None:
    """A request or a response as an object. The first shape that fits is taken."""
    config = raw.get("config")
    config = config if isinstance(config, Mapping) else raw
    said.tools += schemas(raw.get("tools") or config.get("tools") or raw.get("functions"))
    if is_message(raw):
        _read_message(raw, said)
        return
    for key in ("instructions", "system", "system_instruction", "systemInstruction"):
        if config.get(key):
            _read_system(config[key], said)
    for key in ("messages", "contents", "input", "prompt", "prompts", "output", "message", "new_message", "kwargs"):
        if raw.get(key):
            _read(parsed(raw[key]), said)
            return
    if isinstance(raw.get("content"), Mapping):
        _read(raw["content"], said)
    elif isinstance(raw.get("parts"), list):
        said.messages += chat_messages({"role": "user", **raw}, said.losses)
    elif any(isinstance(raw.get(key), list) for key in ("choices", "generations", "candidates")):
        _read_choice(raw, said)
    elif any(isinstance(raw.get(key), str) for key in ("text", "content")):
        text = raw["text"] if isinstance(raw.get("text"), str) else raw["content"]
        answer = any(key in raw for key in ("toolCalls", "tool_calls", "finish_reason", "finishReason"))
        message = {**raw, "role": "assistant" if answer else "user", "content": text, "type": "message"}
        said.messages += chat_messages(message, said.losses)
    elif raw:
        said.losses.add("content_not_text")
        said.messages.append({"role": "user", "content": json.dumps(raw, ensure_ascii=False)})


def _read_choice(raw: Mapping[str, Any], said: Said) -> None:
    """The first of several answers."""
    listed = next(raw[key] for key in ("choices", "generations", "candidates") if isinstance(raw.get(key), list))
    if listed and isinstance(listed[0], list):
        listed = listed[0]
    if len(listed) > 1:
        said.losses.add("branches_dropped")
    if listed:
        one = listed[0]
        inner = one.get("message") if isinstance(one, Mapping) else None
        _read(inner if isinstance(inner, Mapping) else one, said)


def _read_system(value: Any, said: Said) -> None:
    value = parsed(value)
    part = Said()
    if not isinstance(value, str):
        _read(value, part)
    texts = [message["content"] for message in part.messages if message and message.get("content")]
    texts = [value] if isinstance(value, str) else texts
    if texts:
        said.messages.append({"role": "system", "content": texts[0] if len(texts) == 1 else _flat(texts)})


def _flat(texts: list[Any]) -> list[Any]:
    return [part for text in texts for part in (text if isinstance(text, list) else [text])]


def required(said: Said) -> Said:
    """The same. Reject if the model was given nothing that is recorded."""
    if not said.messages:
        raise Reject("the call's messages are not recorded (content capture is opt-in in most instrumentations)")
    return said
