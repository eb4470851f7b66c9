"""Items of OpenAI's Responses API as chat messages: what `openai-responses`, Codex and others share.

Described in OpenAI's API reference (responses/object) and, for Codex, codex-rs/protocol/src/models.rs. A model call's
items stand in a row (reasoning, message, calls), and each holds a piece of one assistant message. A call and its
output are joined by `call_id`; `id` names the item and is of no use. Tools that the provider ran itself leave calls
whose results the record may lack.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from ..reading import Reject
from ..trajectory import Usage
from .chat import listed
from .content import text_of
from .counts import count
from .parts import first

# Items that the model made, and what the caller answered.
_CALLS = {
    "function_call": "arguments",
    "custom_tool_call": "input",
    "mcp_call": "arguments",
    "local_shell_call": "action",
}
_OUTPUTS = (
    "function_call_output",
    "custom_tool_call_output",
    "local_shell_call_output",
    "computer_call_output",
    "shell_call_output",
    "apply_patch_call_output",
)
_HOSTED = {
    "web_search_call": "action",
    "file_search_call": "queries",
    "code_interpreter_call": "code",
    "image_generation_call": "revised_prompt",
    "computer_call": "action",
    "shell_call": "action",
    "apply_patch_call": "operation",
    "tool_search_call": "arguments",
}
_SILENT = ("ghost_snapshot", "mcp_list_tools", "other")  # nothing that a model said or was told


def is_item(value: Any) -> bool:
    """Whether a value is an item that no chat message looks like."""
    return isinstance(value, Mapping) and value.get("type") in (*_CALLS, *_OUTPUTS, *_HOSTED, "reasoning", "message")


class Conversation:
    """Chat messages grown item by item; a model call's items become one assistant message."""

    def __init__(self, losses: set[str]) -> None:
        self.messages: list[dict[str, Any]] = []
        self.losses = losses
        self.answer: dict[str, Any] | None = None  # the last one
        self._open = False

    def extend(self, items: Iterable[Any], **values: Any) -> None:
        """Take items in order; `values` (when, usage) are kept with the messages they begin or end."""
        for item in items:
            self.add(item, **values)

    def add(self, item: Any, **values: Any) -> None:
        """Take one item. Reject if it is no object; one of an unknown kind is noted in the losses."""
        if not isinstance(item, Mapping):
            raise Reject("an item is not an object")
        kind, role = str(item.get("type", "message")), item.get("role")
        if kind == "message" and isinstance(role, str) and role != "assistant":
            self._say({"role": role, "content": item.get("content"), **values})
        elif kind == "message" and (role == "assistant" or "content" in item):
            self._assistant(values)["content"].append(text_of(item.get("content"), self.losses))
        elif kind == "reasoning":
            self._assistant(values)["reasoning"].append(thought_of(item, self.losses))
        elif kind in _OUTPUTS:
            self._say({"role": "tool", "tool_call_id": item.get("call_id"), "content": _output(item), **values})
        elif kind in _CALLS:
            self._call(self._assistant(values), item, _CALLS[kind])
            given = first(item, ("output", "error")) if kind == "mcp_call" else None
            if given is not None:
                self._say({"role": "tool", "tool_call_id": _id(item), "content": given, **values})
        elif kind in _HOSTED:
            self._hosted(self._assistant(values), item, _HOSTED[kind], values)
        elif kind == "item_reference":
            self.losses.add("history_on_server")
        elif kind in ("compaction", "compaction_summary", "context_compaction"):
            self.losses.add("already_compacted")
        elif kind not in _SILENT:
            self.losses.add("unknown_items")

    def close(self) -> None:
        """The model call is over: what it makes from here on belongs to the next one. Thinking alone is no call: it
        belongs to what follows it.
        """
        self._open = (
            self._open and self.answer is not None and not (self.answer["content"] or self.answer["tool_calls"])
        )

    def forget(self) -> None:
        """What comes next begins an answer of its own, whatever was open."""
        self.answer, self._open = None, False

    def chat(self) -> list[dict[str, Any]]:
        """The messages, with the pieces of each answer put together."""
        return [_joined(message) if message["role"] == "assistant" else message for message in self.messages]

    def _say(self, message: dict[str, Any]) -> None:
        self.messages.append(message)
        self._open = False

    def _assistant(self, values: Mapping[str, Any]) -> dict[str, Any]:
        if not self._open or self.answer is None:
            self.answer = {"role": "assistant", "content": [], "reasoning": [], "tool_calls": []}
            self.messages.append(self.answer)
            self._open = True
        self.answer.update(values)
        return self.answer

    def _call(self, message: dict[str, Any], item: Mapping[str, Any], field: str) -> None:
        kind = str(item.get("type"))
        name = item.get("name") if isinstance(item.get("name"), str) else kind.removesuffix("_call")
        message["tool_calls"].append({"id": _id(item), "function": {"name": name, "arguments": item.get(field)}})

    def _hosted(self, message: dict[str, Any], item: Mapping[str, Any], field: str, values: Mapping[str, Any]) -> None:
        self._call(message, item, field)
        results = item.get("outputs") or item.get("results")
        if results:
            text = json.dumps(results, ensure_ascii=False)
            self._say({"role": "tool", "tool_call_id": _id(item), "content": text, **values})
        else:
            self.losses.add("hosted_tools")


