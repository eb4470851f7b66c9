"""Langfuse traces: a trace with its observations, as the UI and the API give them, or rows of observations.

Described in langfuse.com's data model. A generation's input and output are what the instrumented SDK passed on, as
values or as their JSON; where OpenInference's flattened attributes came along they are better than what was made of
them. Buckets of `usageDetails` should be apart but are not always: the reading that adds up to `total` is taken; the
counts of a recorded response go first, since Langfuse may have estimated its own. Scores are mostly given by models:
they are kept as meta, not as truth.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ..reading import Bad, Format, Item, Record, Reject, Source
from . import spans_openinference
from .clock import when
from .fields import named
from .messages import Said, answered, given, parsed, required, schemas
from .openai_chat import usage_of
from .parts import first, is_message
from .spans import TEXT, WHOLE, Call, ToolRun, Trace, family_of
from .spans_held import gathered
from .usage import summing_to

NAME = "langfuse"
TYPES = ("SPAN", "GENERATION", "EVENT", "AGENT", "TOOL", "CHAIN", "RETRIEVER", "EVALUATOR", "EMBEDDING", "GUARDRAIL")
_USAGE = {
    "total": ("total",),
    "given": ("input", "prompt_tokens", "input_tokens"),
    "output": ("output", "completion_tokens", "output_tokens"),
    "read": ("input_cache_read", "input_cached_tokens", "cache_read_input_tokens", "prompt_details.cache_read"),
    "written": ("input_cache_creation", "cache_creation_input_tokens", "prompt_details.cache_write"),
    "thought": ("output_reasoning", "output_reasoning_tokens", "completion_details.reasoning"),
}
_MOST_SCORES = 20
Part = tuple[Mapping[str, Any], list[Mapping[str, Any]]]


def sniff(record: Any) -> bool:
    """Whether the record is a trace with observations, or an observation."""
    if not isinstance(record, Mapping):
        return False
    observations = record.get("observations")
    if isinstance(observations, list):
        return bool(observations) and all(isinstance(o, Mapping) and o.get("type") in TYPES for o in observations)
    return record.get("type") in TYPES and first(record, ("traceId", "trace_id")) is not None


def gather(records: Iterator[Record | Bad], source: Source) -> Iterator[Item]:
    """The runs of one file."""
    return gathered(NAME, records, _parts, _trace)


def _parts(record: Any) -> Iterator[tuple[str | None, Part]]:
    if not isinstance(record, Mapping):
        raise Reject("not an object")
    observations = record.get("observations")
    if isinstance(observations, list):
        if not observations or not all(isinstance(each, Mapping) for each in observations):
            raise Reject("observations is not a list of objects")
        about = record.get("trace")
        yield None, (about if isinstance(about, Mapping) else record, observations)
    elif record.get("type") in TYPES:
        yield named(first(record, ("traceId", "trace_id"))), ({}, [record])
    else:
        raise Reject("neither a trace with observations nor an observation")


def _trace(parts: list[Part]) -> Trace:
    about: Mapping[str, Any] = {}
    for told, _ in parts:
        about = about or told
    observations = [each for _, listed in parts for each in listed]
    ids = [named(first(each, ("traceId", "trace_id"))) for each in observations]
    trace = Trace(named(about.get("id")) or next(filter(None, ids), None))
    trace.session = named(first(about, ("sessionId", "session_id")))
    scores = _scores(about)
    family = family_of(about.get("name"), default=NAME)
    for each in observations:
        id = named(each.get("id"))
        if id is not None:
            trace.parents[id] = named(first(each, ("parentObservationId", "parent_observation_id")))
        if each.get("type") == "GENERATION":
            try:
                trace.calls.append(_call(each, id, family, scores))
            except Reject as error:
                trace.refuse(id, error)
        else:
            trace.tools += _tool_run(each)
    return trace


def _call(raw: Mapping[str, Any], id: str | None, family: str, meta: Mapping[str, Any]) -> Call:
    if raw.get("input") is None and raw.get("output") is None:
        raise Reject("the download leaves out input and output of the generation")
    attributes = _attributes(raw)
    said = spans_openinference.given_in(attributes) if _flattened(attributes) else given(raw.get("input"))
    output = parsed(raw.get("output"))
    answer, losses = answered(raw.get("output"))
    if answer is None:
        answer, losses = spans_openinference.answer_in(attributes)
    if answer is None:
        status = first(raw, ("statusMessage", "status_message"))
        raise Reject("the generation has no output" + (f": {status}" if isinstance(status, str) else ""))
    said.losses |= losses
    _add_response(output, said)
    if not said.tools:
        metadata = parsed(raw.get("metadata"))
        tools = metadata.get("tools") if isinstance(metadata, Mapping) else None
        said.tools = schemas(first(raw, ("toolDefinitions", "tool_definitions"))) or schemas(tools)
    counts = _counts(raw)
    usage, fits = summing_to(**{name: first(counts, keys) for name, keys in _USAGE.items()})
    if not fits:
        said.losses.add("usage_disagrees")
        meta = {**meta, "usage": {str(key): value for key, value in counts.items() if isinstance(value, int)}}
    model = first(raw, ("model", "providedModelName", "provided_model_name"))
    return Call(
        id=id,
        said=required(said),
        answer=answer,
        model=model if isinstance(model, str) else None,
        usage=(usage_of(output.get("usage")) if isinstance(output, Mapping) else None) or usage,
        started_s=when(first(raw, ("startTime", "start_time"))),
        ended_s=when(first(raw, ("endTime", "end_time"))),
        family=family,
        rank=TEXT if said.as_text else WHOLE,
        meta=meta,
    )


def _attributes(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    metadata = parsed(raw.get("metadata"))
    attributes = parsed(metadata.get("attributes")) if isinstance(metadata, Mapping) else None
    return attributes if isinstance(attributes, Mapping) else {}


def _flattened(attributes: Mapping[str, Any]) -> bool:
    return any(key.startswith(spans_openinference.INPUT) for key in attributes)


def _add_response(output: Any, said: Said) -> None:
    """A recorded response of OpenAI's Responses API repeats what the request said beside its messages."""
    if not isinstance(output, Mapping) or not isinstance(output.get("output"), list):
        return
    said.tools = said.tools or schemas(output.get("tools"))
    instructions = output.get("instructions")
    if isinstance(instructions, str) and not any(m and m["role"] in ("system", "developer") for m in said.messages):
        said.messages.insert(0, {"role": "system", "content": instructions})


