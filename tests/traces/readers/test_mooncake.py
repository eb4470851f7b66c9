"""Mooncake rows: seconds, whole token counts, hashes to 2^64−1; wrong fields are named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from sources import items

from kvmill.traces import checks, formats
from kvmill.traces.readers.mooncake import FORMAT, read, sniff
from kvmill.traces.reading import Reject
from kvmill.traces.trajectory import Request

ROW: dict[str, Any] = {
    "timestamp": 3000,
    "input_length": 513,
    "output_length": 4,
    "hash_ids": [0, 14879255164371896291],
}


def test_a_row_is_a_request_in_seconds() -> None:
    request = read(ROW)
    assert (request.arrival_s, request.input_tokens, request.output_tokens) == (3.0, 513, 4)
    assert request.prefix_blocks == (0, 14879255164371896291)
    assert request.block_tokens == 512
    assert request.session is None
    assert checks.request_findings(request) == []


def test_a_row_without_hashes_has_no_blocks() -> None:
    request = read({k: v for k, v in ROW.items() if k != "hash_ids"} | {"session_id": 7})
    assert (request.prefix_blocks, request.block_tokens, request.session) == (None, None, "7")


def test_blocks_that_do_not_fit_the_length_are_found() -> None:
    finding = checks.request_findings(read(ROW | {"input_length": 20}))[0]
    assert finding.code == "block_count_differs"
    assert "2 blocks for 20 tokens, expected 1" in finding.text


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"timestamp": -1}, "timestamp"),
        ({"timestamp": "soon"}, "timestamp"),
        ({"input_length": 1.5}, "input_length"),
        ({"output_length": True}, "output_length"),
        ({"hash_ids": [2**64]}, "hash_ids"),
        ({"hash_ids": [-1]}, "hash_ids"),
        ({"hash_ids": "0"}, "hash_ids"),
    ],
)
def test_wrong_fields_are_named(change: dict[str, Any], word: str) -> None:
    with pytest.raises(Reject, match=word):
        read(ROW | change)


def test_logs_with_other_hashes_are_not_taken_for_it() -> None:
    assert sniff(ROW)
    assert not sniff(ROW | {"chat_id": 1, "parent_chat_id": -1})
    assert not sniff(ROW | {"messages": []})


def test_the_real_log_reads_whole_and_its_blocks_fit(shared_data: Path) -> None:
    path = next((shared_data / "traces/mooncake-fast25").glob("conversation*.jsonl"))
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert formats.detect(rows[:20], "x").name == "mooncake"
    requests = [read(row) for row in rows]
    assert not any(checks.request_findings(request) for request in requests)
    assert sum(r.input_tokens for r in requests) == sum(row["input_length"] for row in rows)
    assert requests[-1].arrival_s == rows[-1]["timestamp"] / 1000


def test_sessions_of_aiperf_wait_for_the_request_before() -> None:
    first = ROW | {"session_id": "s"}
    later = {"session_id": "s", "delay": 250, "input_length": 600, "output_length": 1}
    alone = {"session_id": "t", "delay": 250, "input_length": 600, "output_length": 1}
    assert formats.detect([first, later], "f").name == "mooncake"
    made = items(FORMAT, [first, later, ROW, alone])
    requests = [item.value for item in made if isinstance(item.value, Request)]
    assert [(r.session, r.turn, r.arrival_s, r.tool_wait_s) for r in requests] == [
        ("s", 0, 3.0, None),
        ("s", 1, 3.25, 0.25),
        (None, None, 3.0, None),
    ]
    assert "neither a timestamp, nor a delay" in made[3].reason


def test_a_number_of_blocks_that_does_not_fit_is_found_in_a_log() -> None:  # bug 27
    rows = [ROW | {"input_length": 20, "hash_ids": [1, 2]}, ROW | {"input_length": 513, "hash_ids": [1, 2]}]
    found = [finding.code for row in rows for finding in checks.request_findings(read(row))]
    assert found == ["block_count_differs"]
