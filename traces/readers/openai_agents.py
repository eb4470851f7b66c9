"""OpenAI Agents SDK traces: `trace` and `trace.span` objects, one a record or in batches under `data`.

Described in the SDK's tracing documentation. A `generation` span holds input, output and usage (cached tokens inside
the input). A `response` span of the standard exporter holds only the id of a response on OpenAI's servers and is
refused; custom exporters add its input and the response. `function` spans are runs of tools.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ..reading import Bad, Format, Item, Record, Reject, Source
from .clock import when
from .fields import named
from .messages import answered, given, parsed, required, schemas
from .parts import first
from .spans import AGGREGATE, WHOLE, Call, ToolRun, Trace, family_of, result_text
from .spans_held import gathered
from .usage import inside

NAME = "openai-agents"
KINDS = ("trace", "trace.span")


def sniff(record: Any) -> bool:
    """Whether the record is a trace, a span or a batch of them."""
    if not isinstance(record, Mapping):
        return False
    batch = record.get("data")
    listed = batch if isinstance(batch, list) and batch else [record]
    return all(isinstance(each, Mapping) and each.get("object") in KINDS for each in listed)


def gather(records: Iterator[Record | Bad], source: Source) -> Iterator[Item]:
    """The runs of one file."""
    return gathered(NAME, records, _parts, _trace)


def _parts(record: Any) -> Iterator[tuple[str | None, Mapping[str, Any]]]:
    if not isinstance(record, Mapping):
        raise Reject("not an object")
    batch = record.get("data")
    for each in batch if isinstance(batch, list) else [record]:
        if not isinstance(each, Mapping) or each.get("object") not in KINDS:
            raise Reject("neither a trace nor a span: object is not 'trace' or 'trace.span'")
        yield named(each.get("id") if each["object"] == "trace" else each.get("trace_id")), each


def _trace(parts: list[Mapping[str, Any]]) -> Trace:
    about = next((part for part in parts if part["object"] == "trace"), {})
    trace = Trace(named(about.get("id")), session=named(about.get("group_id")))
    family = family_of(about.get("workflow_name"), default=NAME)
    for span in parts:
        if span["object"] == "trace":
            continue
        id = named(span.get("id"))
        trace.id = trace.id or named(span.get("trace_id"))
        if id is not None:
            trace.parents[id] = named(span.get("parent_id"))
        data = span.get("span_data")
        kind = data.get("type") if isinstance(data, Mapping) else None
        try:
            if isinstance(data, Mapping) and kind in ("generation", "response"):
                trace.calls.append(_call(span, data, id, family))
            elif isinstance(data, Mapping) and kind == "function":
                trace.tools += _tool_run(span, data)
        except Reject as error:
            trace.refuse(id, error)
    return trace


def _call(span: Mapping[str, Any], data: Mapping[str, Any], id: str | None, family: str) -> Call:
    response = parsed(data.get("response"))
    response = response if isinstance(response, Mapping) else {}
    output = first(data, ("output",)) or response
    if not data.get("input") and not output:
        raise Reject("the span holds only the id of a response: its messages are on the provider's server")
    said = given(data.get("input"))
    answer, losses = answered(output)
    if answer is None:
        error = span.get("error")
        told = error.get("message") if isinstance(error, Mapping) else None
        raise Reject("the span has no output" + (f": {told}" if isinstance(told, str) else ""))
    said.losses |= losses
    instructions = response.get("instructions")
    if isinstance(instructions, str) and not any(m and m["role"] in ("system", "developer") for m in said.messages):
        said.messages.insert(0, {"role": "system", "content": instructions})
    config = data.get("model_config")
    said.tools = schemas(response.get("tools") or (config.get("tools") if isinstance(config, Mapping) else None))
    counts = first(data, ("usage",)) or response.get("usage")
    counts = counts if isinstance(counts, Mapping) else {}
    details = first(counts, ("input_tokens_details", "prompt_tokens_details", "details"))
    model = first(response, ("model",)) or data.get("model")
    return Call(
        id=id,
        said=required(said),
        answer=answer,
        model=model if isinstance(model, str) else None,
        usage=inside(
            first(counts, ("input_tokens", "prompt_tokens")),
            first(counts, ("output_tokens", "completion_tokens")),
            details.get("cached_tokens") if isinstance(details, Mapping) else None,
        ),
        started_s=when(span.get("started_at")),
        ended_s=when(span.get("ended_at")),
        family=family,
        # Around a generation some versions put a response span of the same call.
        rank=WHOLE if data.get("type") == "generation" else AGGREGATE,
    )


def _tool_run(span: Mapping[str, Any], data: Mapping[str, Any]) -> list[ToolRun]:
    if data.get("output") is None:
        return []
    text, was_object = result_text(data["output"])
    times = when(span.get("started_at")), when(span.get("ended_at"))
    return [ToolRun(str(data.get("name") or ""), text, None, *times, was_object)]


FORMAT = Format(
    NAME,
    "OpenAI Agents SDK traces: trace and trace.span objects, one a record or in batches under data",
    "trajectories",
    sniff,
    gather=gather,
)
