"""Spans are the same in every envelope: OTLP/JSON, console exporters, tables, maps of attributes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvmill.traces.readers.spans_otlp import is_span_record, spans_of
from kvmill.traces.reading import Reject

KEYS = {"gen_ai.request.model": "m", "gen_ai.usage.input_tokens": 9007199254740993}
OTLP_KEYS = [
    {"key": "gen_ai.request.model", "value": {"stringValue": "m"}},
    {"key": "gen_ai.usage.input_tokens", "value": {"intValue": "9007199254740993"}},
]
OTLP_SPAN = {
    "traceId": "0af7",
    "spanId": "b7ad",
    "parentSpanId": "",
    "name": "chat",
    "startTimeUnixNano": "1700000000500000000",
    "endTimeUnixNano": "1700000002000000000",
    "attributes": OTLP_KEYS,
    "events": [{"name": "e", "timeUnixNano": "1", "attributes": [{"key": "k", "value": {"boolValue": True}}]}],
    "droppedAttributesCount": 3,
}
TIMES = {"startTime": [1700000000, 500000000], "endTime": [1700000002, 0]}
ENVELOPES: dict[str, Any] = {
    "otlp": {"resourceSpans": [{"resource": {}, "scopeSpans": [{"scope": {}, "spans": [OTLP_SPAN]}]}]},
    "otlp-old": {"resource_spans": [{"instrumentationLibrarySpans": [{"spans": [OTLP_SPAN]}]}]},
    "tempo": {"batches": [{"scopeSpans": [{"spans": [OTLP_SPAN]}]}]},
    "tempo-2": {"trace": {"resourceSpans": [{"scopeSpans": [{"spans": [OTLP_SPAN]}]}]}},
    "one span": OTLP_SPAN,
    "javascript": {"name": "chat", "spanContext": {"traceId": "0af7", "spanId": "b7ad"}, "attributes": KEYS, **TIMES},
    "python": {
        "name": "chat",
        "context": {"trace_id": "0x0af7", "span_id": "0xb7ad", "trace_state": "[]"},
        "parent_id": None,
        "start_time": "2023-11-14T22:13:20.500000Z",
        "end_time": "2023-11-14T22:13:22.000000Z",
        "attributes": KEYS,
    },
    "table": {
        "name": "chat",
        "context.trace_id": "0af7",
        "context.span_id": "b7ad",
        "parent_id": None,
        "start_time": "2023-11-14T22:13:20.500000+00:00",
        "end_time": "2023-11-14T22:13:22.000000+00:00",
        **{f"attributes.{key}": value for key, value in KEYS.items()},
    },
}


@pytest.mark.parametrize("record", ENVELOPES.values(), ids=ENVELOPES)
def test_every_envelope_holds_the_same_span(record: Any) -> None:
    assert is_span_record(record)
    (span,) = spans_of(record)
    assert {key: span.attributes[key] for key in KEYS} == KEYS
    assert (span.name, span.trace, span.id, span.parent) == ("chat", "0af7", "b7ad", None)
    assert (span.started_s, span.ended_s) == (1700000000.5, 1700000002.0)


def test_attributes_alone_are_a_span_without_a_trace() -> None:
    (span,) = spans_of(KEYS)
    assert (span.trace, span.id, span.started_s) == (None, None, None)
    assert span.attributes == KEYS


def test_values_of_every_kind_are_unpacked() -> None:
    nested = {
        "arrayValue": {
            "values": [{"intValue": "1"}, {"kvlistValue": {"values": [{"key": "k", "value": {"doubleValue": 0.5}}]}}]
        }
    }
    attributes = [{"key": "a", "value": nested}, {"key": "b", "value": {}}, {"key": "c", "value": {"intValue": "x"}}]
    (span,) = spans_of({"traceId": "1", "attributes": attributes})
    assert span.attributes == {"a": [1, {"k": 0.5}], "b": None, "c": None}
    assert next(spans_of(OTLP_SPAN)).events == (("e", {"k": True}),)


def test_a_span_that_lost_attributes_says_so() -> None:  # bug 10
    assert next(spans_of(OTLP_SPAN)).cut
    full = {f"gen_ai.prompt.{n}.content": "x" for n in range(128)}
    assert next(spans_of(full)).cut, "128 is where the SDKs stop: no more were kept, however many there were"
    assert not next(spans_of(KEYS)).cut


@pytest.mark.parametrize("record", [None, 1, "x", [], {}, {"attributes": {}}, {"spanId": "x"}, {"role": "user"}])
def test_what_is_no_span_is_not_taken_for_one(record: Any) -> None:
    assert not is_span_record(record)
    with pytest.raises(Reject):
        list(spans_of(record))


@pytest.mark.parametrize("broken", [{"resourceSpans": [1]}, {"resourceSpans": [{"scopeSpans": [{"spans": [1]}]}]}])
def test_broken_envelopes_are_refused(broken: Any) -> None:
    with pytest.raises(Reject, match="is not an object"):
        list(spans_of(broken))


@given(
    st.recursive(
        st.none() | st.integers() | st.text(max_size=3),
        lambda v: (
            st.lists(v, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    [
                        "resourceSpans",
                        "scopeSpans",
                        "spans",
                        "attributes",
                        "key",
                        "value",
                        "arrayValue",
                        "values",
                        "spanId",
                    ]
                ),
                v,
                max_size=4,
            )
        ),
        max_leaves=14,
    )
)
def test_no_value_makes_it_fail(record: Any) -> None:
    try:
        for span in spans_of(record):
            assert isinstance(span.attributes, dict)
    except Reject:
        pass
