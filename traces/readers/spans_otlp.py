"""OpenTelemetry spans in the envelopes in which they are found: OTLP/JSON, console exporters, flat attribute maps.

OTLP/JSON is described in opentelemetry-proto: 64-bit integers are strings, attributes are lists of key and value. The
console exporters of the JavaScript and Python SDKs print one span an object; Phoenix writes tables whose columns are
`attributes.…`, or pages of spans, attributes nested; some tools keep the attributes alone. Events may come as log
records that name their span: these make a span of events only, which `with_logs` puts together with the span itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ..reading import Reject
from .clock import when
from .fields import named

DIALECTS = ("gen_ai.", "llm.", "ai.", "openinference.", "traceloop.")
NESTED = ("gen_ai", "llm", "ai", "openinference", "traceloop", "input", "output", "session", "tool", "agent")
DEFAULT_ATTRIBUTE_LIMIT = 128
_DEEPEST = 30


@dataclass(frozen=True, slots=True)
class Span:
    """One span. Times in seconds since 1970; `events`: name and attributes in order; `dropped`: attributes lost."""

    attributes: Mapping[str, Any]
    name: str = ""
    trace: str | None = None
    id: str | None = None
    parent: str | None = None
    started_s: float | None = None
    ended_s: float | None = None
    events: tuple[tuple[str, Mapping[str, Any]], ...] = ()
    resource: Mapping[str, Any] = field(default_factory=dict)
    dropped: int = 0

    @property
    def cut(self) -> bool:
        """Whether attributes are known, or by their number must be feared, to be missing."""
        return self.dropped > 0 or len(self.attributes) >= DEFAULT_ATTRIBUTE_LIMIT


def is_span_record(record: Any) -> bool:
    """Whether a record is an OTLP envelope, a span or a map of attributes of model calls."""
    if not isinstance(record, Mapping):
        return False
    if _batches(record) is not None or _is_span(record) or _is_log(record) or _is_page(record):
        return True
    return any(isinstance(key, str) and _plain(key).startswith(DIALECTS) for key in record)


def spans_of(record: Any) -> Iterator[Span]:
    """The spans of a record. Reject if it is none of the envelopes."""
    if not isinstance(record, Mapping):
        raise Reject("not an object")
    batches = _batches(record)
    if batches is not None:
        for batch in batches:
            yield from _of_batch(batch)
    elif _is_page(record):
        for span in record["data"]:
            yield _span(span, {})
    elif _is_log(record):
        yield _log(record)
    elif _is_span(record):
        yield _span(record, _attributes(_at(record, "resource", "attributes")))
    elif is_span_record(record):
        yield _flat(record)
    else:
        raise Reject("neither OTLP, nor a span, nor a map of a span's attributes")


def _batches(record: Mapping[str, Any]) -> list[Any] | None:
    inner = record.get("trace") if isinstance(record.get("trace"), Mapping) else record
    for key in ("resourceSpans", "resource_spans", "batches", "resourceLogs", "resource_logs"):
        if isinstance(inner, Mapping) and isinstance(inner.get(key), list):
            return inner[key]
    return None


def _is_span(record: Mapping[str, Any]) -> bool:
    marks = ("spanContext", "context", "spanId", "span_id", "traceId", "trace_id")
    return isinstance(record.get("attributes"), (Mapping, list)) and any(key in record for key in marks)


def _is_page(record: Mapping[str, Any]) -> bool:
    """Spans as Phoenix's API gives them."""
    data = record.get("data")
    return isinstance(data, list) and bool(data) and all(isinstance(span, Mapping) and _is_span(span) for span in data)


def _is_log(record: Mapping[str, Any]) -> bool:
    named = _first(record, "traceId", "trace_id", "spanId", "span_id") is not None
    return named and "body" in record and "name" not in record


def with_logs(spans: Iterable[Span]) -> list[Span]:
    """The spans of a trace, those of one id put together: a span and the log records that name it."""
    by_id: dict[str, Span] = {}
    alone: list[Span] = []
    for span in spans:
        if span.id is None:
            alone.append(span)
        elif span.id not in by_id:
            by_id[span.id] = span
        else:
            one, other = by_id[span.id], span
            one, other = (one, other) if one.ended_s is not None or other.ended_s is None else (other, one)
            by_id[span.id] = replace(
                one,
                attributes={**other.attributes, **one.attributes},
                events=(*one.events, *other.events),
                dropped=one.dropped + other.dropped,
            )
    return [*by_id.values(), *alone]


def _log(raw: Mapping[str, Any]) -> Span:
    """A log record as a span of one event: what it tells is in its body or its attributes."""
    attributes = _attributes(raw.get("attributes"))
    body = _value(raw.get("body"))
    name = _first(raw, "eventName", "event_name") or attributes.get("event.name")
    told = {**attributes, **body} if isinstance(body, Mapping) else attributes
    time = _time(_first(raw, "timeUnixNano", "time_unix_nano", "observedTimeUnixNano", "timestamp"))
    return Span(
        attributes={},
        trace=_id(_first(raw, "traceId", "trace_id")),
        id=_id(_first(raw, "spanId", "span_id")),
        started_s=time,
        events=((name, told),) if isinstance(name, str) else (),
    )


