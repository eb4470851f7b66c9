"""Any table of requests: the user's columns, each with its unit; what is missing or unknown is said in words."""

from __future__ import annotations

from typing import Any

import pytest
from sources import Beside, items

from kvmill.traces.readers.table import FORMAT, sniff
from kvmill.traces.trajectory import Request

COLUMNS = {"arrival_ms": "t", "input_tokens": "usage.in", "output_tokens": "out"}
ROW: dict[str, Any] = {"t": "1500", "usage": {"in": 12}, "out": "3"}


def read(row: Any, columns: dict[str, str]) -> Request:
    (item,) = items(FORMAT, [row], Beside(columns=columns))
    assert isinstance(item.value, Request), item.reason
    return item.value


def reason(row: Any, columns: dict[str, str]) -> str:
    (item,) = items(FORMAT, [row], Beside(columns=columns))
    return item.reason


@pytest.mark.parametrize(("unit", "expected"), [("s", 1500.0), ("ms", 1.5), ("us", 0.0015), ("ns", 1.5e-6)])
def test_the_unit_is_in_the_field_name(unit: str, expected: float) -> None:
    columns = {key: value for key, value in COLUMNS.items() if key != "arrival_ms"} | {f"arrival_{unit}": "t"}
    request = read(ROW, columns)
    assert request.arrival_s == pytest.approx(expected, rel=1e-15)
    assert (request.input_tokens, request.output_tokens) == (12, 3)


def test_every_field_may_be_mapped() -> None:
    more = {"session": "s", "turn": "n", "tool_wait_ns": "w", "prefix_blocks": "h", "block_tokens": "64"}
    request = read(ROW | {"s": 7, "n": "2", "w": 5e8, "h": [1, 2**64 - 1]}, COLUMNS | more)
    assert (request.session, request.turn, request.tool_wait_s) == ("7", 2, 0.5)
    assert (request.prefix_blocks, request.block_tokens) == ((1, 2**64 - 1), 64)


def test_dates_count_from_the_first_row() -> None:
    rows = [ROW | {"t": "2024-01-01T00:00:59.5Z"}, ROW | {"t": "2024-01-01T00:01:00.25Z"}]
    made = [item.value for item in items(FORMAT, rows, Beside(columns=COLUMNS))]
    assert [request.arrival_s for request in made if isinstance(request, Request)] == [0.0, 0.75]


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"arrival": "t"}, "unknown field 'arrival' in --columns; known: arrival_s, arrival_ms"),
        ({"input_tokens": "usage.in", "output_tokens": "out"}, "--columns must name arrival_s"),
        (COLUMNS | {"arrival_s": "t"}, "names both"),
        (COLUMNS | {"prefix_blocks": "h"}, "without block_tokens"),
        ({}, "--columns must name arrival_s"),
    ],
)
def test_a_map_that_cannot_work_is_said_once(columns: dict[str, str], words: str) -> None:
    made = items(FORMAT, [ROW, ROW], Beside(columns=columns))
    assert len(made) == 1
    assert words in made[0].reason


def test_wrong_cells_name_their_column() -> None:
    assert reason({"t": 1, "out": 2}, COLUMNS) == "input_tokens: no column usage.in; the row has t, out"
    assert "usage.in is None, not a number of tokens" in reason({"t": 1, "out": 2, "usage": {}}, COLUMNS)
    assert "t is 'soon', not a time in ms" in reason(ROW | {"t": "soon"}, COLUMNS)
    blocks = COLUMNS | {"prefix_blocks": "h", "block_tokens": "size"}
    assert "block_tokens: size is no column" in reason(ROW | {"h": [1]}, blocks)


def test_it_is_never_guessed() -> None:
    assert not sniff(ROW)
    assert not sniff({"arrival_s": 1, "input_tokens": 1, "output_tokens": 1})