def thought_of(item: Mapping[str, Any], losses: set[str]) -> str:
    """The thinking of a reasoning item: its own words (open models), or what the provider shows as a summary."""
    thought = _texts(item.get("content"))
    if item.get("encrypted_content") and not thought:
        losses.add("reasoning_encrypted")
    return "\n".join(thought or _texts(item.get("summary")))


def _joined(message: Mapping[str, Any]) -> dict[str, Any]:
    reasoning = "\n".join(filter(None, message["reasoning"]))
    return {**message, "content": "\n".join(message["content"]), "reasoning": None, "reasoning_content": reasoning}


def _id(item: Mapping[str, Any]) -> str | None:
    found = item.get("call_id") or item.get("id")
    return found if isinstance(found, str) else None


def _output(item: Mapping[str, Any]) -> Any:
    """What a tool answered: text, parts, or an object whose text is in `content` or `output`."""
    output = item.get("output")
    if isinstance(output, Mapping) and isinstance(output.get("content"), str):
        return output["content"]
    return output


def _texts(parts: Any) -> list[str]:
    return [p["text"] for p in listed(parts) if isinstance(p, Mapping) and isinstance(p.get("text"), str)]


def usage_of(raw: Any) -> Usage | None:
    """Usage in disjoint buckets: `input_tokens` hold those read from and written to the cache, `output_tokens` the
    thinking. Codex has the same counts without `input_tokens_details`.
    """
    if not isinstance(raw, Mapping):
        return None
    details = raw.get("input_tokens_details")
    inner = details if isinstance(details, Mapping) else {}
    given, output = count(raw.get("input_tokens")), count(raw.get("output_tokens"))
    cached = count(inner.get("cached_tokens", raw.get("cached_input_tokens")))
    written = count(inner.get("cache_write_tokens", raw.get("cache_write_input_tokens")))
    if given is None and output is None:
        return None
    fresh = None if given is None else max(0, given - (cached or 0) - (written or 0))
    return Usage(fresh, cached, written, output)


def tools_of(raw: Any) -> tuple[list[dict[str, Any]], list[str]]:
    """Function schemas, nested as chat has them (they are flat here), and the types of the provider's own tools."""
    functions, hosted = [], []
    for tool in listed(raw):
        if isinstance(tool, Mapping) and isinstance(tool.get("function"), Mapping):
            functions.append(dict(tool))
        elif isinstance(tool, Mapping) and isinstance(tool.get("name"), str):
            functions.append({"type": "function", "function": {k: v for k, v in tool.items() if k != "type"}})
        elif isinstance(tool, Mapping) and isinstance(tool.get("type"), str):
            hosted.append(tool["type"])
    return functions, hosted
