"""Token counts fall into disjoint buckets whatever the source means by its input."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvmill.traces.readers.usage import inside, summing_to
from kvmill.traces.trajectory import Usage

COUNT = st.integers(0, 10**6)


@given(COUNT, COUNT, COUNT, COUNT)
def test_a_cache_inside_the_input_is_taken_out_of_it(fresh: int, read: int, written: int, output: int) -> None:  # bug 9
    usage = inside(fresh + read + written, output, read, written)
    assert usage == Usage(fresh, read, written, output)


@given(COUNT, COUNT, st.integers(1, 10**6))
def test_a_cache_larger_than_the_input_lies_beside_it_and_nothing_is_clamped(
    fresh: int, output: int, more: int
) -> None:
    assert inside(fresh, output, fresh + more, None) == Usage(fresh, fresh + more, None, output)


@given(COUNT, COUNT, COUNT, COUNT)
def test_buckets_apart_are_read_as_such_when_they_add_up(fresh: int, read: int, written: int, output: int) -> None:
    total = fresh + read + written + output
    assert summing_to(total, fresh, output, read, written, None) == (Usage(fresh, read, written, output), True)


@given(st.integers(1, 10**6), st.integers(1, 10**6), st.integers(0, 10**6), COUNT)
def test_a_total_without_the_cache_says_that_it_is_inside(fresh: int, read: int, written: int, output: int) -> None:
    given_input = fresh + read + written
    found = summing_to(given_input + output, given_input, output, read, written, None)
    assert found == (Usage(fresh, read, written, output), True)


@pytest.mark.parametrize(
    ("value", "count"),
    [(3, 3), ("3", 3), (3.0, 3), (None, None), (-1, None), ("x", None), (True, None), (2**70, None), (1.5, None)],
)
def test_what_is_no_count_is_not_known(value: Any, count: int | None) -> None:
    usage = inside(value, 1)
    assert usage is not None
    assert usage.fresh_input_tokens == count


def test_without_counts_there_is_no_usage() -> None:
    assert inside(None, None, 5, 5) is None
    assert summing_to(9, None, None, 5, 5, 5) == (None, True)
    assert summing_to(9, 3, 3, None, None, None) == (Usage(3, None, None, 3), False)
