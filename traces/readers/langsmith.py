"""LangSmith runs: one run an object, as the SDK, the API and bulk exports give them, or trees with `child_runs`.

Described in docs.langchain.com/langsmith/run-data-format. Local exports write `run_id` for `id`. Messages are in
LangChain's serialised form (`lc`, `kwargs`) or as the wrapped SDK had them; tables hold inputs and outputs as JSON.
Order is that of `dotted_order`, which begins every part with a start time. `input_tokens` includes cached ones.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

from ..reading import Bad, Format, Item, Record, Reject, Source
from ..trajectory import Usage
from .clock import when
from .fields import named
from .messages import answered, given, parsed, required, schemas
from .parts import first, is_message
from .spans import Call, ToolRun, Trace, family_of, result_text
from .spans_held import gathered
from .usage import inside

NAME = "langsmith"
SESSIONS = ("thread_id", "session_id", "conversation_id")
_DEEPEST = 100
_ORDER = re.compile(r"(\d{4})(\d\d)(\d\d)T(\d\d)(\d\d)(\d\d)(\d{1,6})Z[^.]*$")
Run = Mapping[str, Any]


def sniff(record: Any) -> bool:
    """Whether the record is a run."""
    return isinstance(record, Mapping) and isinstance(record.get("run_type"), str) and "inputs" in record


def gather(records: Iterator[Record | Bad], source: Source) -> Iterator[Item]:
    """The runs of one file."""
    return gathered(NAME, records, _parts, _trace)


def _parts(record: Any) -> Iterator[tuple[str | None, Run]]:
    if not isinstance(record, Mapping) or not isinstance(record.get("run_type"), str):
        raise Reject("not a run: it has no run_type")
    trace = named(record.get("trace_id")) or named(first(record, ("id", "run_id")))
    waiting: deque[tuple[Run, int]] = deque([(record, 0)])
    while waiting:
        run, depth = waiting.popleft()
        yield named(run.get("trace_id")) or trace, run
        children = parsed(run.get("child_runs"))
        for child in children if isinstance(children, list) and depth < _DEEPEST else []:
            if isinstance(child, Mapping):
                id = named(first(run, ("id", "run_id")))
                waiting.append((child if "parent_run_id" in child else {**child, "parent_run_id": id}, depth + 1))


def _trace(runs: list[Run]) -> Trace:
    trace = Trace()
    earliest = min(runs, key=lambda run: str(run.get("dotted_order") or "~"))
    root = next((run for run in runs if not run.get("parent_run_id")), earliest)
    family = family_of(root.get("name"), root.get("session_name"), default=NAME)
    for run in runs:
        id = named(first(run, ("id", "run_id")))
        trace.id = trace.id or named(run.get("trace_id"))
        if id is not None:
            trace.parents[id] = named(run.get("parent_run_id"))
        names = (named(_metadata(run).get(name)) for name in SESSIONS)
        trace.session = trace.session or next(filter(None, names), None)
        try:
            if run.get("run_type") == "llm":
                trace.calls.append(_call(run, id, family))
            elif run.get("run_type") == "tool":
                trace.tools += _tool_run(run)
        except Reject as error:
            trace.refuse(id, error)
    return trace


def _call(run: Run, id: str | None, family: str) -> Call:
    inputs, outputs = parsed(run.get("inputs")), parsed(run.get("outputs"))
    if not inputs and not outputs and (run.get("inputs_s3_urls") or run.get("s3_urls")):
        raise Reject("inputs and outputs are only references to an object store")
    if not outputs:
        error = run.get("error")
        raise Reject("the run has no outputs" + (f": {error}" if isinstance(error, str) and error else ""))
    said = given(inputs)
    answer, losses = answered(outputs)
    if answer is None:
        raise Reject("the run's outputs hold no answer")
    said.losses |= losses
    asked = _at(run, "extra", "invocation_params")
    said.tools = said.tools or schemas(asked.get("tools")) or schemas(asked.get("functions"))
    model = first(_metadata(run), ("ls_model_name",)) or first(asked, ("model", "model_name"))
    return Call(
        id=id,
        said=required(said),
        answer=answer,
        model=model if isinstance(model, str) else None,
        usage=_usage(run, outputs),
        started_s=when(run.get("start_time")) or _ordered(run.get("dotted_order")),
        ended_s=when(run.get("end_time")),
        family=family,
    )


def _usage(run: Run, outputs: Any) -> Usage | None:
    """Usage as LangChain normalises it, as the provider gave it, or as LangSmith adds it up."""
    for counts in _usages(outputs):
        details = first(counts, ("input_token_details", "prompt_tokens_details", "input_tokens_details"))
        details = details if isinstance(details, Mapping) else {}
        found = inside(
            first(counts, ("input_tokens", "prompt_tokens")),
            first(counts, ("output_tokens", "completion_tokens")),
            first(details, ("cache_read", "cached_tokens")),
            first(details, ("cache_creation",)),
        )
        if found is not None:
            return found
    return inside(run.get("prompt_tokens"), run.get("completion_tokens")) if run.get("total_tokens") else None


def _usages(value: Any, depth: int = 0) -> Iterator[Mapping[str, Any]]:
    if isinstance(value, list):
        for each in value[:1]:
            yield from _usages(each, depth + 1)
    elif isinstance(value, Mapping) and depth < _DEEPEST:
        for key in ("usage_metadata", "usage", "token_usage"):
            if isinstance(value.get(key), Mapping):
                yield value[key]
        for key in ("generations", "message", "kwargs", "messages", "llm_output", "response_metadata", "output"):
            yield from _usages(value.get(key), depth + 1)


def _tool_run(run: Run) -> list[ToolRun]:
    outputs = parsed(run.get("outputs"))
    if not outputs:
        return []
    output = outputs["output"] if isinstance(outputs, Mapping) and "output" in outputs else outputs
    value, call_id = parsed(output), None
    if is_message(value):
        message = next((m for m in given([value]).messages if m is not None and m["role"] == "tool"), {})
        call_id, output = named(message.get("tool_call_id")), message.get("content")
    text, was_object = result_text(output)
    times = when(run.get("start_time")), when(run.get("end_time"))
    return [ToolRun(str(run.get("name") or ""), text, call_id, *times, was_object)]


def _metadata(run: Run) -> Mapping[str, Any]:
    return _at(run, "extra", "metadata") or _at(run, "metadata")


def _at(run: Run, *path: str) -> Mapping[str, Any]:
    value: Any = run
    for key in path:
        value = parsed(value.get(key)) if isinstance(value, Mapping) else None
    return value if isinstance(value, Mapping) else {}


def _ordered(order: Any) -> float | None:
    """The start time in the last part of a dotted order."""
    found = _ORDER.search(order) if isinstance(order, str) else None
    if found is None:
        return None
    year, month, day, hour, minute, second, fraction = found.groups()
    return when(f"{year}-{month}-{day}T{hour}:{minute}:{second}.{fraction.ljust(6, '0')}Z")


FORMAT = Format(
    NAME,
    "LangSmith runs: run_type, inputs, outputs, dotted_order, one run a record, or trees with child_runs",
    "trajectories",
    sniff,
    gather=gather,
)
