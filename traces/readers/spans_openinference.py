"""OpenInference's attributes of a span: messages flattened into `llm.input_messages.N.message.…`.

Described in Arize-ai/openinference spec/semantic_conventions.md. Indices count as numbers (10 comes after 2); a message
may have `content`, `contents` or both; a message missing between others was dropped by an instrumentation or by the
limit of 128 attributes. `llm.token_count.prompt` includes what was read from the cache.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .flattened import branch, entries, tree
from .messages import Said, answered, given, parsed, required, schemas
from .parts import chat_messages
from .spans import AGGREGATE, WHOLE, Call, ToolRun, Trace, family_of
from .spans_otlp import Span
from .usage import inside

KIND = "openinference.span.kind"
INPUT, OUTPUT = "llm.input_messages", "llm.output_messages"


def speaks(span: Span) -> bool:
    """Whether a span is of this dialect."""
    return KIND in span.attributes or any(key.startswith((INPUT, OUTPUT)) for key in span.attributes)


def add(span: Span, trace: Trace, default_family: str) -> None:
    """Put a span into its trace: a model call, a run of a tool, or nothing."""
    attributes = span.attributes
    kind = str(attributes.get(KIND, "LLM")).upper()
    if kind == "TOOL":
        name = attributes.get("tool.name") or span.name
        result = attributes.get("output.value")
        call_id = attributes.get("tool_call.id") or attributes.get("tool.id")
        if isinstance(result, str):
            trace.tools.append(
                ToolRun(str(name), result, str(call_id) if call_id else None, span.started_s, span.ended_s)
            )
        return
    if kind not in ("LLM", "AGENT"):
        return
    said, (answer, lost) = given_in(attributes), answer_in(attributes)
    said.losses |= lost
    rank = WHOLE if kind == "LLM" else AGGREGATE
    if rank == AGGREGATE and (answer is None or not said.messages):
        return  # most agent spans say nothing of messages
    if span.cut:
        said.losses.add("truncated_source")
    if answer is None:
        lost = f", which has {len(attributes)} attributes, {span.dropped} dropped" if span.cut else ""
        trace.refuse(span.id, f"the model's answer is not in the span{lost}")
        return
    trace.calls.append(
        Call(
            id=span.id,
            said=required(said),
            answer=answer,
            model=_text(attributes.get("llm.model_name")),
            usage=inside(
                attributes.get("llm.token_count.prompt"),
                attributes.get("llm.token_count.completion"),
                attributes.get("llm.token_count.prompt_details.cache_read"),
                attributes.get("llm.token_count.prompt_details.cache_write"),
            ),
            started_s=span.started_s,
            ended_s=span.ended_s,
            family=family_of(attributes.get("agent.name"), span.resource.get("service.name"), default=default_family),
            rank=rank,
        )
    )


def session_of(span: Span) -> Any:
    """The session's id, if the span says one."""
    return span.attributes.get("session.id")


def given_in(attributes: Mapping[str, Any]) -> Said:
    """What the model was given: the flattened messages, else the recorded request."""
    listed = entries(tree(attributes, INPUT))
    said = Said() if listed else given(attributes.get("input.value"))
    for raw in listed:
        message = _message(raw)
        said.messages += [None] if message is None else chat_messages(message, said.losses)
    for tool in entries(tree(attributes, "llm.tools")):
        raw = tool.get("tool", tool) if isinstance(tool, Mapping) else tool
        said.tools += schemas(raw.get("json_schema", raw) if isinstance(raw, Mapping) else raw)
    if not said.tools:
        asked = parsed(attributes.get("llm.invocation_parameters"))
        said.tools += schemas(asked.get("tools")) if isinstance(asked, Mapping) else []
    return said


def answer_in(attributes: Mapping[str, Any]) -> tuple[dict[str, Any] | None, set[str]]:
    """What the model said, and what was lost of it: the flattened messages, else the recorded response."""
    listed = [_message(raw) for raw in entries(tree(attributes, OUTPUT))]
    found = [message for message in listed if message is not None]
    return answered(found or attributes.get("output.value"))


def _message(raw: Any) -> dict[str, Any] | None:
    """One message of the tree as OpenAI would write it; None if nothing of it but a role is there."""
    raw = branch(raw, "message")
    if raw is None:
        return None
    parts: list[Any] = []
    for part in entries(raw.get("contents")):
        inner = branch(part, "message_content")
        if inner is not None:
            parts.append(inner)
    content = raw.get("content")
    if parts:
        texts = [part["text"] for part in parts if isinstance(part.get("text"), str)]
        both = isinstance(content, str) and content and content not in ("".join(texts), "\n".join(texts))
        content = [content, *parts] if both else parts
    calls = [branch(call, "tool_call") for call in entries(raw.get("tool_calls"))]
    message = {
        "role": raw.get("role"),
        "content": content,
        "tool_calls": [call for call in calls if call is not None],
        "tool_call_id": raw.get("tool_call_id"),
        "name": raw.get("name"),
    }
    if raw.get("function_call_name"):
        arguments = raw.get("function_call_arguments_json")
        message["tool_calls"].append({"name": raw["function_call_name"], "arguments": arguments})
    return message if isinstance(message["role"], str) and _says(message) else None


def _says(message: Mapping[str, Any]) -> bool:
    return message["content"] is not None or bool(message["tool_calls"]) or message["role"] == "tool"


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None
