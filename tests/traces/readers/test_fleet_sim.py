"""fleet-sim rows, whatever their model's column is called."""

from __future__ import annotations

import json
from pathlib import Path

from kvmill.traces import formats
from kvmill.traces.readers.fleet_sim import read

ROW = {"timestamp": 0.546, "prompt_tokens": 166, "generated_tokens": 161}


def test_both_model_columns_and_text_cells_are_read() -> None:
    for row in (ROW | {"model": "a"}, ROW | {"selected_model": "a"}, {key: str(value) for key, value in ROW.items()}):
        assert formats.detect([row], "f").name == "fleet-sim"
        request = read(row)
        assert (request.arrival_s, request.input_tokens, request.output_tokens) == (0.546, 166, 161)


def test_the_real_log_keeps_every_length(shared_data: Path) -> None:
    path = shared_data / "traces/semantic-router-fleet-sim/generic_chat_mix.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    requests = [read(row) for row in rows]
    assert len(requests) == len(rows) > 100
    assert sum(r.output_tokens for r in requests) == sum(row["generated_tokens"] for row in rows)
