"""Anthropic's content blocks as chat messages: what `anthropic-messages` and Claude Code share.

Described in Anthropic's API reference (messages, tool use, extended thinking, streaming). Results of tools stand in a
user message, before what the user says; here each is a message of its own. Tools that the provider runs stand inside
the answer, which is cut at their results.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ..reading import Reject
from ..trajectory import Usage
from .chat import CONVERSE, listed
from .counts import count

_CALLS = ("tool_use", "server_tool_use", "mcp_tool_use")


def messages_of(raw: Sequence[Any], losses: set[str]) -> list[dict[str, Any]]:
    """Chat messages of Anthropic messages. Reject if one is no object or has another role."""
    out: list[dict[str, Any]] = []
    for place, message in enumerate(raw):
        if not isinstance(message, Mapping):
            raise Reject(f"message {place} is not an object")
        if message.get("tool_calls"):
            raise Reject(f"message {place} has tool_calls, which Anthropic's messages do not have")
        out += split(message.get("role"), message.get("content"), losses, place)
    return out


def split(role: Any, content: Any, losses: set[str], place: int = 0) -> list[dict[str, Any]]:
    """The chat messages of one message: results apart from words, an answer cut at the results inside it."""
    if role not in ("system", "user", "assistant"):
        raise Reject(f"message {place} has the unknown role {role!r}"[:100])
    if not isinstance(content, list):
        return [{"role": role, "content": content}]
    out: list[dict[str, Any]] = []
    for block in map(_of_bedrock, content):
        kind = block.get("type") if isinstance(block, Mapping) else None
        if isinstance(kind, str) and kind.endswith("tool_result"):
            out.append(_result(block, losses))
            continue
        if not out or out[-1]["role"] != role:
            out.append({"role": role, "content": [], "reasoning": [], "tool_calls": []})
        _add(out[-1], block, kind, losses)
    return [_joined(message) if message["role"] == "assistant" else message for message in out] or [
        {"role": role, "content": ""}
    ]


def _of_bedrock(block: Any) -> Any:
    """A block of Bedrock's Converse API, which has no type and one key, as Anthropic writes it; others as they are."""
    if not isinstance(block, Mapping) or "type" in block:
        return block
    called, answered, thought = (block.get(key) for key in CONVERSE)
    if isinstance(called, Mapping):
        return {"type": "tool_use", "id": called.get("toolUseId"), **{k: called.get(k) for k in ("name", "input")}}
    if isinstance(answered, Mapping):
        parts = [
            json.dumps(part["json"], ensure_ascii=False) if isinstance(part, Mapping) and "json" in part else part
            for part in listed(answered.get("content"))
        ]
        return {"type": "tool_result", "tool_use_id": answered.get("toolUseId"), "content": parts}
    if isinstance(thought, Mapping):
        text = thought.get("reasoningText")
        return {"type": "thinking", "thinking": text.get("text") if isinstance(text, Mapping) else None}
    return block


def _add(message: dict[str, Any], block: Any, kind: Any, losses: set[str]) -> None:
    if kind in ("thinking", "redacted_thinking"):
        if isinstance(block.get("thinking"), str):
            message["reasoning"].append(block["thinking"])
        else:
            losses.add("reasoning_encrypted")
    elif kind in _CALLS:
        call = {"name": block.get("name"), "arguments": block.get("input")}
        message["tool_calls"].append({"id": block.get("id"), "function": call})
        if kind != "tool_use":
            losses.add("hosted_tools")
    else:
        if kind == "compaction":
            losses.add("already_compacted")
        message["content"] += _parts(block)


def _parts(block: Any) -> list[Any]:
    """A block as parts of a chat message; documents and search results are opened, their titles come first."""
    if not isinstance(block, Mapping) or isinstance(block.get("text"), str):
        return [block]
    inner = block.get("content")
    source = block.get("source")
    if isinstance(source, Mapping) and source.get("type") in ("text", "content"):
        inner = source.get("data") if source["type"] == "text" else source.get("content")
    if not isinstance(inner, (str, list)):
        return [block]
    told = [block[key] for key in ("title", "context") if isinstance(block.get(key), str)]
    return told + ([inner] if isinstance(inner, str) else [part for each in inner for part in _parts(each)])


