"""OpenTelemetry's GenAI attributes of a span, in the four generations that are about.

Described in open-telemetry/semantic-conventions docs/gen-ai and in OpenLLMetry. (1) `gen_ai.prompt.N.…` flattened, or
`gen_ai.prompt` as JSON; (2) an event a message, `gen_ai.user.message` … `gen_ai.choice`; (3) `gen_ai.input.messages`
with parts, as attributes or in one event; (4) the conventions' own repository, which adds `execute_tool` spans.
`gen_ai.usage.input_tokens` includes what was read from and written to the cache.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from .flattened import entries, tree
from .messages import Said, answered, given, instructions, parsed, required, schemas
from .parts import chat_messages, joined
from .spans import AGGREGATE, WHOLE, Call, ToolRun, Trace, family_of, result_text
from .spans_otlp import Span
from .usage import inside

DETAILS = "gen_ai.client.inference.operation.details"
MODEL_CALLS = ("chat", "text_completion", "generate_content", "completion", "responses", "messages")
_USAGE = {
    "given": ("gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens", "llm.usage.prompt_tokens"),
    "output": ("gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens", "llm.usage.completion_tokens"),
    "read": ("gen_ai.usage.cache_read.input_tokens", "gen_ai.usage.cache_read_input_tokens"),
    "written": ("gen_ai.usage.cache_creation.input_tokens", "gen_ai.usage.cache_creation_input_tokens"),
}


def speaks(span: Span) -> bool:
    """Whether a span is of this dialect."""
    marks = ("gen_ai.", "traceloop.", "llm.request.")
    return any(key.startswith(marks) for key in (*span.attributes, *(name for name, _ in span.events)))


def add(span: Span, trace: Trace, default_family: str) -> None:
    """Put a span into its trace: a model call, a run of a tool, or nothing."""
    attributes = {**span.attributes, **_details(span)}
    operation = attributes.get("gen_ai.operation.name") or attributes.get("llm.request.type")
    if operation == "execute_tool" or "gen_ai.tool.call.id" in attributes:
        _add_tool(span, trace)
        return
    aggregate = operation == "invoke_agent"
    said, (answer, lost) = _given(span), _answer(span)
    said.losses |= lost
    if not aggregate and operation not in MODEL_CALLS and (operation is not None or answer is None):
        return
    if aggregate and (answer is None or not said.messages):
        return
    if span.cut:
        said.losses.add("truncated_source")
    if not said.messages and answer is None:
        trace.refuse(span.id, "the call's messages are not recorded (their capture is opt-in)")
    elif answer is None:
        trace.refuse(span.id, "the model's answer is not in the span")
    elif not said.messages:
        trace.refuse(span.id, "what the model was given is not in the span")
    else:
        trace.calls.append(_call(span, said, answer, AGGREGATE if aggregate else WHOLE, default_family))


def _call(span: Span, said: Said, answer: dict[str, Any], rank: int, default_family: str) -> Call:
    attributes = {**span.attributes, **_details(span)}
    model = _first(attributes, "gen_ai.response.model", "gen_ai.request.model", "llm.response.model")
    names = (attributes.get("gen_ai.agent.name"), span.resource.get("service.name"))
    return Call(
        id=span.id,
        said=required(said),
        answer=answer,
        model=model if isinstance(model, str) else None,
        usage=inside(**{name: _first(attributes, *keys) for name, keys in _USAGE.items()}),
        started_s=span.started_s,
        ended_s=span.ended_s,
        family=family_of(*names, default=default_family),
        rank=rank,
    )


def session_of(span: Span) -> Any:
    """The session's id, if the span says one."""
    return _first(
        span.attributes, "gen_ai.conversation.id", "session.id", "traceloop.association.properties.session_id"
    )


def _given(span: Span) -> Said:
    told = {**span.attributes, **_details(span)}
    indexed = entries(tree(told, "gen_ai.prompt")) if "gen_ai.prompt" not in told else []
    said = Said()
    if "gen_ai.input.messages" in told:
        said = given(told["gen_ai.input.messages"])
        if told.get("gen_ai.system_instructions"):
            system = instructions(told["gen_ai.system_instructions"])
            said.messages[:0] = system.messages
            said.losses |= system.losses
    elif indexed:
        for raw in indexed:
            said.messages += chat_messages(_unflattened(raw), said.losses) if isinstance(raw, Mapping) else [None]
    elif "gen_ai.prompt" in told:
        said = given(told["gen_ai.prompt"])
    else:
        for name, body in _said_events(span):
            if name != "gen_ai.choice":
                said.messages += chat_messages(body, said.losses)
        said.messages = joined(said.messages)
    if not said.messages and "input" in told:
        said = given(told["input"])
    said.tools += schemas(told.get("gen_ai.tool.definitions")) or schemas(_functions(told))
    return said


