"""Vidur rows with arrivals are requests; lengths alone are refused with a sentence."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from kvmill.traces import formats
from kvmill.traces.readers.vidur import read
from kvmill.traces.reading import Reject


def test_lengths_without_arrivals_are_no_request_log() -> None:
    row = {"num_prefill_tokens": "6", "num_decode_tokens": "2", "num_total_tokens": "8", "pd_ratio": "3.0"}
    assert formats.detect([row], "f").name == "vidur"
    with pytest.raises(Reject, match="lengths without arrivals"):
        read(row)


def test_the_real_log_keeps_every_length(shared_data: Path) -> None:
    with (shared_data / "traces/vidur/splitwise_conv.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    requests = [read(row) for row in rows]
    assert len(requests) == 19366
    assert sum(request.input_tokens for request in requests) == sum(int(row["num_prefill_tokens"]) for row in rows)
    assert requests[1].arrival_s == 4.314579
    assert sorted(request.output_tokens for request in requests)[19366 // 2] == 129
