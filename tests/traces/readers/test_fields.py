"""Cells of request logs: text and typed values mean the same, and nothing is rounded in silence."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvmill.traces.readers import fields
from kvmill.traces.reading import Reject


@given(st.integers(0, 2**40))
def test_a_number_of_tokens_is_the_same_as_text(count: int) -> None:
    for value in (count, str(count), f" {count} ", float(count), f"{count}.0"):
        assert fields.tokens({"n": value}, "n") == count


@pytest.mark.parametrize(
    "value", [-1, 1.5, "1.5", True, None, "", "x", math.nan, "nan", 2**41, "9" * 400, 10**400, [1]]
)
def test_what_is_no_number_of_tokens_is_refused(value: object) -> None:
    with pytest.raises(Reject, match=r"n is .* not a number of tokens"):
        fields.tokens({"n": value}, "n")


@given(st.lists(st.integers(0, 2**64 - 1), max_size=9))
def test_hashes_of_64_bits_survive_every_digit(ids: list[int]) -> None:  # bug 13
    assert fields.hashes(ids, "h") == tuple(ids)
    assert fields.hashes(str(ids), "h") == tuple(ids)


@pytest.mark.parametrize("value", [[1.0], [2**64], [-1], [True], "[1.5]", "1,2", {"a": 1}, ["1.5"], ["1", 2]])
def test_hashes_that_went_through_doubles_are_refused(value: object) -> None:
    with pytest.raises(Reject, match="h is not a list of whole numbers"):
        fields.hashes(value, "h")


@given(st.integers(0, 10**9 - 1), st.integers(1, 9))
def test_a_clock_keeps_up_to_nine_digits(nanoseconds: int, digits: int) -> None:
    text = f"{nanoseconds:09d}"[:digits]
    expected = int(text.ljust(9, "0"))
    assert fields.clock({"t": f"1970-01-02 00:00:01.{text}"}, "t") == (86401, expected)


def test_times_have_a_unit() -> None:
    assert fields.seconds({"t": 3}, "t", 1000) == 0.003
    assert fields.seconds({"t": 18446744073709551615}, "t", 10**9) == 18446744073.709551615
    for value in (-1, math.inf, "1e999", None, True, 2**70):
        with pytest.raises(Reject, match="not a time in ms"):
            fields.seconds({"t": value}, "t", 1000)


@pytest.mark.parametrize("value", ["1,234", "2.000", "12'345", "1 000", "1.234.567"])
def test_a_number_with_separators_is_not_guessed(value: str) -> None:
    with pytest.raises(Reject, match="write numbers without separators"):
        fields.tokens({"n": value}, "n")


@pytest.mark.parametrize("zone", ["Z", "+00:00", " UTC", " +0000 UTC", " GMT"])
def test_every_way_to_write_universal_time_is_the_same(zone: str) -> None:
    assert fields.clock({"at": f"1970-01-01 00:01:00.250000001{zone}"}, "at") == (60, 250_000_001)


@pytest.mark.parametrize(
    ("value", "name"), [(12.0, "12"), (12, "12"), ("a", "a"), (1.5, None), (2.0**60, None), (math.nan, None)]
)
def test_an_id_that_became_a_float_is_still_one(value: object, name: str | None) -> None:
    assert fields.named(value) == name


def test_hashes_may_be_text() -> None:
    assert fields.hashes(["14879255164371896291", "7"], "h") == (14879255164371896291, 7)
    with pytest.raises(Reject):
        fields.hashes([str(2**64)], "h")
