"""Numbers and objects as sources write them: what is none of them is None or empty, never an error."""

from __future__ import annotations

import math
from typing import Any

import pytest

from kvmill.traces.readers.counts import count, finite, inside


@pytest.mark.parametrize(
    ("value", "counted"),
    [(0, 0), (7, 7), (-1, None), (True, None), (1.0, None), ("7", None), (2**40, None), (10**400, None), (None, None)],
)
def test_a_count_is_a_whole_number_of_a_sensible_size(value: Any, counted: int | None) -> None:
    assert count(value) == counted


@pytest.mark.parametrize(
    ("value", "number"),
    [(1, 1.0), (-0.5, -0.5), (True, None), ("1", None), (math.nan, None), (math.inf, None), (10**400, None)],
)
def test_a_number_is_finite(value: Any, number: float | None) -> None:
    assert finite(value) == number


@pytest.mark.parametrize("value", [None, 1, "a", [], {"a": None}, {"a": "b"}, {"a": {"b": [1]}}])
def test_what_is_not_there_is_empty(value: Any) -> None:
    assert inside(value, "a", "b") == {}


def test_what_is_there_is_found() -> None:
    assert inside({"a": {"b": {"c": 1}}}, "a", "b") == {"c": 1}
    assert inside({"c": 1}) == {"c": 1}
