"""The Vercel AI SDK's attributes of a span: `ai.prompt.messages` and `ai.response.…`, next to a few `gen_ai.…`.

Described in the SDK's telemetry documentation. A call is two spans, `ai.generateText` and inside it one
`ai.generateText.doGenerate` for each request; tools run in `ai.toolCall`. Messages, schemas and calls are JSON texts.
`ai.usage.inputTokens` (`promptTokens` before version 5) includes cached tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .messages import answered, given, parsed, required, schemas
from .parts import merged
from .spans import AGGREGATE, WHOLE, Call, ToolRun, Trace, family_of, result_text
from .spans_otlp import Span
from .usage import inside

OPERATION = "ai.operationId"


def speaks(span: Span) -> bool:
    """Whether a span is of this dialect."""
    return OPERATION in span.attributes or "ai.prompt.messages" in span.attributes


def add(span: Span, trace: Trace, default_family: str) -> None:
    """Put a span into its trace: a model call, a run of a tool, or nothing."""
    attributes = span.attributes
    operation = str(attributes.get(OPERATION) or span.name)
    if operation == "ai.toolCall":
        _add_tool(span, trace)
        return
    inner = operation.endswith((".doGenerate", ".doStream"))
    if not inner and "ai.prompt" not in attributes:
        return  # embeddings and the like
    said = given(attributes.get("ai.prompt.messages") if inner else attributes.get("ai.prompt"))
    said.tools += schemas(attributes.get("ai.prompt.tools"))
    if span.cut:
        said.losses.add("truncated_source")
    answer = _answer(attributes)
    if answer is None:
        trace.refuse(span.id, "the model's answer is not in the span (recordOutputs may be off)")
        return
    trace.calls.append(
        Call(
            id=span.id,
            said=required(said),
            answer=answer,
            model=_model(attributes),
            usage=inside(
                _first(attributes, "ai.usage.inputTokens", "ai.usage.promptTokens", "gen_ai.usage.input_tokens"),
                _first(attributes, "ai.usage.outputTokens", "ai.usage.completionTokens", "gen_ai.usage.output_tokens"),
                _first(attributes, "ai.usage.cachedInputTokens", "ai.usage.inputTokenDetails.cacheReadTokens"),
                attributes.get("ai.usage.inputTokenDetails.cacheWriteTokens"),
            ),
            started_s=span.started_s,
            ended_s=span.ended_s,
            family=family_of(attributes.get("ai.telemetry.functionId"), default=default_family),
            rank=WHOLE if inner else AGGREGATE,
        )
    )


def session_of(span: Span) -> Any:
    """The session's id, which applications put into the telemetry's metadata."""
    return _first(span.attributes, "ai.telemetry.metadata.sessionId", "ai.telemetry.metadata.threadId", "session.id")


def _answer(attributes: Mapping[str, Any]) -> dict[str, Any] | None:
    text = _first(attributes, "ai.response.text", "ai.result.text", "ai.response.object", "ai.result.object")
    answer: dict[str, Any] | None = None
    if isinstance(text, str) and text:
        answer = {"role": "assistant", "content": text}
    calls, _ = answered(_first(attributes, "ai.response.toolCalls", "ai.result.toolCalls"))
    if calls is not None and calls.get("tool_calls"):
        answer = calls if answer is None else merged(answer, calls)
    thoughts = attributes.get("ai.response.reasoning")
    if answer is not None and isinstance(thoughts, str) and thoughts:
        answer["reasoning_content"] = thoughts
    return answer


def _add_tool(span: Span, trace: Trace) -> None:
    attributes = span.attributes
    result = attributes.get("ai.toolCall.result")
    if not isinstance(result, str):
        return
    value = parsed(result)
    tagged = isinstance(value, Mapping) and "value" in value and "type" in value
    text, was_object = result_text(value if tagged else result)
    name, call_id = str(attributes.get("ai.toolCall.name") or ""), attributes.get("ai.toolCall.id")
    run = ToolRun(name, text, str(call_id) if call_id else None, span.started_s, span.ended_s, was_object)
    trace.tools.append(run)


def _model(attributes: Mapping[str, Any]) -> str | None:
    value = _first(attributes, "ai.response.model", "ai.model.id", "gen_ai.response.model", "gen_ai.request.model")
    return value if isinstance(value, str) else None


def _first(attributes: Mapping[str, Any], *keys: str) -> Any:
    return next((attributes[key] for key in keys if attributes.get(key) is not None), None)
