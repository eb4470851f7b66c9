"""Azure's CSV: seven fractional digits are kept, arrivals count from the first row, the last row needs no newline."""

from __future__ import annotations

import csv
from pathlib import Path

from sources import items

from kvmill.traces.readers.azure_llm import FORMAT
from kvmill.traces.reading import Bad
from kvmill.traces.trajectory import Request


def row(time: str, asked: str = "10", answered: str = "2") -> dict[str, str]:
    return {"TIMESTAMP": time, "ContextTokens": asked, "GeneratedTokens": answered}


def requests(rows: list[object]) -> list[Request]:
    return [item.value for item in items(FORMAT, rows) if isinstance(item.value, Request)]


def test_the_seventh_digit_of_a_time_counts() -> None:
    made = requests([row("2023-11-16 18:17:03.9799600"), row("2023-11-16 18:17:03.9799601")])
    assert [request.arrival_s for request in made] == [0.0, 1e-7]


def test_zones_and_times_without_fraction_are_read_and_rows_may_be_out_of_order() -> None:
    made = requests([row("2024-05-10 00:00:00.5+00:00"), row("2024-05-10 02:00:00+02:00"), row("2024-05-10 00:01:00")])
    assert [request.arrival_s for request in made] == [0.0, -0.5, 59.5]


def test_a_row_that_cannot_be_read_says_why_and_does_not_set_the_clock() -> None:
    made = items(FORMAT, [row("yesterday"), row("2023-11-16", asked="many"), Bad(3, "torn", "x"), row("2023-11-17")])
    assert [item.reason for item in made] == [
        "TIMESTAMP is 'yesterday', not a date and time as 2025-03-01T10:00:00Z",
        "ContextTokens is 'many', not a number of tokens",
        "torn",
        "",
    ]
    assert isinstance(made[3].value, Request)
    assert made[3].value.arrival_s == 0.0


def test_the_real_log_is_read_to_its_last_row(shared_data: Path) -> None:
    path = shared_data / "traces/azure-llm-2023/AzureLLMInferenceTrace_code.csv"
    with path.open(newline="") as file:
        rows: list[object] = list(csv.DictReader(file))
    made = requests(rows)
    assert len(made) == 8819
    assert not path.read_bytes().endswith(b"\n")
    assert (made[-1].input_tokens, made[-1].output_tokens) == (549, 173)
    assert round(made[-1].arrival_s - made[0].arrival_s) == 3436
    assert sorted(request.input_tokens for request in made)[8819 // 2] == 1469
    assert max(request.output_tokens for request in made) == 1899