def _counts(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    counts = first(raw, ("usageDetails", "usage_details", "usage"))
    if isinstance(counts, Mapping) and counts:
        return counts
    names = {"input": "inputUsage", "output": "outputUsage", "total": "totalUsage"}
    return {name: raw[old] for name, old in names.items() if raw.get(old)}


def _tool_run(raw: Mapping[str, Any]) -> list[ToolRun]:
    """A run of a tool; some SDKs record it as a plain span of the tool's name."""
    output = raw.get("output")
    name = raw.get("name")
    if not isinstance(name, str) or output is None:
        return []
    value = parsed(output)
    call_id = None
    text = output if isinstance(output, str) else None
    if is_message(value):
        message = next((m for m in given([value]).messages if m is not None and m["role"] == "tool"), None)
        if message is not None:
            text, call_id = message["content"], named(message.get("tool_call_id"))
    if not isinstance(text, str):
        return []
    name = name.removeprefix("execute_tool ")
    started, ended = (when(first(raw, keys)) for keys in (("startTime", "start_time"), ("endTime", "end_time")))
    return [ToolRun(name, text, call_id, started, ended)]


def _scores(about: Mapping[str, Any]) -> Mapping[str, Any]:
    listed = about.get("scores")
    scores = {}
    for score in listed[:_MOST_SCORES] if isinstance(listed, list) else []:
        value = first(score, ("value", "stringValue")) if isinstance(score, Mapping) else None
        if isinstance(score, Mapping) and isinstance(score.get("name"), str) and isinstance(value, (int, float, str)):
            scores[score["name"]] = value
    return {"scores": scores} if scores else {}


FORMAT = Format(
    NAME,
    "Langfuse traces: {trace, observations} as downloaded, or rows of observations",
    "trajectories",
    sniff,
    gather=gather,
    verified=True,
)