def _answer(span: Span) -> tuple[dict[str, Any] | None, set[str]]:
    """What the model said, and what was lost of it. Several output messages are several answers to choose from."""
    told = {**span.attributes, **_details(span)}
    if "gen_ai.output.messages" in told:
        return _first_choice(parsed(told["gen_ai.output.messages"]))
    if "gen_ai.completion" in told:
        return answered(told["gen_ai.completion"])
    indexed = [_unflattened(raw) for raw in entries(tree(told, "gen_ai.completion")) if isinstance(raw, Mapping)]
    choices = [body for name, body in _said_events(span) if name == "gen_ai.choice"]
    return _first_choice(indexed or choices) if indexed or choices else answered(told.get("output"))


def _first_choice(listed: Any) -> tuple[dict[str, Any] | None, set[str]]:
    """The first of several answers. A list in which not only the model speaks is no choice but a talk."""
    several = isinstance(listed, list) and len(listed) > 1
    if not several or any(not isinstance(m, Mapping) or m.get("role") != "assistant" for m in listed):
        return answered(listed)
    answer, lost = answered(listed[:1])
    return answer, {*lost, "branches_dropped"}


def _details(span: Span) -> Mapping[str, Any]:
    """The attributes of the one event that may hold everything; old events hold the whole prompt or completion."""
    told: dict[str, Any] = {}
    for name, attributes in span.events:
        if name in (DETAILS, "gen_ai.content.prompt", "gen_ai.content.completion"):
            told |= attributes
    return told


def _said_events(span: Span) -> Iterator[tuple[str, dict[str, Any]]]:
    """Events of one message each; some SDKs keep them as a JSON list in an attribute."""
    listed = parsed(span.attributes.get("events"))
    dicts = [event for event in listed if isinstance(event, Mapping)] if isinstance(listed, list) else []
    events = [(event.get("event.name"), event) for event in dicts]
    for name, body in [*span.events, *events]:
        role = str(name).removeprefix("gen_ai.").removesuffix(".message")
        if name == "gen_ai.choice":
            inner = parsed(body.get("message", body.get("gen_ai.event.content")))
            inner = inner.get("message", inner) if isinstance(inner, Mapping) else inner
            message = inner if isinstance(inner, Mapping) else {**body, "content": inner or body.get("content")}
            yield name, {**message, "role": "assistant", **_calls(message)}
        elif role in ("system", "user", "assistant", "tool") and str(name).startswith("gen_ai."):
            inner = parsed(body.get("gen_ai.event.content"))
            message = {**body, **inner} if isinstance(inner, Mapping) else body
            if role == "tool":
                message = {**message, "tool_call_id": message.get("tool_call_id") or message.get("id")}
            yield str(name), {**message, "role": message.get("role") or role, **_calls(message)}


def _calls(message: Mapping[str, Any]) -> dict[str, Any]:
    calls = parsed(message.get("tool_calls"))
    return {"tool_calls": calls} if isinstance(calls, list) else {}


def _unflattened(raw: Mapping[str, Any]) -> dict[str, Any]:
    """One message of OpenLLMetry: its content may be the JSON of parts, its calls a flattened list."""
    content = parsed(raw.get("content"))
    message = {**raw, "tool_calls": entries(raw.get("tool_calls"))}
    if isinstance(content, list):
        message["content"] = content
    return {**message, "role": raw.get("role") or "assistant"}


def _functions(told: Mapping[str, Any]) -> list[Any]:
    listed = [tool for tool in entries(tree(told, "llm.request.functions")) if isinstance(tool, Mapping)]
    return [{**tool, "parameters": parsed(tool.get("parameters"))} for tool in listed]


def _add_tool(span: Span, trace: Trace) -> None:
    attributes = span.attributes
    result = _first(attributes, "gen_ai.tool.call.result", "output", "traceloop.entity.output")
    if result is None:
        return
    text, was_object = result_text(result)
    call_id = attributes.get("gen_ai.tool.call.id")
    name = str(attributes.get("gen_ai.tool.name") or span.name)
    run = ToolRun(name, text, str(call_id) if call_id else None, span.started_s, span.ended_s, was_object)
    trace.tools.append(run)


def _first(attributes: Mapping[str, Any], *keys: str) -> Any:
    return next((attributes[key] for key in keys if attributes.get(key) is not None), None)
