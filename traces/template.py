"""What a chat template can do, found by trying it, and how messages are put so that it can do it.

Templates differ: many print no tool calls, some want argument objects and some raw strings, some ignore the tool or
the system role without an error. Nothing is assumed from a model's name.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from .trajectory import Message, ToolCall
from .values import parse_object

Wire = dict[str, Any]


class TextTokenizer(Protocol):
    """A model's tokenizer and chat template, as far as traces need them. Implemented in replay/tokenizer.py."""

    control_ids: frozenset[int]
    """Ids of the added tokens: role markers, end of message, tool and thinking tags."""
    renders_tools: bool
    """Whether the template mentions tools."""
    fingerprint: str
    """Hash of vocabulary and template."""

    def render(self, messages: list[Wire], tools: list[Wire] | None, add_generation_prompt: bool) -> str:
        """The chat template's text."""
        ...

    def encode(self, text: str, control: bool) -> list[int]:
        """Token ids; `control`: whether control tokens spelled in the text become control tokens."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids."""
        ...

    def token_text(self, token_id: int) -> str:
        """The text of one id."""
        ...


@dataclass(frozen=True, slots=True)
class Abilities:
    """`calls`: raw argument strings, argument objects, or only as text in the content; `schemas`: prints tools;
    `repeats`: takes two user messages in a row; `follows`: two messages of the assistant in a row; `ids`: prints the
    ids of calls, of which a model may know one form only.
    """

    system: bool
    tool_role: bool
    calls: Literal["raw", "object", "text"]
    schemas: bool
    repeats: bool
    follows: bool
    ids: bool


@functools.lru_cache(maxsize=8)
def abilities(tokenizer: TextTokenizer) -> Abilities:
    """Try the template once on small conversations with marked words."""
    ask = {"role": "user", "content": "kvq-ask"}
    system = _tried(tokenizer, [{"role": "system", "content": "kvq-system"}, ask])
    schema = {"type": "function", "function": {"name": "kvq-schema", "description": "", "parameters": {}}}
    printed = _tried(tokenizer, [ask], [schema]) if tokenizer.renders_tools else ""
    calls: Literal["raw", "object", "text"] = "text"
    raw = '{"kvq-key":  1}'
    if tokenizer.renders_tools:
        with_raw = _tried(tokenizer, [ask, _calling(raw), _answer()])
        with_object = _tried(tokenizer, [ask, _calling({"kvq-key": 1}), _answer()])
        # A string inside the template's own braces, or encoded once more, is not what the model wrote.
        if raw in with_raw and "{" + raw not in with_raw and "kvq-name" in with_raw:
            calls = "raw"
        elif "kvq-name" in with_object and "kvq-key" in with_object:
            calls = "object"
    said = {"role": "assistant", "content": "kvq-said"}
    answered = _tried(tokenizer, [ask, said if calls == "text" else _calling({"kvq-key": 1}), _answer()])
    again = _tried(tokenizer, [ask, said, ask, {"role": "user", "content": "kvq-again"}])
    more = _tried(tokenizer, [ask, said, {"role": "assistant", "content": "kvq-more"}])
    return Abilities(
        system="kvq-system" in system,
        tool_role="kvq-answer" in answered,
        calls=calls,
        schemas="kvq-schema" in printed,
        repeats="kvq-again" in again,
        follows="kvq-more" in more,
        ids="kvqcall01" in answered,
    )


def _tried(tokenizer: TextTokenizer, messages: list[Wire], tools: list[Wire] | None = None) -> str:
    try:
        return tokenizer.render(messages, tools, False)
    except Exception:  # a template refuses with whatever its author chose to raise; refusing is the answer here
        return ""


def _calling(arguments: Any) -> Wire:
    call = {"id": "kvqcall01", "type": "function", "function": {"name": "kvq-name", "arguments": arguments}}
    return {"role": "assistant", "content": "", "tool_calls": [call]}


def _answer() -> Wire:
    return {"role": "tool", "content": "kvq-answer", "name": "kvq-name", "tool_call_id": "kvqcall01"}


def call_text(call: ToolCall) -> str:
    """A call as text, for templates that print none: the raw arguments stay as they were recorded."""
    return f'<tool_call>{{"name":{json.dumps(call.name, ensure_ascii=False)},"arguments":{call.arguments}}}</tool_call>'


def schema_text(tools: Sequence[Any]) -> str:
    """Tool schemas as text for the system message, one JSON object a line."""
    lines = [json.dumps(tool, ensure_ascii=False, separators=(",", ":")) for tool in tools]
    return "\n".join(["You can call these tools:", "<tools>", *lines, "</tools>"])


def wire(message: Message, able: Abilities, losses: list[str]) -> Wire:
    """One message as the template takes it."""
    out: Wire = {"role": message.role, "content": message.content}
    if message.role == "developer":
        out["role"] = "system"
        losses.append("developer_as_system")
    if out["role"] == "system" and not able.system:
        out["role"] = "user"
        losses.append("system_as_user")
    if message.role == "tool":
        if able.tool_role:
            out |= {"tool_call_id": message.tool_call_id or "", "name": message.name or ""}
        else:
            out = {"role": "user", "content": f"<tool_response>{message.content}</tool_response>"}
            losses.append("tool_role_as_user")
    if message.reasoning:
        out["reasoning_content"] = message.reasoning
    if message.tool_calls and able.calls == "text":
        said = [message.content] if message.content else []
        out["content"] = "\n".join([*said, *map(call_text, message.tool_calls)])
        losses.append("template_without_tools")
    elif message.tool_calls:
        out["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": _arguments(call, able, losses)},
            }
            for call in message.tool_calls
        ]
    return out


def _arguments(call: ToolCall, able: Abilities, losses: list[str]) -> Any:
    if able.calls == "raw":
        return call.arguments
    parsed = parse_object(call.arguments)
    if parsed is None:
        losses.append("arguments_not_an_object")
        return {"arguments": call.arguments}
    return dict(parsed)


def join(wires: list[Wire], roles: Sequence[str] = ("system", "user")) -> list[Wire]:
    """Neighbouring messages of one of the roles become one: many templates take a role once in a row."""
    out: list[Wire] = []
    for message in wires:
        if out and message["role"] == out[-1]["role"] and message["role"] in roles:
            out[-1] = {**message, "content": f"{out[-1]['content']}\n\n{message['content']}"}
        else:
            out.append(message)
    return out
