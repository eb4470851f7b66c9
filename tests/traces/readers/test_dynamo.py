"""Dynamo's events: ends of requests are requests, events of tools are none, u64 hashes keep every digit."""

from __future__ import annotations

from typing import Any

import pytest
from sources import items

from kvmill.traces import formats
from kvmill.traces.readers.dynamo import FORMAT
from kvmill.traces.trajectory import Request

T0 = 1_777_312_800_000


def event(received: int, took: int | None = 1000, session: str = "s", **more: Any) -> dict[str, Any]:
    hashes = [14879255164371896291, 14879255164371896292]
    replay = {"trace_block_size": 64, "input_length": 128, "input_sequence_hashes": hashes}
    request = {"request_id": "r", "output_tokens": 8, "request_received_ms": T0 + received, "replay": replay}
    if took is not None:
        request["total_time_ms"] = took
    event = {"schema": "dynamo.request.trace.v1", "event_type": "request_end", "agent_context": {"session_id": session}}
    return {**event, "event_time_unix_ms": T0 + received + 1000, "request": request, **more}


def made(*records: Any) -> list[Request]:
    return [item.value for item in items(FORMAT, list(records)) if isinstance(item.value, Request)]


def test_arrivals_count_from_the_first_request_and_waits_from_the_sessions_last_end() -> None:
    requests = made(event(0), event(200, session="other"), event(1750))
    assert [r.arrival_s for r in requests] == pytest.approx([0.0, 0.2, 1.75], abs=1e-6)
    assert requests[2].tool_wait_s == pytest.approx(0.75, abs=1e-6)
    assert [r.session for r in requests] == ["s", "other", "s"]


def test_hashes_that_differ_in_the_last_digit_stay_different() -> None:  # bug 13
    (request,) = made(event(0))
    assert request.prefix_blocks == (14879255164371896291, 14879255164371896292)
    assert request.block_tokens == 64


def test_events_of_tools_are_no_requests() -> None:
    tool = {"schema": "dynamo.request.trace.v1", "event_type": "tool_end", "tool": {"duration_ms": 5}}
    assert items(FORMAT, [tool]) == []
    assert formats.detect([event(0), tool], "f").name == "dynamo"


def test_the_older_envelope_is_read() -> None:
    inner = event(0) | {"schema": "dynamo.agent.trace.v1", "agent_context": {"session_id": "s", "trajectory_id": "tr"}}
    del inner["event_time_unix_ms"]
    (request,) = made({"timestamp": 1500, "event": inner})
    assert request.session == "tr"


def test_without_a_received_time_it_is_the_end_less_the_duration() -> None:
    record = event(0, 400)
    del record["request"]["request_received_ms"]
    first, second = made(event(0), record)
    assert second.arrival_s - first.arrival_s == pytest.approx(0.6, abs=1e-6)


def test_what_is_wrong_is_said() -> None:
    for change, words in (
        ({"request": None}, "not an object"),
        ({"schema": "x"}, "the schema is none of"),
        ({"request": {"output_tokens": 1, "request_received_ms": 0}}, "input_tokens is None"),
    ):
        (item,) = items(FORMAT, [event(0) | change])
        assert words in item.reason