def _result(block: Mapping[str, Any], losses: set[str]) -> dict[str, Any]:
    content = block.get("content")
    if block.get("type") in ("tool_result", "mcp_tool_result"):
        content = [part for each in listed(content) for part in _parts(each)] or content
    elif content is not None:  # of the provider's own tools: titles and addresses, the pages encrypted
        content = json.dumps(_open(content), ensure_ascii=False)
        losses.add("hosted_tools")
    return {"role": "tool", "tool_call_id": block.get("tool_use_id"), "content": content}


def _open(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _open(item) for key, item in value.items() if key != "encrypted_content"}
    return [_open(item) for item in value] if isinstance(value, list) else value


def _joined(message: Mapping[str, Any]) -> dict[str, Any]:
    thought = "\n".join(message["reasoning"])
    return {**message, "reasoning": None, "reasoning_content": thought}


def usage_of(raw: Any) -> Usage | None:
    """Usage: `input_tokens` are those neither read from nor written to the cache; thinking is part of the output."""
    if not isinstance(raw, Mapping):
        return None
    names = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens", "output_tokens")
    fresh, read, written, output = (count(raw.get(name)) for name in names)
    return None if fresh is None and output is None else Usage(fresh, read, written, output)


def tools_of(raw: Any) -> tuple[list[dict[str, Any]], list[str]]:
    """Function schemas as chat has them, and the types of the provider's own tools."""
    functions, hosted = [], []
    for tool in listed(raw):
        if not isinstance(tool, Mapping) or not isinstance(tool.get("name"), str):
            continue
        if "input_schema" in tool:
            function = {key: tool[key] for key in ("name", "description") if key in tool}
            functions.append({"type": "function", "function": function | {"parameters": tool["input_schema"]}})
        else:
            hosted.append(str(tool.get("type")))
    return functions, hosted


def from_events(events: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The message that was streamed in these events; a call's input is the text as the model wrote it.

    Reject if the stream holds no message. Without its last event the message has no `stop_reason`.
    """
    message: dict[str, Any] | None = None
    blocks: dict[str, Mapping[str, Any]] = {}
    deltas: dict[str, list[Mapping[str, Any]]] = {}
    for event in events:
        kind, delta = event.get("type"), event.get("delta")
        delta = delta if isinstance(delta, Mapping) else {}
        if kind == "message_start" and isinstance(event.get("message"), Mapping):
            message = dict(event["message"])
        elif kind == "content_block_start" and isinstance(event.get("content_block"), Mapping):
            blocks[str(event.get("index"))] = event["content_block"]
        elif kind == "content_block_delta":
            blocks.setdefault(str(event.get("index")), {"type": "text"})
            deltas.setdefault(str(event.get("index")), []).append(delta)
        elif kind == "message_delta" and message is not None:
            message["stop_reason"] = delta.get("stop_reason")
            usage, more = message.get("usage"), event.get("usage")
            told = {**usage} if isinstance(usage, Mapping) else {}
            message["usage"] = told | (dict(more) if isinstance(more, Mapping) else {})
        elif kind == "error":
            raise Reject(f"the stream ends in an error: {event.get('error')}"[:200])
    if message is None:
        raise Reject("the stream holds no message")
    return {**message, "content": [_whole(block, deltas.get(index, [])) for index, block in blocks.items()]}


def _whole(block: Mapping[str, Any], deltas: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """A block with what was streamed of it; a call's input as the text that the model wrote."""
    whole = dict(block)
    for name, key in (("text", "text"), ("thinking", "thinking"), ("partial_json", "input")):
        pieces = [delta[name] for delta in deltas if isinstance(delta.get(name), str)]
        if any(pieces):
            begun = whole.get(key)
            whole[key] = "".join([begun if isinstance(begun, str) else "", *pieces])
    return whole