def _of_batch(batch: Any) -> Iterator[Span]:
    if not isinstance(batch, Mapping):
        raise Reject("a batch of spans is not an object")
    resource = _attributes(_at(batch, "resource", "attributes"))
    scopes = _first(batch, "scopeSpans", "scope_spans", "instrumentationLibrarySpans")
    for scope in scopes if isinstance(scopes, list) else []:
        spans = scope.get("spans") if isinstance(scope, Mapping) else None
        for span in spans if isinstance(spans, list) else []:
            if not isinstance(span, Mapping):
                raise Reject("a span is not an object")
            yield _span(span, resource)
    logs = _first(batch, "scopeLogs", "scope_logs")
    for scope in logs if isinstance(logs, list) else []:
        records = _first(scope, "logRecords", "log_records") if isinstance(scope, Mapping) else None
        for each in records if isinstance(records, list) else []:
            if not isinstance(each, Mapping):
                raise Reject("a log record is not an object")
            yield _log(each)


def _span(raw: Mapping[str, Any], resource: Mapping[str, Any]) -> Span:
    context = _first(raw, "spanContext", "context")
    context = context if isinstance(context, Mapping) else raw
    parent = _first(raw, "parentSpanId", "parent_span_id", "parent_id", "parentId")
    if parent is None:
        parent = _at(raw, "parentSpanContext", "spanId")
    return Span(
        attributes=_attributes(raw.get("attributes")),
        name=str(raw["name"])[:200] if isinstance(raw.get("name"), str) else "",
        trace=_id(_first(context, "traceId", "trace_id")),
        id=_id(_first(context, "spanId", "span_id", "id")),
        parent=_id(parent),
        started_s=_time(_first(raw, "startTimeUnixNano", "start_time_unix_nano", "startTime", "start_time")),
        ended_s=_time(_first(raw, "endTimeUnixNano", "end_time_unix_nano", "endTime", "end_time")),
        events=tuple(_events(raw.get("events"))),
        resource=resource,
        dropped=_count(_first(raw, "droppedAttributesCount", "dropped_attributes_count")),
    )


def _flat(record: Mapping[str, Any]) -> Span:
    """Attributes alone, or the columns of a table of spans."""
    attributes = {_plain(key): value for key, value in record.items() if value is not None}
    return Span(
        attributes=attributes,
        name=attributes["name"] if isinstance(attributes.get("name"), str) else "",
        trace=_id(_first(attributes, "context.trace_id", "trace_id")),
        id=_id(_first(attributes, "context.span_id", "span_id")),
        parent=_id(attributes.get("parent_id")),
        started_s=_time(attributes.get("start_time")),
        ended_s=_time(attributes.get("end_time")),
    )


def _plain(key: Any) -> str:
    return str(key).removeprefix("attributes.")


def _events(raw: Any) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for event in raw if isinstance(raw, list) else []:
        if isinstance(event, Mapping) and isinstance(event.get("name"), str):
            yield event["name"], _attributes(event.get("attributes"))


def _attributes(raw: Any) -> dict[str, Any]:
    if isinstance(raw, Mapping):
        return dict(_dotted(raw, ""))
    pairs = (pair for pair in (raw if isinstance(raw, list) else []) if isinstance(pair, Mapping))
    return {pair["key"]: _value(pair.get("value")) for pair in pairs if isinstance(pair.get("key"), str)}


def _dotted(raw: Mapping[str, Any], before: str, depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Attributes by their dotted names, also where an exporter nested them below the first part of the name."""
    for key, value in raw.items():
        name = f"{before}{key}"
        if isinstance(value, Mapping) and depth < _DEEPEST and (before or key in NESTED):
            yield from _dotted(value, name + ".", depth + 1)
        else:
            yield name, value


def _value(raw: Any, depth: int = 0) -> Any:
    """The value of OTLP's tagged form; integers come as strings there, since JSON's numbers have too few digits."""
    if not isinstance(raw, Mapping) or depth > _DEEPEST:
        return raw
    for kind in ("stringValue", "boolValue", "doubleValue", "bytesValue"):
        if kind in raw:
            return raw[kind]
    if "intValue" in raw:
        try:
            return int(raw["intValue"])
        except (TypeError, ValueError, OverflowError):
            return None
    if "arrayValue" in raw:
        values = _at(raw, "arrayValue", "values")
        return [_value(each, depth + 1) for each in values] if isinstance(values, list) else []
    if "kvlistValue" in raw:
        values = _at(raw, "kvlistValue", "values")
        pairs = [pair for pair in values if isinstance(pair, Mapping)] if isinstance(values, list) else []
        return {str(pair.get("key")): _value(pair.get("value"), depth + 1) for pair in pairs}
    return raw or None


def _time(raw: Any) -> float | None:
    """Seconds since 1970 of nanoseconds (a number or its digits), of [seconds, nanoseconds], or of an ISO time."""
    if isinstance(raw, list) and len(raw) == 2:
        seconds, nanoseconds = (_count(part) for part in raw)
        return seconds + nanoseconds / 1e9 if seconds else None
    if isinstance(raw, str) and not raw.isdigit():
        return when(raw)
    return _count(raw) / 1e9 or None


def _count(raw: Any) -> int:
    if isinstance(raw, str) and raw.isascii() and raw.isdigit() and len(raw) <= 20:
        return int(raw)
    return raw if isinstance(raw, int) and not isinstance(raw, bool) and 0 <= raw < 2**64 else 0


def _id(raw: Any) -> str | None:
    text = named(raw)
    return None if text is None else text.removeprefix("0x") or None


def _first(raw: Mapping[str, Any], *keys: str) -> Any:
    return next((raw[key] for key in keys if raw.get(key) is not None), None)


def _at(raw: Mapping[str, Any], outer: str, inner: str) -> Any:
    value = raw.get(outer)
    return value.get(inner) if isinstance(value, Mapping) else None
